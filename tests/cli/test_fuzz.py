"""Short run of the fuzzer, with planted faults."""

import tempfile

import pytest

import fuzz
import taskuq as tq
from fuzz_files import Kind
from taskuq.cli import app

INPUTS = 500


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
        (fuzz.End(2, "taskuq: a.json is not JSON", ""), ""),
        (fuzz.End(0, "", "0.5"), ""),
    ],
)
def test_each_kind_of_fault_is_seen(end, fault):
    assert end.fault == fault


def test_silent_change_is_seen(monkeypatch):
    def changed(dice, content):
        return content.replace(b"a,1", b"a,2"), True

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with open("t.csv", "w") as file:
            file.write("case,target,output\n" + "".join(f"{c},1,1\n" for c in "abcdefghij"))
        command = ("evaluate", "t.csv", "--exact", "--score", "ar", "--alpha", "0.3", "--json", "-")
        kind = Kind("t.csv", command, None, changed, is_checked=True)
        fault, _ = fuzz.tried([kind], {kind: fuzz.ended(kind)}, 0, 0)

    assert fault == "another result, silently"


def test_plan_writes_change_control(tmp_path):
    place = tmp_path / "changes.md"
    words = ["plan", "atlas-sampler", "--max-width", "0.1", "--change-control"]
    app.main([*words, str(place), "-o", str(tmp_path / "p.json")])
    text = place.read_text()
    assert tq.load_policy(tmp_path / "p.json").fingerprint in text
    assert all(word in text for word in ("may change", "acceptance", "R = 16, 8, 4, 2"))
