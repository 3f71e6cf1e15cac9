import gc
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.scanner import small_chain, small_scan

import taskuq as tq
from measure.adaptive_toy import AdaptiveMRIScanner
from taskuq._seeds import case_seed
from taskuq.measure._adaptive import AdaptiveLines
from taskuq.measure._mri import MultiCoilMRI
from taskuq.scan._audit import read_audit_log
from taskuq.service import _replay as replay
from taskuq.service._mrd import ACQUISITION, CLOSE, HEADER, Connection, StreamLimits, header_xml
from taskuq.service._replay import _StoredScan, read_mrd, replay_scan
from taskuq.service._server import LOOPBACK, Service
from taskuq.service._session import Session, _StreamedSlice

ismrmrd = pytest.importorskip("ismrmrd", reason="the extra mrd is not installed")
SAME = ("case", "round", "acceleration", "lower", "upper", "reason", "fault")
HOST = "127.0.0.1"


def said(record):
    return {name: record[name] for name in SAME}


def require_same(small, policy, number, played):
    for slice_, decision in played.decisions.items():
        scan = small.acquired(policy, number, slice_)
        assert said(decision) == said(scan.rounds[-1].to_dict())


def test_decisions_equal_acquire(small, serving):
    policy = small.policy(width=0.1)
    service, ends = serving(policy=policy), set()
    for number in [*range(40, 50), 5]:
        played = replay_scan(small.scan_of(number), HOST, service.port)
        require_same(small, policy, number, played)
        ends |= {d["acceleration"] for d in played.decisions.values()}
    assert ends == {8, 4, 2, 1}
    scanner = small.SimulatedMRIScanner(small.image(1050), small.MASKS, small.RATES)
    rounds = [scanner.measure(k) for k in range(played.decisions[0]["round"] + 1)]
    R = played.decisions[0]["acceleration"]
    seed = case_seed(0, "patient-5-slice-0", R)
    drawn = small.recover(scanner.combine(rounds), samples=1 if R == 1 else 4, seed=seed)
    assert np.allclose(played.decisions[0]["image"], drawn.mean(0).numpy(), atol=1e-6)


def test_sixteen_connections_share_nothing(small, small_policy, serving):
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


def test_killed_service_is_resumed(small, small_policy, tmp_path, monkeypatch):
    small_policy.save(tmp_path / "policy.json")
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    serve = [sys.executable, small.__file__, str(tmp_path), str(port)]
    running = [subprocess.Popen(serve)]
    answers, wait = [], replay._wait

    def wait_and_kill(wire, kind):
        answers.append(kind)
        if len(answers) == 3:  # a round has just been sent
            running[0].kill()
            running.pop().wait()
            running.append(subprocess.Popen(serve))
        return wait(wire, kind)

    monkeypatch.setattr(replay, "_wait", wait_and_kill)
    monkeypatch.setattr(replay, "PATIENCE", 300.0)
    try:
        played = replay_scan(small.scan_of(3), HOST, port)
    finally:
        running[0].kill()
        running.pop().wait()
    assert played.reconnections == 1
    require_same(small, small_policy, 3, played)


def test_order_and_repetition_of_lines_change_nothing(small, small_policy, serving, connect):
    # More slices than may wait, interleaved.
    service, scan = serving(limits=StreamLimits(waiting=2)), small.scan_of(7, slices=9)
    wire = connect(service)
    small.begin(wire, scan)
    places = [(s, c) for s in range(9) for c in range(small.SIZE)] * 2
    for place in np.random.default_rng(0).permutation(places):
        wire.send(ACQUISITION, scan.line(*map(int, place)))
    last = {decision["slice"]: decision for decision in small.heard(wire)[0]}
    assert sorted(last) == [*range(9)]
    require_same(small, small_policy, 7, replay._ReplayResult(decisions=last))


def test_changed_line_stops_no_scan(small, small_policy, serving, connect):
    number, slice_ = next(
        (n, s) for n in range(40) for s in range(3)
        if small.acquired(small_policy, n, s).acceleration > 1
    )  # fmt: skip
    scan, wire = small.scan_of(number), connect(serving())
    small.begin(wire, scan)
    spoilt = scan.line(slice_, int(small.COLUMNS[0][0]))
    spoilt.data[:] = 1
    wire.send(ACQUISITION, spoilt)
    for column in range(small.SIZE):
        wire.send(ACQUISITION, scan.line(slice_, column))
    decisions, said = small.heard(wire)
    assert decisions
    assert not any(one["would_stop"] == "true" for one in decisions)
    assert any("arrived twice" in one for one in said)


