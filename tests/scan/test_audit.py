"""Adding to an audit trail asks for its end alone, however long it is."""

import tracemalloc

import pytest

from taskuq.scan._audit import append_entries, read_audit_log

LINE = {"schema": "taskuq.audit/1", "scan_id": "one"}


def test_adding_to_a_long_trail_takes_no_more_memory_than_to_a_short_one(tmp_path):
    path = tmp_path / "log.jsonl"
    append_entries(path, [LINE | {"round": k} for k in range(20_000)])
    tracemalloc.start()
    try:
        append_entries(path, [LINE])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert path.stat().st_size > 2**22
    assert peak < 2**20
    assert len(read_audit_log(path)) == 20_001


@pytest.mark.parametrize("length", [2**16 - 300, 2**16 - 1, 2**16, 2**17, 2**18 + 1])
@pytest.mark.parametrize("lines", [1, 2])
def test_lines_of_any_length_are_followed(tmp_path, length, lines):
    path = tmp_path / "log.jsonl"
    for _ in range(lines):
        append_entries(path, [LINE | {"reason": "a" * length}])
    with path.open("ab") as file:
        file.write(b"torn" * length)
    append_entries(path, [LINE])

    assert len(read_audit_log(path)) == lines + 1
