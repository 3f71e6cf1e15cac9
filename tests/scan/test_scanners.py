"""Scans of groups: decisions equal to tables, draws equal to pipelines."""

from dataclasses import replace
from math import inf

import group_scans as grouped
import numpy as np
import pytest
import torch

import taskuq as tq
from raising import refused
from taskuq.scan._state import GroupScan

PLANS = {
    "fixed-width": {},
    "adaptive": {"policy": "adaptive"},
    "two-phase": {"budget": 0.5},
    "all": {"cases": "all"},
    "most, adaptive": {"cases": 0.8, "policy": "adaptive"},
}


def stop_by_table(policy, outputs):
    """In which round the policy stops a group whose outputs lie in a table; after all of them 4."""
    decisions = (policy.decide(k, outputs[: k + 1]) for k in range(len(outputs)))
    return next((d.round for d in decisions if d.stop), len(outputs))


@pytest.mark.parametrize("name", PLANS)
def test_group_stops_where_its_table_stops(name):
    policy, stops = grouped.planned("whole-group", **PLANS[name]), set()
    for cases in grouped.groups_of(grouped.NEW):
        outputs, targets = grouped.NEW.outputs[:, cases], grouped.NEW.targets[cases]
        scan = grouped.scan_stored(policy, outputs, targets)
        rounds = {len(case.rounds) - 1 for case in scan.cases.values()}
        assert rounds == {stop_by_table(policy, outputs)}
        assert scan.mean_acceleration == next(iter(scan.cases.values())).acceleration
        stops |= rounds
    assert len(stops) > 1


@pytest.mark.parametrize("shared", [True, False], ids=["one for all", "one for each"])
@pytest.mark.parametrize("unit", ["case", "group"])
@pytest.mark.parametrize("options", PLANS.values(), ids=PLANS)
def test_cases_stop_as_if_scanned_alone(options, unit, shared):
    if unit == "case":
        options = {k: v for k, v in options.items() if k != "cases"}
    policy, cases = grouped.planned(unit, **options), grouped.groups_of(grouped.NEW)[0]
    outputs, targets = grouped.NEW.outputs[:, cases], grouped.NEW.targets[cases]
    scanners = grouped.scanners_of(outputs, targets)
    steps = {"recover": grouped.recover, "task": lambda images: images, "samples": 8}
    alone = {name: tq.acquire(policy, s, **steps, case=name) for name, s in scanners.items()}
    scanners = grouped.scanners_of(outputs, targets)
    together = (
        grouped.scan_stored(policy, outputs, targets)
        if shared
        else tq.acquire(policy, scanners, **steps)
    )
    assert grouped.record(together) == grouped.record(GroupScan(alone))
    lengths = [len(case.rounds) for case in together.cases.values()]
    assert len(set(lengths)) > 1
    if not shared:  # those that have stopped are not measured any more
        assert [s.measured for s in scanners.values()] == [[*range(n)] for n in lengths]


class AllSlices:
    def __init__(self, toy, seeds, wrap=list):
        self.wrap, self.combine = wrap, toy.scanner_of(0).combine
        self.scanners = [toy.scanner_of(s) for s in seeds]

    def measure(self, round):
        return self.wrap([scanner.measure(round) for scanner in self.scanners])


@pytest.mark.parametrize("wrap", [list, tuple])
def test_one_scanner_or_several_give_the_same_scan(toy, whole, wrap):
    policy, seeds = whole
    names = [f"slice-{s}" for s in seeds]
    scan = grouped.toy_scan(policy, seeds, scanners=AllSlices(toy, seeds, wrap), cases=names)
    assert grouped.record(scan) == grouped.record(grouped.toy_scan(policy, seeds))
    listed = list(grouped.toy_scanners(seeds).values())
    assert grouped.record(
        grouped.toy_scan(policy, seeds, scanners=listed, cases=names)
    ) == grouped.record(scan)


