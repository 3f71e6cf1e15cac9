"""A service decides about scans that come over the network as acquire decides about its own."""

import json
import socket
import subprocess
import sys
import threading
import urllib.request

import numpy as np
import pytest

import taskuq as tq
from taskuq.measure._adaptive import AdaptiveLines
from taskuq.measure._mri import MultiCoilMRI, AdaptiveMRIScanner
from taskuq.service import _replay as replay
from taskuq.service._mrd import (
    ACQUISITION,
    CLOSE,
    HEADER,
    IMAGE,
    WAVEFORM,
    StreamLimits,
    header_xml,
)
from taskuq.service._replay import read_mrd, replay_scan, summary

ismrmrd = pytest.importorskip("ismrmrd", reason="the extra mrd is not installed")
SAME = ("case", "round", "acceleration", "lower", "upper", "reason", "fault")
HOST = "127.0.0.1"


def said(record):
    return {name: record[name] for name in SAME}


def require_same(small, policy, number, played):
    for slice_, decision in played.decisions.items():
        scan = small.acquired(policy, number, slice_)
        assert said(decision) == said(scan.rounds[-1].to_dict())


def test_decisions_are_acquires_to_the_bit_and_images_are_means_of_recoveries(small, serving):
    policy = small.policy(width=0.15)
    service, ends = serving(policy=policy), set()
    for number in [*range(40, 50), 5]:
        played = replay_scan(small.scan_of(number), HOST, service.port)
        require_same(small, policy, number, played)
        ends |= {d["acceleration"] for d in played.decisions.values()}
    assert ends == {8, 4, 2}

    scanner = small.SimulatedScanner(small.image(1050), small.MASKS, small.RATES)
    rounds = [scanner.measure(k) for k in range(played.decisions[0]["round"] + 1)]
    R = played.decisions[0]["acceleration"]
    seed = tq.seeds.case_seed(0, "patient-5-slice-0", R)
    drawn = small.recover(scanner.combine(rounds), samples=1 if R == 1 else 4, seed=seed)
    assert np.allclose(played.decisions[0]["image"], drawn.mean(0).numpy(), atol=1e-6)


def test_many_connections_at_once_lose_and_swap_nothing(small, small_policy, serving):
    service, found = serving(), {}

    def one(number):
        found[number] = replay_scan(small.scan_of(number, slices=2), HOST, service.port)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 16
    for number, played in found.items():
        require_same(small, small_policy, number, played)


def killed(process):
    process.kill()
    process.wait()


def test_a_service_that_is_killed_in_the_middle_of_a_scan_goes_on(
    small, small_policy, tmp_path, monkeypatch
):
    small_policy.save(tmp_path / "policy.json")
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    serve = [sys.executable, small.__file__, str(tmp_path), str(port)]
    running = [subprocess.Popen(serve)]
    answers, wait = [], replay._wait

    def wait_and_kill(wire, kind, played):
        answers.append(kind)
        if len(answers) in (3, 6):  # a round has just been sent
            killed(running.pop())
            running.append(subprocess.Popen(serve))
        return wait(wire, kind, played)

    monkeypatch.setattr(replay, "_wait", wait_and_kill)
    try:
        played = replay_scan(small.scan_of(3), HOST, port)
    finally:
        killed(running.pop())

    assert played.reconnections == 2
    require_same(small, small_policy, 3, played)


def test_lines_in_any_order_twice_and_too_early_change_nothing(
    small, small_policy, serving, connect
):
    service, scan = serving(), small.scan_of(7, slices=2)
    wire = connect(service)
    wire.send(HEADER, header_xml(scan.header))
    rng = np.random.default_rng(0)
    places = [(s, c) for s in (0, 1) for c in range(small.SIZE)] * 2
    for place in rng.permutation(places):
        wire.send(ACQUISITION, scan.line(*map(int, place)))
    wire.send(CLOSE)
    last = {}
    while (message := wire.read()) is not None:
        if message.kind == IMAGE:
            decision = replay._decision(message)
            last[decision["slice"]] = decision

    assert sorted(last) == [0, 1]
    played = replay._ReplayResult(decisions=last)
    require_same(small, small_policy, 7, played)


def test_a_line_that_comes_again_with_other_numbers_stops_nothing(
    small, small_policy, serving, connect
):
    number, slice_ = next(
        (n, s) for n in range(40) for s in range(3)
        if small.acquired(small_policy, n, s).acceleration > 1
    )  # fmt: skip
    scan, wire = small.scan_of(number), connect(serving())
    wire.send(HEADER, header_xml(scan.header))
    spoilt = scan.line(slice_, int(small.COLUMNS[0][0]))
    spoilt.data[:] = 1
    wire.send(ACQUISITION, spoilt)
    for column in range(small.SIZE):
        wire.send(ACQUISITION, scan.line(slice_, column))
    wire.send(CLOSE)
    found = []
    while (message := wire.read()) is not None:
        found.append(replay._decision(message) if message.kind == IMAGE else message.content)

    decisions = [one for one in found if isinstance(one, dict)]
    assert decisions
    assert not any(one["would_stop"] == "true" for one in decisions)
    assert any("came twice" in one for one in found if isinstance(one, str))


