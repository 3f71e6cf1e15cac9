"""Short run of the fuzzer, with planted faults."""

import json
import sys

import numpy as np
import pytest

import fuzz
import taskuq as tq
from fuzz_files import Kind
from taskuq._io import write_json
from taskuq.cli import app
from taskuq.pipeline._progress import Progress

INPUTS = 360


# As long as a busy machine needs: a command that hangs ends the run by itself.
@pytest.mark.timeout(3000)
def test_damaged_files_are_refused_or_read_as_whole():
    ends, faults = fuzz.fuzz(INPUTS, seed=1)
    assert faults == []
    assert ends["refused"] + ends["read"] == INPUTS
    assert min(ends["refused"], ends["read"]) > INPUTS / 10


@pytest.mark.parametrize(
    ("end", "fault"),
    [
        (fuzz.End("a traceback: KeyError", "", ""), "a traceback: KeyError"),
        (fuzz.End("more than 10 s", "", ""), "more than 10 s"),
        (fuzz.End(1, "taskuq: internal error (KeyError)", ""), "internal error"),
        (fuzz.End(1, "taskuq: out of memory; free some", ""), "too much memory"),
        (fuzz.End(2, "", ""), "no sentence"),
        (fuzz.End(2, "taskuq: \n", ""), "no sentence"),
        (fuzz.End(2, "taskuq: a.json is not JSON", ""), ""),
        (fuzz.End(0, "", "0.5"), ""),
    ],
)
def test_each_kind_of_fault_is_seen(end, fault):
    assert end.fault == fault


def test_silent_change_is_seen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{c},1,1\n" for c in "abcdefghij")
    (tmp_path / "t.csv").write_text(f"case,target,output\n{rows}")
    command = ("evaluate", "t.csv", "--exact", "--score", "ar", "--alpha", "0.3", "--json", "-")
    change = lambda dice, content: (content.replace(b"a,1", b"a,2"), True)  # noqa: E731
    kind = Kind("t.csv", command, None, change, is_checked=True)
    fault, _ = fuzz.tried([kind], {kind: fuzz.ended(kind)}, 0, 0)
    assert fault == "another result, silently"


def refused(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        app.main(words)
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_deep_line_of_an_audit_log_is_refused(tmp_path, capsys):
    (tmp_path / "log").write_text("[" * 100_000 + "\n")
    assert "log" in refused(["audit", str(tmp_path / "log")], capsys)


def test_demo_without_torch_begins_nothing(tmp_path, monkeypatch, capsys):
    for name in [n for n in sys.modules if n.startswith(("taskuq.experiments", "taskuq.recover"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    printed = refused(["demo", "--fast", "-o", str(tmp_path / "demo")], capsys)
    assert "taskuq[demo]" in printed
    assert "1/4" not in printed
    assert not (tmp_path / "demo").exists()


def test_figure_without_an_ending_is_a_picture(tmp_path):
    app.main(["masks", "--size", "32", "--figure", str(tmp_path / "a"), "-o", f"{tmp_path}/m.npz"])
    assert (tmp_path / "a").read_bytes().startswith(b"\x89PNG")


def test_text_in_place_of_a_number_of_a_monitor_is_refused(tmp_path):
    outputs = np.random.default_rng(0).random((2, 60, 4))
    table = tq.TaskOutputs(outputs, outputs.mean((0, 2)), (4, 2))
    policy = tq.plan(table, alpha=0.3, max_width=0.4)
    monitor = tq.Monitor(policy, state=tmp_path / "m.json")
    monitor.update(outputs[0, 0])
    record = json.loads((tmp_path / "m.json").read_text())
    record["statistics"][0]["values"][0] = "nan"
    write_json(tmp_path / "m.json", record)
    with pytest.raises(tq.InputError, match="not a complete monitor"):
        tq.Monitor(policy, state=tmp_path / "m.json").update(outputs[0, 1])


def test_last_line_of_a_log_counts_every_case(capsys):
    with Progress(40) as progress:
        for _ in range(40):
            progress.step()
    assert capsys.readouterr().err.splitlines()[-1].startswith("40/40 cases")


def test_plan_writes_change_control(tmp_path):
    place = tmp_path / "changes.md"
    words = ["plan", "atlas-sampler", "--max-width", "0.1", "--change-control"]
    app.main([*words, str(place), "-o", str(tmp_path / "p.json")])
    text = place.read_text()
    assert tq.load_policy(tmp_path / "p.json").fingerprint in text
    assert all(word in text for word in ("may change", "acceptance", "R = 16, 8, 4, 2"))