@pytest.mark.parametrize("wrap", [np.asarray, torch.as_tensor], ids=["array", "tensor"])
def test_array_with_a_case_axis_is_split(wrap):
    policy, cases = grouped.planned("whole-group"), grouped.groups_of(grouped.NEW)[1]
    outputs, targets = grouped.NEW.outputs[:, cases], grouped.NEW.targets[cases]
    scanner = grouped.StoredScanner(outputs, targets)
    measured = scanner.measure
    scanner.measure = lambda round: wrap(measured(round))
    names = [f"slice-{i}" for i in range(len(cases))]
    scan = tq.acquire(policy, scanner, recover=lambda m, **_: np.atleast_1d(np.asarray(m)),
                      task=lambda images: images, samples=8, cases=names)  # fmt: skip
    assert grouped.record(scan) == grouped.record(grouped.scan_stored(policy, outputs, targets))


@pytest.mark.parametrize("seed", [0, 70])
def test_cases_of_a_group_draw_what_a_pipeline_draws(toy, whole, seed):
    policy, seeds = whole
    policy = replace(policy, thresholds=(inf, inf, inf))
    scan = grouped.toy_scan(policy, seeds, seed=seed)
    numbered = grouped.toy_scan(policy, seeds, seed=seed,
                        scanners=list(grouped.toy_scanners(seeds).values()))  # fmt: skip
    settings = {"accelerations": toy.ACCELERATIONS, "samples": 6, "progress": False, "seed": seed}
    pipeline = tq.Pipeline(toy.measure, toy.recover, toy.task)
    for found, names in ((scan, list(scan.cases)), (numbered, None)):
        rows = pipeline.run([toy.image(s) for s in seeds], **settings, case=names).outputs
        drawn = [[r.outputs for r in case.rounds[:-1]] for case in found.cases.values()]
        assert np.array_equal(np.float32(drawn), np.swapaxes(rows, 0, 1))


# Scanner and names of its cases, or both by name; A stands for a scanner of one case.
REFUSED = {
    "value.invalid": ({"scanner": []}, {"cases": []}, {"cases": "ab"}, {"cases": 3}),
    "table.duplicate": ({"cases": ["a", "a"]},),
    "shape.mismatch": ({"scanner": ["A", "A"], "cases": ["a"]},),
    "option.conflict": ({"scanner": {"a": "A"}, "cases": ["a"]}, {"cases": ["a"], "case": "a"}),
    "component.invalid": (
        {"scanner": ["A", 3]},
        {"cases": ["a", "b"]},
        {"scanner": list, "cases": ["a", "b", "c"]},
        {"scanner": len, "cases": ["a", "b"]},
    ),
}


@pytest.mark.parametrize(("code", "given"), [(c, g) for c, each in REFUSED.items() for g in each])
@pytest.mark.parametrize("is_whole", [True, False])
def test_invalid_group_is_refused(toy, toy_policy, whole, is_whole, code, given):
    def made(one):
        if isinstance(one, dict):
            return {name: made(each) for name, each in one.items()}
        if isinstance(one, list):
            return [made(each) for each in one]
        return toy.scanner_of(1) if one == "A" else AllSlices(toy, range(2), one) if one in (
            list, len) else one  # fmt: skip

    scanner = made(given.get("scanner", "A"))
    with refused(code):
        toy.scan(policy=whole[0] if is_whole else toy_policy, **{**given, "scanner": scanner})


def test_case_is_refused_for_a_whole_group_policy(toy, whole):
    scanner = toy.scanner_of(1000)
    with refused("policy.mismatch"):
        toy.scan(scanner, policy=whole[0])
    assert scanner.measured == []


def test_group_of_several_tasks():
    def two(table):
        outputs = np.stack([table.outputs, 1 - table.outputs], axis=-1)
        targets = np.stack([table.targets, 1 - table.targets], axis=-1)
        return tq.TaskOutputs(outputs, targets, table.accelerations, group=table.group)

    policy = tq.plan(two(grouped.TABLE), alpha=0.1, max_width=0.1, unit="whole-group")
    stops = set()
    for cases in grouped.groups_of(grouped.NEW):
        outputs, targets = two(grouped.NEW).outputs[:, cases], two(grouped.NEW).targets[cases]
        scan = tq.acquire(policy, grouped.scanners_of(outputs, targets), samples=8,
                          recover=grouped.recover,
                          task=lambda images: np.reshape(images, (-1, 2)))  # fmt: skip
        stops.add(stop_by_table(policy, outputs))
        assert {len(c.rounds) - 1 for c in scan.cases.values()} == {stop_by_table(policy, outputs)}
        assert scan.interval.lower.shape == (len(cases), 2)
    assert len(stops) > 1