@pytest.mark.parametrize(("unit", "watched"), [("whole-group", False), ("group", True)])
def test_slices_that_are_decided_together_are_scanned_together(small, serving, unit, watched):
    policy = small.policy(unit, width=0.1 if watched else 0.2)
    monitor = tq.Monitor(policy) if watched else None
    service = serving(policy=policy, monitor=monitor)
    # A scanner that waited for one slice at a time would wait for ever.
    played = replay_scan(small.scan_of(2), HOST, service.port, limits=StreamLimits(idle=20))
    scanners = {
        f"patient-2-slice-{k}": small.SimulatedScanner(
            small.image(1020 + k), small.MASKS, small.RATES
        )
        for k in range(3)
    }
    steps = {"recover": small.recover, "task": small.task, "samples": small.SAMPLES}
    whole = tq.acquire(policy, scanners, **steps)

    assert sorted(played.decisions) == [0, 1, 2]
    assert played.reconnections == 0
    for decision in played.decisions.values():
        assert said(decision) == said(whole.cases[decision["case"]].rounds[-1].to_dict())
    lines = [small.SIZE / scan.acceleration for scan in whole.cases.values()]
    assert played.lines == sum(lines) < 3 * small.SIZE


def test_any_number_of_waveforms_between_lines_is_passed_over(
    small, small_policy, serving, connect
):
    scan, wire = small.scan_of(1, slices=1), connect(serving())
    wire.send(HEADER, header_xml(scan.header))
    beat = ismrmrd.Waveform.from_array(np.zeros((2, 4), dtype=np.uint32))
    for _ in range(3000):
        wire.send(WAVEFORM, beat)
    for column in range(small.SIZE):
        wire.send(ACQUISITION, scan.line(0, column))
    wire.send(CLOSE)
    found = []
    while (message := wire.read()) is not None:
        if message.kind == IMAGE:
            found.append(replay._decision(message))

    require_same(small, small_policy, 1, replay._ReplayResult(decisions={0: found[-1]}))


def test_in_shadow_nothing_stops_and_all_lines_are_asked_for(small, small_policy, serving):
    service = serving(shadow=True)
    played = [replay_scan(small.scan_of(number), HOST, service.port) for number in range(4)]

    assert sum(one.lines for one in played) == 4 * 3 * small.SIZE
    assert all(d["decision"] == "continue" for one in played for d in one.decisions.values())


def test_replies_promise_nothing_where_parts_are_not_the_policys(small, serving):
    service = serving(void="Nothing is promised: other masks.")
    played = replay_scan(small.scan_of(41), HOST, service.port)
    assert {one["promise"] for one in played.decisions.values()} == {service.chain.void}


def test_a_withdrawn_promise_is_said_and_stops_nothing(small, small_policy, serving):
    monitor = tq.Monitor(small_policy)
    for _ in range(60):
        monitor.update(np.array([0.9, 0.9001, 0.9002, 0.9003]))
    played = replay_scan(small.scan_of(1), HOST, serving(monitor=monitor).port)

    assert monitor.alarm
    assert all(d["acceleration"] == 1 for d in played.decisions.values())
    assert "withdrawn" in played.decisions[0]["promise"]


def test_health_tells_what_happened_and_too_many_connections_are_refused(small, serving, connect):
    service = serving(limits=StreamLimits(connections=1, idle=5))
    held = connect(service)
    held.send(HEADER, header_xml(small.scan_of(1).header))
    assert "send these lines" in held.read().content
    refused = connect(service)
    assert "no more are taken" in refused.read().content
    assert refused.read() is None

    with urllib.request.urlopen(f"http://{HOST}:{service.health_port}/health") as page:
        health = json.load(page)
    assert health["status"] == "ready"
    assert health["connections"] == 1
    assert health["counts"]["refused connections"] == 1


def test_it_listens_on_loopback_alone_unless_told_otherwise(serving):
    assert serving().host == "127.0.0.1"


def named_by_its_study(xml):
    header = ismrmrd.xsd.CreateFromDocument(xml)
    header.measurementInformation = None
    header.studyInformation = ismrmrd.xsd.studyInformationType(accessionNumber=77)
    return header.toXML()


