"""Every guarantee of the documents holds on every population, and none of them vacuously."""

from __future__ import annotations

import numpy as np
import pytest

from laws.book import PROMISES


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
def test_no_population_breaks_the_promise(promise):
    judged = [promise.judged(seed) for seed in range(promise.populations)]

    assert {seed: one.broken for seed, one in enumerate(judged) if one.broken} == {}
    # A promise that says nothing, or that never misses, would pass whatever the code did.
    assert np.mean([one.told for one in judged]) > 0.1
    assert np.mean([one.used for one in judged]) > 0.01


@pytest.mark.parametrize(
    "promise",
    [one for one in PROMISES if not one.by_place],
    ids=lambda promise: promise.name,
)
def test_one_order_is_enough_where_order_means_nothing(promise):
    assert not any(promise.heeds_order(seed) for seed in range(20))


def test_there_are_three_thousand_populations():
    assert sum(promise.populations for promise in PROMISES) >= 3000


def test_no_two_promises_have_one_name():
    names = [promise.name for promise in PROMISES]

    assert len(set(names)) == len(names)
