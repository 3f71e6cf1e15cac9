"""Every guarantee of the documentation holds on every population, and none of them vacuously."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from laws.book import EACH_ROUND, EACH_ROUND_OF_CLASS, LAWS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("law", [*LAWS, EACH_ROUND, EACH_ROUND_OF_CLASS], ids=lambda law: law.name)
def test_no_population_breaks_the_guarantee(law):
    # TASKUQ_POPULATIONS=500 enumerates more of them, in an hour of CPU time.
    populations = int(os.environ.get("TASKUQ_POPULATIONS", law.populations))
    outcomes = [law.judged(seed) for seed in range(populations)]
    assert {seed: one.broken for seed, one in enumerate(outcomes) if one.broken} == {}
    if law is EACH_ROUND_OF_CLASS:  # its tests leave too little of delta for a miss
        return
    # A law without information, or without a miss, would pass whatever the code does.
    assert np.mean([one.informed for one in outcomes]) > 0.1
    assert np.mean([one.used for one in outcomes]) > (0 if law is EACH_ROUND else 0.01)


@pytest.mark.parametrize("law", [x for x in LAWS if not x.by_place], ids=lambda law: law.name)
def test_order_does_not_matter_where_one_order_is_enumerated(law):
    assert not any(law.depends_on_order(seed) for seed in range(3))


def test_documents_name_a_test_for_every_guarantee():
    text = (ROOT / "docs/explanation/guarantees.md").read_text()
    table = text.split("## Every guarantee at a glance")[1].split("\n## ")[0]
    rows = [row for row in table.splitlines() if row.startswith("| ")][1:]
    assert len(rows) >= 18
    assert all("tests/" in row or "the same |" in row for row in rows)
    named = re.findall(r"`(tests/[\w/]+\.py)`", table)
    assert all("def test_" in (ROOT / file).read_text() for file in named)
