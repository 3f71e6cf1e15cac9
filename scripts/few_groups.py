"""What a policy gains from learning its prior on the calibration groups, none of them set aside.

Prints, for tables of task outputs with groups, the average acceleration over random choices of
calibration groups, with the prior of mlwr from a tenth of them set aside and from all of them.

    python scripts/few_groups.py TABLE.npz ... [--groups 22,40,70] [--range 0,1]
"""

from __future__ import annotations

import argparse
from unittest.mock import patch

import numpy as np

import taskuq as tq
from taskuq.decide import learning
from taskuq.decide.certificate import costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--groups", default="22,40,70")
    parser.add_argument("--range", default="0,1")
    parser.add_argument("--alpha", type=float, default=0.05)
    parser.add_argument("--max-width", type=float, default=0.1)
    parser.add_argument("--trials", type=int, default=100)
    asked = parser.parse_args()
    range_ = tuple(map(float, asked.range.split(",")))
    print(f"alpha {asked.alpha:g}, width {asked.max_width:g}, {asked.trials} choices of groups")
    print(f"{'table':20s} {'policy':12s} {'groups':>6s} {'a tenth':>8s} {'all':>8s} {'misses':>7s}")
    for path in asked.tables:
        table = tq.TaskOutputs.load(path, task_range=range_)
        name = path.rsplit("/", 1)[-1].removesuffix(".npz")
        for policy in ("fixed-width", "adaptive"):
            for groups in map(int, asked.groups.split(",")):
                aside, everyone, misses = compare(table, policy, groups, asked)
                gained = f"{aside:8.2f} {everyone:8.2f} {misses:7.4f}"
                print(f"{name:20s} {policy:12s} {groups:6d} {gained}")


def compare(
    table: tq.TaskOutputs, policy: str, groups: int, asked: argparse.Namespace
) -> tuple[float, float, float]:
    """Mean accelerations on the other groups with units set aside and without, and misses."""
    group = np.unique(table.group, return_inverse=True)[1]
    rng = np.random.default_rng(0)
    found = []
    for _ in range(asked.trials):
        chosen = np.isin(group, rng.permutation(int(group.max()) + 1)[:groups])
        options = {"alpha": asked.alpha, "max_width": asked.max_width, "policy": policy}
        with patch.object(learning, "is_steady", lambda score, delta: False):
            before = tq.plan(table.select(cases=chosen), unit="group", **options)
        after = tq.plan(table.select(cases=chosen), unit="group", **options)
        test = table.select(cases=~chosen)
        found.append((scanned(before, test)[0], *scanned(after, test)))
    aside, everyone, misses = np.mean(found, axis=0)
    return float(aside), float(everyone), float(misses)


def scanned(policy: tq.Policy, table: tq.TaskOutputs) -> tuple[float, float]:
    """The acceleration of a random case of a group, harmonic mean, and how often it is missed."""
    group = np.unique(table.group, return_inverse=True)[1]
    weight = 1 / np.bincount(group)[group]
    stopped = np.full(table.cases, table.rounds)
    missed = np.zeros(table.cases, dtype=bool)
    for k in range(table.rounds):
        decision = policy.decide(k, table.outputs[: k + 1])
        now = decision.stops & (stopped == table.rounds)
        stopped[now] = k
        missed[now] = ~decision.interval.contains(table.targets)[now]
    cost = np.average(costs(table.accelerations)[stopped], weights=weight)
    return float(1 / cost), float(np.average(missed, weights=weight))


if __name__ == "__main__":
    main()
