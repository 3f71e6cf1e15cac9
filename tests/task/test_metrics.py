"""Rates and areas against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raising import refused
from taskuq.task._metrics import (
    auroc,
    classification_rates,
    reliability,
    require_classes,
    roc_curve,
)

cases = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]), st.integers(0, 1)),
    min_size=2,
    max_size=40,
).filter(lambda c: len({label for _, label in c}) == 2)


@given(cases)
def test_auroc_counts_pairs(found):
    positive = [z for z, y in found if y]
    negative = [z for z, y in found if not y]
    pairs = [(p > n) + 0.5 * (p == n) for p in positive for n in negative]

    assert auroc(*zip(*found, strict=True)) == pytest.approx(np.mean(pairs))


@given(cases)
def test_auroc_is_the_area_under_the_curve(found):
    false, true = roc_curve(*zip(*found, strict=True))

    assert np.trapezoid(true, false) == pytest.approx(auroc(*zip(*found, strict=True)))
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)


@given(cases)
def test_bins_of_the_reliability_curve_hold_every_case_once(found):
    z, y = zip(*found, strict=True)
    bins = reliability(z, y)

    assert sum(b["cases"] for b in bins) == len(z)
    assert sum(b["cases"] * b["positive"] for b in bins) == pytest.approx(sum(y))
    assert sum(b["cases"] * b["mean"] for b in bins) == pytest.approx(sum(z))


def test_rates_by_hand():
    found = classification_rates([0.9, 0.8, 0.6, 0.4, 0.2, 0.1], [1, 0, 1, 1, 0, 0])

    assert found == pytest.approx({"accuracy": 4 / 6, "precision": 2 / 3, "recall": 2 / 3})


def test_precision_of_nothing_is_missing():
    assert np.isnan(classification_rates([0.1, 0.2], [0, 1])["precision"])


@pytest.mark.parametrize(
    ("labels", "code", "value"),
    [
        ([0, 0, 0], "units.few", "0"),
        ([0, 1, 2], "value.invalid", "2"),
        ([0.0, 0.5, 1.0], "value.invalid", "0.5"),
        ([[0, 1], [1, 1]], "units.few", "1"),
    ],
)
def test_labels_no_classifier_can_learn_from_are_refused(labels, code, value):
    with refused(code, "tuning patients", value):
        require_classes(labels, "tuning patients")


def test_outputs_that_are_no_numbers_are_refused():
    with refused("value.nonfinite"):
        auroc([0.1, float("nan")], [0, 1])
