"""What was promised when a scan was decided is stored with it, and told wherever it is told."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import taskuq as tq
from taskuq._io import with_checksum
from taskuq.cli.app import main
from taskuq.scan._audit import read_audit_log
from taskuq.scan._state import load_scan
from taskuq.service._interval import stored_interval, write_interval
from taskuq.service._replay import format_summary, replay_scan, summary

pytest.importorskip("ismrmrd", reason="the extra mrd is not installed")
HOST = "127.0.0.1"
VOID = "Nothing is promised: the policy was calibrated with other networks."


@pytest.fixture
def scanned(small, serving, tmp_path):
    """Play a scan against a service, and return what came of it with its folder and policy."""

    def scan(**options):
        policy = small.policy(width=0.15)
        policy.save(tmp_path / "policy.json")
        service = serving(policy=policy, **options)
        played = replay_scan(small.scan_of(5, slices=2), HOST, service.port)
        return played, sorted((tmp_path / "states").glob("scan-*.json")), policy

    return scan


def audited(tmp_path, capsys):
    main(["audit", str(tmp_path / "states" / "log.jsonl")])
    return capsys.readouterr().out


def test_a_scan_that_is_served_without_a_promise_is_exported_without_one(scanned, tmp_path, capsys):
    played, states, _ = scanned(void=VOID)
    out = tmp_path / "i.json"
    main(["interval", str(states[0]), str(tmp_path / "policy.json"), "-o", str(out)])
    record = json.loads(out.read_text())
    assert (record["guaranteed"], record["promise"]) == (False, VOID)
    assert {line["void"] for line in read_audit_log(tmp_path / "states" / "log.jsonl")} == {VOID}
    assert audited(tmp_path, capsys).count(VOID) == 1
    assert VOID in format_summary(summary([played], 16))
    assert not any(d["promised"] for d in played.decisions.values())


def test_a_dicom_report_says_that_nothing_is_promised(scanned, tmp_path):
    pytest.importorskip("highdicom", reason="the extra dicom is not installed")
    from pydicom.data import get_testdata_file

    _, states, policy = scanned(void=VOID)
    image = Path(get_testdata_file("MR_small.dcm"))
    record = stored_interval(states[0], policy)
    report = write_interval(record, tmp_path / "report.dcm", image).read_bytes()
    assert VOID.encode() in report
    assert policy.statement[:40].encode() not in report


def test_a_scan_that_keeps_its_promise_says_so(scanned, tmp_path, capsys):
    played, states, policy = scanned()
    record = stored_interval(states[0], policy)
    assert (record["guaranteed"], record["promise"]) == (True, policy.statement)
    assert all(d["promised"] for d in played.decisions.values())
    assert len(format_summary(summary([played], 16))) == 1
    assert "In shadow" not in audited(tmp_path, capsys)


def test_a_withdrawn_promise_is_withdrawn_in_state_trail_and_export(small, serving, tmp_path):
    policy = small.policy(width=0.15)
    monitor = tq.Monitor(policy, delta=0.4)
    monitor.update(np.full((1, 60, small.SAMPLES), 0.999))
    assert monitor.alarm
    played = replay_scan(
        small.scan_of(5, slices=1), HOST, serving(policy=policy, monitor=monitor).port
    )
    (state,) = (tmp_path / "states").glob("scan-*.json")
    record = stored_interval(state, policy)
    assert not record["guaranteed"]
    assert record["promise"].startswith("The promise is withdrawn")
    assert played.decisions[0]["promise"] == record["promise"]
    assert "The promise is withdrawn" in format_summary(summary([played], 16))[1]


def test_acquire_stores_that_its_parts_are_not_the_policys(small, tmp_path):
    policy = small.policy(width=0.15)
    known = {"fingerprints": {"recover": "another network", "masks": "m"}}
    policy = replace(policy, provenance={**policy.provenance, **known})

    class Recover:
        fingerprint = "this network"

        def __call__(self, *given, **options):
            return small.recover(*given, **options)

    scanner = small.SimulatedScanner(small.image(1050), small.MASKS, small.RATES)
    with pytest.warns(UserWarning, match="nothing is promised: .*another network"):
        scan = tq.acquire(
            policy, scanner, recover=Recover(), task=small.task, samples=small.SAMPLES,
            scan_id="A", state=tmp_path / "a.json",
        )  # fmt: skip
    assert "another network" in scan.void_reason
    assert load_scan(tmp_path / "a.json", policy).void_reason == scan.void_reason


def test_a_state_of_an_earlier_version_promises_nothing(scanned):
    _, states, policy = scanned()
    record = json.loads(states[0].read_text())
    for one in record["rounds"]:
        del one["void"], one["shadow"]
    states[0].write_text(json.dumps(with_checksum(record)))
    found = stored_interval(states[0], policy)
    assert not found["guaranteed"]
    assert "Nobody can tell" in found["promise"]


def test_shadow_is_in_state_and_trail_and_nothing_says_that_a_scan_stopped(
    scanned, tmp_path, capsys
):
    played, states, policy = scanned(shadow=True)
    found = summary([played], 16)
    assert found["shadow"]
    assert (found["stopped_early"], found["would_stop_early"]) == (0, 2)
    assert found["lines_sent"] == found["lines_of_full_scans"]
    assert (
        "2 slices, in shadow: 2 would have stopped early, and all 32 lines"
        in format_summary(found)[0]
    )
    assert load_scan(states[0], policy).rounds[-1].shadow
    assert stored_interval(states[0], policy)["reason"].startswith("would have stopped at R = ")
    said = audited(tmp_path, capsys)
    assert said.count("would have stopped at R = ") == 2
    assert "stop at R" not in said
    assert said.count("In shadow:") == 1


def test_health_counts_no_stops_in_shadow_and_says_why_a_promise_is_void(small, serving):
    service = serving(policy=small.policy(width=0.15), shadow=True, void=VOID)
    replay_scan(small.scan_of(5, slices=2), HOST, service.port)
    health = service.health()
    assert health["shadow"]
    assert health["reason"] == VOID
    assert health["counts"]["would stop"] == 2
    assert "stops" not in health["counts"]


def test_health_says_why_a_promise_was_withdrawn(small, serving):
    policy = small.policy(width=0.15)
    monitor = tq.Monitor(policy, delta=0.4)
    service = serving(policy=policy, monitor=monitor)
    assert service.health()["reason"] is None
    monitor.update(np.full((1, 60, small.SAMPLES), 0.999))
    assert service.health()["reason"] == monitor.sentence


def test_the_trail_names_the_file_of_each_scan(scanned, tmp_path, capsys):
    _, states, _ = scanned()
    said = audited(tmp_path, capsys)
    assert all(f"kept in {state.name}" in said for state in states)
