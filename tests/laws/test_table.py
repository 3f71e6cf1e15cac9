"""Table of guarantees in the documents: every row names a test that exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/explanation/guarantees.md").read_text()
TABLE = TEXT.split("## Every guarantee at a glance")[1].split("\n## ")[0]
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)`", TABLE)))


@pytest.mark.parametrize("file", NAMED)
def test_the_named_test_module_exists(file):
    assert "def test_" in (ROOT / file).read_text()


def test_every_guarantee_names_a_test():
    rows = [row for row in TABLE.splitlines() if row.startswith("| ")][1:]

    assert len(rows) >= 18
    assert all("tests/" in row or "the same |" in row for row in rows)
