"""Toy scanner, its policies, and seeds of long scans."""

from dataclasses import replace

import numpy as np
import pytest
import toy_scanner
from group_scans import toy_scan

import taskuq as tq


@pytest.fixture(scope="session")
def toy():
    return toy_scanner


@pytest.fixture(scope="session")
def toy_policy(toy):
    return toy.policy()


@pytest.fixture(scope="session")
def longest(toy, toy_policy):
    """The seed of an image that is measured in full, so that every round happens."""
    return toy.seed_of(toy_policy, 4)


@pytest.fixture(scope="session")
def whole(toy):
    """A policy for whole groups of three, and the seeds of a group that is measured in full."""
    table = replace(toy.table(), group=np.repeat(np.arange(20), 3))
    policy = tq.plan(table, alpha=0.2, max_width=0.2, unit="whole-group")
    seeds = next(
        range(s, s + 3)
        for s in range(1000, 1400, 3)
        if len(next(iter(toy_scan(policy, range(s, s + 3)).cases.values())).rounds) == 4
    )
    return policy, seeds
