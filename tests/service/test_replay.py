import json
import time

import h5py
import pytest

from raising import refused
from taskuq.cli.app import main
from taskuq.service import _replay as replay
from taskuq.service._mrd import header_xml
from taskuq.service._replay import format_summary, read_mrd, replay_scan, summarise

pytest.importorskip("ismrmrd", reason="the extra mrd is not installed")
HOST = "127.0.0.1"


def written(small, path, repetitions=1):
    """An MRD file of one slice, measured once or more often."""
    scan, lines = small.scan_of(1, slices=1), []
    for repetition in range(repetitions):
        for column in range(small.SIZE):
            lines.append(scan.line(0, column))
            lines[-1].idx.repetition = repetition
    return small.file_of(path, header_xml(scan.header), lines)


def test_skipped_repetitions_are_named(small, tmp_path):
    scan = read_mrd(written(small, tmp_path / "two.h5", repetitions=2))
    assert list(scan.kspace) == [0]
    assert read_mrd(written(small, tmp_path / "one.h5")).skipped == ()
    assert scan.skipped == ("16 lines skipped: a line with repetition 1; 0 is needed",)


@pytest.mark.parametrize("spoil", ["no xml", "an endless heap", "cut short", "a text"])
def test_malformed_file_is_refused(small, tmp_path, spoil):
    path = written(small, tmp_path / "a.h5")
    if spoil == "no xml":
        with h5py.File(path, "a") as file:
            del file["dataset"]["xml"]
    elif spoil == "an endless heap":
        content = bytearray(path.read_bytes())
        size = content.rindex(b"GCOL") + 24
        content[size : size + 8] = (3000).to_bytes(8, "little")
        path.write_bytes(content)
    else:
        path.write_bytes(path.read_bytes()[:3000] if spoil == "cut short" else b"a text")
    with refused("file.format", "MRD") as caught:
        read_mrd(tmp_path / "a.h5")
    assert "Error" not in str(caught.value)


def test_repetition_time_changes_no_decision(small, serving, tmp_path):
    decided, every = [], 0.005
    for pause in (0.0, every):
        service = serving(folder=tmp_path / f"every-{pause}")
        begun = time.monotonic()
        played = replay_scan(small.scan_of(1, slices=1), HOST, service.port, tr=pause)
        took = time.monotonic() - begun
        decided += [(d["decision"], d["lower"], d["upper"]) for d in played.decisions.values()]
    assert took >= (played.lines - 1) * every > 0
    assert decided[0] == decided[1]


def test_stored_decisions_are_counted_apart(small, serving, tmp_path):
    service, scan = serving(), small.scan_of(1, slices=2)
    first, again = (replay_scan(scan, HOST, service.port) for _ in range(2))
    rounds = len(first.latencies)
    assert (first.restored, again.restored, again.latencies) == (0, rounds, [])
    assert rounds == service.counts["stops"] + service.counts["continues"]
    assert service.counts["repeated"] == rounds
    same = ("decision", "lower", "upper", "reason")
    assert [[d[name] for name in same] for d in again.decisions.values()] == [
        [d[name] for name in same] for d in first.decisions.values()
    ]
    both = summarise([first, again], small.SIZE)
    assert (both["latency"]["rounds"], both["answered_again"]) == (rounds, rounds)
    (said,) = format_summary(summarise([again], small.SIZE))[:1]
    assert f"latency: {rounds} rounds" in said
    assert "median" not in said


ODD = [("--patients", "0"), ("--coils", "0"), *(("--tr-ms", ms) for ms in ("-1", "nan", "inf"))]


@pytest.mark.parametrize(("option", "value"), ODD)
def test_invalid_numbers_are_refused(option, value, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["replay", "atlas", option, value])
    assert ended.value.code == 2
    assert f"{option} must be " in capsys.readouterr().err


def test_missing_service_is_refused(small, monkeypatch):
    monkeypatch.setattr(replay, "PATIENCE", 0.6)
    said = []
    with refused("dependency.missing", "127.0.0.1:9"):
        replay_scan(small.scan_of(1), HOST, 9, log=said.append)
    assert len(said) == 1
    assert "trying for 1 s" in said[0]


def test_lines_sent_again_count_once(small, serving, monkeypatch):
    service, wait, waited = serving(), replay._wait, []

    def lose(wire, kind):
        waited.append(kind)
        if len(waited) == 3:
            raise OSError
        return wait(wire, kind)

    monkeypatch.setattr(replay, "_wait", lose)
    scan, said = small.scan_of(5, slices=2), []
    again = replay_scan(scan, HOST, service.port, log=said.append)
    monkeypatch.undo()
    found = json.loads(json.dumps(summarise([again], small.SIZE)))
    assert found["reconnections"] == 1
    assert found["acceleration"] == 2 * small.SIZE / again.lines
    assert found["lines_sent"] == sum(16 / d["acceleration"] for d in again.decisions.values())
    assert "resumed 1 time" in format_summary(found)[0]
    assert len(said) == 1