@pytest.mark.parametrize("spoil", ["no name", "a study's name", "entity", "other size", "no xml"])
def test_a_header_that_does_not_do_is_refused_in_a_sentence(small, serving, connect, spoil):
    xml = header_xml(small.scan_of(1).header)
    xml = {
        "no name": xml.replace("MR-1", ""),
        "a study's name": named_by_its_study(xml),
        "entity": xml.replace("?>", '?><!DOCTYPE a [<!ENTITY b "c">]>', 1),
        "other size": xml.replace("<ns0:y>16<", "<ns0:y>32<").replace("<y>16<", "<y>32<"),
        "no xml": "hello",
    }[spoil]
    wire = connect(serving())
    wire.send(HEADER, xml)
    answer = wire.read()

    assert "lines" not in json.loads(answer.content)
    assert wire.read() is None


def test_an_mrd_file_is_read_as_it_was_written_and_by_the_official_package(small, tmp_path):
    scan = small.scan_of(4)
    path = scan.save(tmp_path / "scan.h5")
    again = read_mrd(path)
    assert again.header == scan.header
    assert all(np.array_equal(again.kspace[k], scan.kspace[k]) for k in scan.kspace)
    with ismrmrd.Dataset(str(path), "dataset", create_if_needed=False) as file:
        assert file.number_of_acquisitions() == 3 * small.SIZE


def test_a_file_of_the_official_package_is_read_and_ours_by_it(small, tmp_path):
    scan = small.scan_of(4, slices=1)
    xsd = ismrmrd.xsd
    header = xsd.CreateFromDocument(header_xml(scan.header))
    header.measurementInformation.measurementID = None
    header.measurementInformation.seriesInstanceUIDRoot = "1.2.77"
    header.subjectInformation = None
    with ismrmrd.Dataset(str(tmp_path / "theirs.h5"), "dataset", create_if_needed=True) as file:
        file.write_xml_header(header.toXML().encode())
        noise = ismrmrd.Acquisition.from_array(np.ones((2, 100), dtype=np.complex64))
        noise.setFlag(ismrmrd.ACQ_IS_NOISE_MEASUREMENT)
        file.append_acquisition(noise)
        for column in [*range(small.SIZE)][::-1]:
            line = ismrmrd.Acquisition.from_array(scan.kspace[0][..., column])
            line.idx.kspace_encode_step_1, line.idx.slice = column, 0
            file.append_acquisition(line)
    theirs = read_mrd(tmp_path / "theirs.h5")
    assert (theirs.header.scan_id, theirs.header.case(0)) == ("1.2.77", "1.2.77-slice-0")
    assert np.array_equal(theirs.kspace[0], scan.kspace[0])

    with ismrmrd.File(str(scan.save(tmp_path / "ours.h5")), mode="r") as file:
        ours = list(file["dataset"].acquisitions)
        assert file["dataset"].header.subjectInformation.patientID == "patient-4"
    assert np.array_equal(ours[5].data, scan.kspace[0][..., ours[5].idx.kspace_encode_step_1])


def test_a_summary_counts_what_was_saved(small, serving):
    played = replay_scan(small.scan_of(1), HOST, serving().port)
    found = summary([played], small.SIZE)

    assert found["lines_of_full_scans"] == 3 * small.SIZE
    assert found["acceleration"] == 3 * small.SIZE / played.lines
    json.dumps(found)


def test_lines_wanted_next_are_those_that_a_rule_chooses(small, serving):
    rule = AdaptiveLines(
        MultiCoilMRI(small.MASKS, small.RATES), small.MASKS, small.RATES, "outputs"
    )
    table = tq.Pipeline(rule, small.recover, small.task).run(
        [small.image(k) for k in range(30)], case=[f"old-{k}" for k in range(30)],
        accelerations=small.RATES, samples=small.SAMPLES, seed=0, task_range=(0, 1), progress=False,
    )  # fmt: skip
    policy = tq.plan(table, alpha=0.2, max_width=0.02)
    scan = small.scan_of(3, slices=2)
    service = serving(policy=policy, rule=rule)
    played, again = (replay_scan(scan, HOST, service.port) for _ in range(2))
    lines = 0
    for k in range(2):
        own = AdaptiveMRIScanner(small.image(1000 + 10 * 3 + k), small.RATES)
        alone = tq.acquire(
            policy, own, recover=small.recover, task=small.task, samples=small.SAMPLES,
            case=f"patient-3-slice-{k}", adaptive=rule,
        )  # fmt: skip
        lines += sum(len(piece["columns"]) for piece in alone.measurements)
        assert played.decisions[k]["acceleration"] == alone.acceleration
        assert said(again.decisions[k]) == said(played.decisions[k])
    # Who comes back is asked for the same lines again, round by round.
    assert played.lines == again.lines == lines