@pytest.mark.parametrize(("unit", "watched"), [("whole-group", False), ("group", True)])
def test_slices_of_a_group_are_scanned_together(small, serving, unit, watched):
    policy = small.policy(unit, width=0.1 if watched else 0.2)
    monitor = tq.Monitor(policy) if watched else None
    service = serving(policy=policy, monitor=monitor)
    # A scanner that waited for one slice at a time would wait for ever.
    played = replay_scan(small.scan_of(2), HOST, service.port)
    scanners = {
        f"patient-2-slice-{k}": small.SimulatedMRIScanner(
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


def test_health_and_limit_of_connections(small, serving, connect):
    service = serving(limits=StreamLimits(connections=1, idle=5))
    held = connect(service)
    held.send(HEADER, header_xml(small.scan_of(1).header))
    assert "send these lines" in held.read().content
    refused = connect(service)
    assert "limit of 1 connections" in refused.read().content
    assert refused.read() is None
    with urllib.request.urlopen(f"http://{HOST}:{service.health_port}/health") as page:
        health = json.load(page)
    assert health["status"] == "ready"
    assert health["connections"] == 1
    assert health["counts"]["refused connections"] == 1


def test_files_of_ismrmrd_are_read(small, tmp_path):
    scan = small.scan_of(4, slices=1)
    xsd = ismrmrd.xsd
    header = xsd.CreateFromDocument(header_xml(scan.header))
    header.measurementInformation.measurementID = None
    header.measurementInformation.seriesInstanceUIDRoot = "1.2.77"
    header.subjectInformation = None
    lines = [scan.line(0, column) for column in range(small.SIZE)][::-1]
    theirs = read_mrd(small.file_of(tmp_path / "theirs.h5", header.toXML(), lines))
    assert (theirs.header.scan_id, theirs.header.case(0)) == ("1.2.77", "1.2.77-slice-0")
    assert np.array_equal(theirs.kspace[0], scan.kspace[0])


def test_service_requests_adaptive_lines(small, serving):
    rule = AdaptiveLines(
        MultiCoilMRI(small.MASKS, small.RATES), small.MASKS, small.RATES, "outputs"
    )
    table = tq.Pipeline(rule, small.recover, small.task).run(
        [small.image(k) for k in range(30)], case=[f"old-{k}" for k in range(30)],
        accelerations=small.RATES, samples=small.SAMPLES, seed=0, task_range=(0, 1), progress=False,
    )  # fmt: skip
    policy = tq.plan(table, alpha=0.2, max_width=0.02)
    scan = small.scan_of(3, slices=2)
    service = serving(policy=policy, adaptive=rule)
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


@pytest.fixture(params=["case", "whole-group"])
def stopping(request, small):
    """A policy, and a scan that it stops in the first round."""
    if request.param == "whole-group":
        return small.policy("whole-group", width=0.8), small.scan_of(2)
    policy = small.policy(width=0.15)
    number = next(n for n in range(40) if small.acquired(policy, n, 0).acceleration == 8)
    return policy, small.scan_of(number, slices=1)


def test_sound_lines_stop_the_scan(small, serving, connect, stopping):
    policy, scan = stopping
    wire = small.begun(connect, serving(policy=policy), scan, small.COLUMNS[0])
    found, _ = small.heard(wire)
    assert len(found) == len(scan.kspace)
    assert all(one["decision"] == "stop" for one in found)


def test_line_changed_during_computation_stops_no_scan(small, serving, connect, stopping, tmp_path):
    policy, scan = stopping
    held = small.Held()
    service = serving(policy=policy, recover=held)
    wire = small.begun(connect, service, scan, small.COLUMNS[0])
    assert held.computing.wait(300)
    spoilt = scan.line(0, int(small.COLUMNS[0][0]))
    spoilt.data[:] = 1
    wire.send(ACQUISITION, spoilt)
    assert "arrived twice" in wire.read().content
    held.go_on.set()
    first, _ = small.heard(wire)
    again, _ = small.heard(small.begun(connect, service, scan, range(small.SIZE)))
    assert not any(one["would_stop"] == "true" for one in first + again)
    assert all("arrived twice" in one["fault"] for one in first)
    assert len(again) > len(first) == len(scan.kspace)
    told = read_audit_log(tmp_path / "states" / "log.jsonl")
    assert not any(line["stop"] for line in told)


WIDTH, NUMBER, OTHER = 0.1, 1, 7


def one_number_apart(small, scan):
    kspace = {k: lines.copy() for k, lines in scan.kspace.items()}
    for lines in kspace.values():
        place = (0, 0, small.COLUMNS[0][0])
        lines[place] = np.nextafter(lines[place].real, np.float32(9)) + 1j * lines[place].imag
    return _StoredScan(scan.header, kspace)


@pytest.mark.parametrize("how", ["finished", "cut off"])
@pytest.mark.parametrize("unit", ["case", "whole-group"])
def test_other_lines_under_one_name_get_no_decision(small, serving, connect, unit, how):
    service = serving(policy=small.policy(unit, width=0.2 if unit == "whole-group" else WIDTH))
    scan = small.scan_of(2 if unit == "whole-group" else NUMBER)
    if how == "finished":
        decisions = replay_scan(scan, HOST, service.port).decisions
        assert any(d["acceleration"] > 1 for d in decisions.values())
    else:
        images, _ = small.heard(small.begun(connect, service, scan, small.COLUMNS[0]))
        assert len(images) == 3
    other = one_number_apart(small, scan)
    images, said = small.heard(small.begun(connect, service, other, range(small.SIZE)))
    assert images == []
    assert any("is stored with" in sentence and "round 0" in sentence for sentence in said)


def test_other_patient_under_one_name_is_another_scan(small, serving):
    policy = small.policy(width=WIDTH)
    service, scan, other = serving(policy=policy), small.scan_of(NUMBER), small.scan_of(OTHER)
    first = replay_scan(scan, HOST, service.port)
    header = replace(other.header, scan_id=scan.header.scan_id)
    second = replay_scan(_StoredScan(header, other.kspace), HOST, service.port)
    require_same(small, policy, NUMBER, first)
    require_same(small, policy, OTHER, second)


def kept():
    """How many slices and connections are in memory, and how many threads there are."""
    gc.collect()
    slices = sum(type(one) in (_StreamedSlice, Session) for one in gc.get_objects())
    return slices, threading.active_count()


def wait_for(condition):
    """Wait for what happens a moment after a scanner has received everything."""
    until = time.monotonic() + 300
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
    assert condition()


def test_slices_connections_and_threads_are_freed(tmp_path):
    before = kept()
    service = Service(small_chain(tmp_path), port=0)
    service.start()
    listening = threading.active_count() - before[1]
    try:
        for number in range(2):
            replay_scan(small_scan(number, slices=4), LOOPBACK, service.port)
            # One thread computes for all connections.
            wait_for(lambda: kept() <= (0, before[1] + listening + 1))
        assert service.counts["stops"] == 8
    finally:
        service.stop()


@pytest.mark.parametrize("how", ["cut off", "failed"])
def test_lines_are_freed_without_garbage_collection(tmp_path, how):
    model, scan = small_chain(tmp_path), small_scan(0, slices=2)
    if how == "failed":
        (tmp_path / "log.jsonl").write_text("no trail\n")
    service = Service(model, port=0)
    service.start()
    wire = Connection(socket.create_connection((LOOPBACK, service.port)), StreamLimits(idle=300))
    gc.disable()
    try:
        wire.send(HEADER, header_xml(scan.header))
        for column in model.columns[0][: 1 if how == "cut off" else None]:
            wire.send(ACQUISITION, scan.line(0, int(column)))
        wire.send(CLOSE)
        said = []
        while (message := wire.read()) is not None:
            said.append(str(message.content))
        wait_for(lambda: not any(type(one) is _StreamedSlice for one in gc.get_objects()))
        assert any("cannot be decided" in one for one in said) == (how == "failed")
    finally:
        gc.enable()
        wire.close()
        service.stop()
