"""Audit log: appending, chain of hashes, tampering."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from raising import refused
from taskuq.cli.app import main
from taskuq.scan._audit import append_entries, read_audit_log

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
