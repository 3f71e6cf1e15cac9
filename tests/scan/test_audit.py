"""Audit log: appending, chain of hashes, tampering."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

import taskuq as tq
from raising import refused
from taskuq.cli.app import main
from taskuq.scan._audit import append_entries, lines_after, read_audit_log

LINE = {"schema": "taskuq.audit/1", "scan_id": "one"}


def test_appending_takes_constant_memory(tmp_path):
    path = tmp_path / "log.jsonl"
    append_entries(path, [LINE | {"round": k} for k in range(6_000)])
    tracemalloc.start()
    try:
        append_entries(path, [LINE])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 2**20
    assert peak < 2**18
    assert len(read_audit_log(path)) == 6_001


@pytest.mark.parametrize("length", [2**16 - 300, 2**16 - 1, 2**16, 2**17, 2**18 + 1])
@pytest.mark.parametrize("lines", [1, 2])
def test_entries_of_any_length_are_chained(tmp_path, length, lines):
    path = tmp_path / "log.jsonl"
    for _ in range(lines):
        append_entries(path, [LINE | {"reason": "a" * length}])
    with path.open("ab") as file:
        file.write(b"torn" * length)
    append_entries(path, [LINE])
    assert len(read_audit_log(path)) == lines + 1


def test_every_round_is_recorded(toy, toy_policy, tmp_path):
    for seed in range(1000, 1005):
        toy.scan(toy.scanner_of(seed), policy=toy_policy, state=tmp_path / f"{seed}.json",
                 scan_id=f"scan-{seed}")  # fmt: skip
    lines = read_audit_log(tmp_path / "log.jsonl")
    assert {line["scan_id"] for line in lines} == {f"scan-{s}" for s in range(1000, 1005)}
    assert sum(line["stop"] for line in lines) == 5
    first = lines[0]
    assert {"time", "round", "policy", "task", "recover", "outputs", "lower", "upper", "reason",
            "latency", "previous", "hash"} <= set(first)  # fmt: skip
    assert first["time"].endswith("+00:00")
    assert first["outputs"]["count"] == 6


def change(lines, at):
    lines[at] = lines[at].replace('"stop": false', '"stop": true').replace('"case"', '"Case"')


def remove(lines, at):
    # A last line that is taken off leaves a shorter chain that is whole: take the one before.
    lines.pop(at if at >= 0 else at - 1)


def repeat(lines, at):
    lines.insert(at, lines[at])


@pytest.mark.parametrize("at", [0, 2, -1])
@pytest.mark.parametrize("edit", [change, remove, repeat])
def test_tampering_is_found(toy, toy_policy, tmp_path, at, edit, capsys):
    for seed in (1000, 1001, 1002, 1003):
        toy.scan(toy.scanner_of(seed), policy=toy_policy, audit_log=tmp_path / "log.jsonl",
                 scan_id=str(seed))  # fmt: skip
    path = tmp_path / "log.jsonl"
    main(["audit", str(path)])
    said = capsys.readouterr().out
    assert "1002" in said
    assert "valid" in said
    lines = path.read_text().splitlines()
    edit(lines, at)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(SystemExit) as ended:
        main(["audit", str(path)])
    assert ended.value.code == 2
    assert "line" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["not json\n", '{"loss": 1.0}\n', '{"schema": "taskuq.au'])
def test_other_files_are_not_appended_to(tmp_path, content):
    path = tmp_path / "log.jsonl"
    path.write_text(content)
    with refused("file.schema"):
        append_entries(path, [{"schema": "taskuq.audit/1"}])
    assert path.read_text() == content


def test_torn_line_is_replaced(toy, toy_policy, tmp_path):
    path = tmp_path / "log.jsonl"
    toy.scan(toy.scanner_of(1000), policy=toy_policy, audit_log=path)
    before = read_audit_log(path)
    with path.open("ab") as file:
        file.write(b'{"schema": "taskuq.audit/1", "time": "2026')
    toy.scan(toy.scanner_of(1001), policy=toy_policy, audit_log=path)
    assert read_audit_log(path)[: len(before)] == before
    assert len(read_audit_log(path)) > len(before)


def test_two_processes_append_to_one_log(tmp_path):
    code = (
        "import sys; from taskuq.scan._audit import append_entries\n"
        "for i in range(20): append_entries(sys.argv[1], "
        "[{'schema': 'taskuq.audit/1', 'scan_id': str(i)}])"
    )
    path = tmp_path / "log.jsonl"
    both = [subprocess.Popen([sys.executable, "-c", code, str(path)]) for _ in range(2)]
    assert [one.wait() for one in both] == [0, 0]
    assert len(read_audit_log(path)) == 40
    assert np.unique([line["hash"] for line in read_audit_log(path)]).size == 40


def test_expected_hash_finds_a_cut_or_rewritten_log(toy, toy_policy, tmp_path, capsys):
    path = tmp_path / "log.jsonl"
    for seed in (1000, 1001):
        toy.scan(toy.scanner_of(seed), policy=toy_policy, audit_log=path, scan_id=str(seed))
    lines = read_audit_log(path)
    last = lines[-1]["hash"]
    main(["audit", str(path), "--expect", last[:16]])
    assert f"ends in {last}" in capsys.readouterr().out
    append_entries(path, [LINE | {"round": 0}])
    assert lines_after(read_audit_log(path, expect=last), last) == 1
    # Both are whole chains.
    cut, rewritten = tmp_path / "cut.jsonl", tmp_path / "rewritten.jsonl"
    cut.write_text("".join(path.read_text().splitlines(keepends=True)[: len(lines) - 1]))
    plain = [{k: v for k, v in line.items() if k not in ("hash", "previous")} for line in lines]
    append_entries(rewritten, [line | {"latency": 0.0} for line in plain])
    for other in (cut, rewritten):
        read_audit_log(other)
        with refused("file.damaged", last):
            read_audit_log(other, expect=last)
    for unclear in ("abc", "x" * 16):
        with refused("value.invalid"):
            read_audit_log(path, expect=unclear)


def test_ids_are_printed_on_one_line_and_time_is_checked(toy, toy_policy, tmp_path, capsys):
    path, forged = tmp_path / "log.jsonl", "one\nscan two\x1b[2K"
    toy.scan(toy.scanner_of(1000), policy=toy_policy, audit_log=path, scan_id=forged)
    (first, *_) = read_audit_log(path)
    entry = {k: v for k, v in first.items() if k not in ("hash", "previous")}
    append_entries(path, [entry | {"time": "2001-01-01T00:00:00.000+00:00"}])
    main(["audit", str(path)])
    printed = capsys.readouterr().out
    assert "scan one\\nscan two\\x1b[2K" in printed
    assert not any(line.startswith("scan two") for line in printed.splitlines())
    number = len(read_audit_log(path))
    assert f"line {number}: time goes backwards" in printed


def test_key_that_occurs_twice_is_refused(toy_policy, tmp_path):
    # Readers take the first or the last: what one checks, another does not see.
    path = tmp_path / "log.jsonl"
    append_entries(path, [LINE])
    path.write_text(path.read_text().replace("{", '{"scan_id": "two", ', 1))
    with refused("file.schema"):
        read_audit_log(path)
    with refused("file.schema"):
        append_entries(path, [LINE])
    toy_policy.save(tmp_path / "policy.json")
    text = (tmp_path / "policy.json").read_text()
    (tmp_path / "policy.json").write_text(text.replace('"alpha"', '"alpha": 0.5, "alpha"', 1))
    with refused("file.format", "twice"):
        tq.load_policy(tmp_path / "policy.json")
    arrays = {"outputs": np.zeros((1, 3, 2)), "attributes": np.array('{"range": 1, "range": 2}')}
    np.savez(tmp_path / "t.npz", **arrays)
    with refused("file.format"):
        tq.TaskOutputs.load(tmp_path / "t.npz")
