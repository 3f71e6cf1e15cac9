"""Short run of the fuzzer, with planted faults."""

import tempfile
from collections import Counter
from importlib import import_module
from inspect import signature

import pytest

import fuzz
import fuzz_files
import taskuq as tq
from fuzz_changes import Dice
from fuzz_files import Kind
from taskuq.cli import app
from taskuq.table._examples import SyntheticTable, synthetic_outputs

INPUTS, SETTINGS, VECTORS = 50, 300, 150


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


def test_malformed_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kinds = fuzz_files._settings()
    ends = Counter()
    for number in range(SETTINGS):
        fault, end = fuzz.tried(kinds, {}, 3, number)
        assert fault == "", (number, end)
        ends["refused" if end.status else "read"] += 1
    assert min(ends.values()) > SETTINGS / 10


ODD = ("-1", "0", "1.5", "1e-320", "1e308", "nan", "inf", "", "abc", "99999999999999999999", "-",
       "1,2", "0.1", "2", "t.npz", "lwr", "a=1")  # fmt: skip
BASES = (
    "calibrate t.npz", "evaluate t.npz --splits 5", "plan t.npz --max-width 0.3",
    "simulate t.npz --splits 5 --max-width 0.3", "sample-size", "masks --size 32",
    "table t.npz -o u.npz", "predict b.json t.npz", "audit t.npz", "status t.npz",
    "export-policy p.json",
)  # fmt: skip


def test_malformed_argument_vectors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = synthetic_outputs(SyntheticTable(volumes=10, samples=3), seed=0)
    table.save("t.npz")
    whole = (tmp_path / "t.npz").read_bytes()
    tq.calibrate(table, alpha=0.3, acceleration=8).save("b.json")
    tq.plan(table, alpha=0.3, max_width=0.4).save("p.json")
    ends = Counter()
    for number in range(VECTORS):
        dice = Dice(9, number)
        base = dice.pick(BASES).split()
        module = import_module(f"taskuq.cli.{app.COMMANDS[base[0]]['module']}")
        known = signature(getattr(module, base[0].replace("-", "_"))).parameters.values()
        options = [p.name for p in known if p.kind is p.KEYWORD_ONLY and p.name != "json"]
        words = [*base]
        for _ in range(int(dice.rng.integers(0, 3)) if options else 0):
            words += [f"--{dice.pick(options).replace('_', '-')}", dice.pick(ODD)]
        end = fuzz.ended(Kind("", tuple(words)))
        assert end.fault == "", (words, end)
        # Another command's output may have that name.
        assert "t.npz" not in base or (tmp_path / "t.npz").read_bytes() == whole, words
        (tmp_path / "t.npz").write_bytes(whole)
        ends["refused" if end.status else "done"] += 1
    assert min(ends.values()) > VECTORS / 10, ends
