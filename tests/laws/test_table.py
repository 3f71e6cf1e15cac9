"""The table of promises in the documents names tests that there are."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/explanation/guarantees.md").read_text()
TABLE = TEXT.split("## Every guarantee at a glance")[1].split("\n## ")[0]
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TABLE)))


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_the_table_names_what_there_is(file, name):
    source = (ROOT / file).read_text()

    assert f"def {name}(" in source if name else "def test_" in source or "book.py" in file


def test_every_promise_has_somebody_who_would_notice():
    rows = [row for row in TABLE.splitlines() if row.startswith("| ")][1:]

    assert len(rows) >= 18
    assert all("tests/" in row or "the same |" in row for row in rows)
