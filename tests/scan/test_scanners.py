"""Scans of a group: decided as tables are, and drawn as pipelines draw."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
import torch
from group_scans import NEW, TABLE, groups_of, planned, record, toy_scan, toy_scanners
from stored_scanner import StoredScanner, recover, scan_stored, scanners_of

import taskuq as tq
from raising import refused
from taskuq.conformal._splits import Splits
from taskuq.conformal._units import unit_index
from taskuq.errors import InputError
from taskuq.policy._learned import round_arrays
from taskuq.policy._rules import stopping_statistics
from taskuq.policy._stored_scans import StoredScans, simulate_splits
from taskuq.scan._state import GroupScan, Scan

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


def replayed(policy, table, is_compiled):
    """The cost and the covered cases of each group under a policy, as ``simulate`` replays them."""
    x, z = round_arrays(table)
    index, seen = unit_index(table.cases, table.group), stopping_statistics(policy._rules, x, z)
    scans = StoredScans(
        statistics=seen,
        targets=z,
        accelerations=table.accelerations,
        weight=np.ones(table.cases),
        group_of_case=index,
        unit_of_case=index,
        enough=np.empty(0, dtype=np.int64),
        allowance=seen.allowance(index) if policy.whole_group else np.empty((0, 0)),
    )
    # One group is tested in a trial; in so many, every group is.
    groups, trials = int(index.max()) + 1, 400
    splitting = Splits(groups, 1, trials, 5, index, is_compiled)
    found = simulate_splits(scans, splitting, np.tile(np.array(policy.thresholds)[:, None], trials))
    tested = splitting.folds(np.arange(trials)).argmax(axis=1)
    assert set(tested) == set(range(groups))
    first = np.array([np.flatnonzero(tested == g)[0] for g in range(groups)])
    return found.cost[first] / np.bincount(index), found.covered[first]


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("options", PLANS.values(), ids=PLANS)
def test_a_group_stops_where_its_table_and_its_replay_stop(options, is_compiled):
    policy = planned("whole-group", **options)
    costs, covered = replayed(policy, NEW, is_compiled)
    stops = set()
    for cases, cost, hits in zip(groups_of(NEW), costs, covered, strict=True):
        outputs, targets = NEW.outputs[:, cases], NEW.targets[cases]
        scan = scan_stored(policy, outputs, targets)
        rounds = {len(case.rounds) - 1 for case in scan.cases.values()}
        assert rounds == {stop_by_table(policy, outputs)}
        assert 1 / scan.mean_acceleration == pytest.approx(cost)
        assert scan.interval.contains(targets).sum() == hits
        stops |= rounds
    assert len(stops) > 1


@pytest.mark.parametrize("shared", [True, False], ids=["one for all", "one for each"])
@pytest.mark.parametrize("unit", ["case", "group"])
@pytest.mark.parametrize("options", PLANS.values(), ids=PLANS)
def test_cases_that_stop_on_their_own_stop_as_if_scanned_alone(options, unit, shared):
    if unit == "case":
        options = {k: v for k, v in options.items() if k != "cases"}
    policy, cases = planned(unit, **options), groups_of(NEW)[0]
    outputs, targets = NEW.outputs[:, cases], NEW.targets[cases]
    scanners = scanners_of(outputs, targets)
    steps = {"recover": recover, "task": lambda images: images, "samples": 8}
    alone = {name: tq.acquire(policy, s, **steps, case=name) for name, s in scanners.items()}
    scanners = scanners_of(outputs, targets)

    together = (
        scan_stored(policy, outputs, targets) if shared else tq.acquire(policy, scanners, **steps)
    )

    assert record(together) == record(GroupScan(alone))
    lengths = [len(case.rounds) for case in together.cases.values()]
    assert len(set(lengths)) > 1
    if not shared:  # those that have stopped are not measured any more
        assert [s.measured for s in scanners.values()] == [[*range(n)] for n in lengths]


class AllSlices:
    """One scanner for all slices of a patient."""

    def __init__(self, toy, seeds, wrap=list):
        self.wrap, self.combine = wrap, toy.scanner_of(0).combine
        self.scanners = [toy.scanner_of(s) for s in seeds]

    def measure(self, round):
        return self.wrap([scanner.measure(round) for scanner in self.scanners])


@pytest.mark.parametrize("wrap", [list, tuple])
def test_one_scanner_for_all_and_one_for_each_give_the_same_scan(toy, whole, wrap):
    policy, seeds = whole
    names = [f"slice-{s}" for s in seeds]
    scan = toy_scan(policy, seeds, scanners=AllSlices(toy, seeds, wrap), cases=names)

    assert record(scan) == record(toy_scan(policy, seeds))
    listed = list(toy_scanners(seeds).values())
    assert record(toy_scan(policy, seeds, scanners=listed, cases=names)) == record(scan)


@pytest.mark.parametrize("wrap", [np.asarray, torch.as_tensor], ids=["array", "tensor"])
def test_an_array_with_a_case_axis_is_a_piece_for_each(wrap):
    policy, cases = planned("whole-group"), groups_of(NEW)[1]
    outputs, targets = NEW.outputs[:, cases], NEW.targets[cases]
    scanner = StoredScanner(outputs, targets)
    measured = scanner.measure
    scanner.measure = lambda round: wrap(measured(round))
    names = [f"slice-{i}" for i in range(len(cases))]
    scan = tq.acquire(policy, scanner, recover=lambda m, **_: np.atleast_1d(np.asarray(m)),
                      task=lambda images: images, samples=8, cases=names)  # fmt: skip

    assert record(scan) == record(scan_stored(policy, outputs, targets))


@pytest.mark.parametrize("seed", [0, 70])
def test_every_case_of_a_group_draws_what_a_pipeline_draws(toy, whole, seed):
    def measure(image, acceleration):
        scanner = toy.ToyScanner(np.fft.fft2(image, norm="ortho"))
        rounds = range(toy.ACCELERATIONS.index(acceleration) + 1)
        return scanner.combine([scanner.measure(k) for k in rounds])

    policy, seeds = whole
    policy = replace(policy, thresholds=(inf, inf, inf))
    scan = toy_scan(policy, seeds, seed=seed)
    numbered = toy_scan(policy, seeds, seed=seed,
                        scanners=list(toy_scanners(seeds).values()))  # fmt: skip
    settings = {"accelerations": toy.ACCELERATIONS, "samples": 6, "progress": False, "seed": seed}
    pipeline = tq.Pipeline(measure, toy.recover, toy.task)
    for found, names in ((scan, list(scan.cases)), (numbered, None)):
        rows = pipeline.run([toy.image(s) for s in seeds], **settings, case=names).outputs
        drawn = [[r.outputs for r in case.rounds[:-1]] for case in found.cases.values()]
        assert np.array_equal(np.float32(drawn), np.swapaxes(rows, 0, 1))


def test_every_case_is_shown_in_every_round(whole):
    shown, (policy, seeds) = [], whole
    scan = toy_scan(policy, seeds, on_round=shown.append)

    assert [(r.round, r.case) for r in shown] == [(k, c) for k in range(4) for c in scan.cases]
    assert {r.case: r for r in shown[-3:]} == {n: c.rounds[-1] for n, c in scan.cases.items()}


def test_a_group_scan_sums_up_its_cases(toy, whole):
    policy, seeds = whole
    scan = toy_scan(policy, seeds)

    assert scan.is_finished
    assert scan.mean_acceleration == 1
    assert scan.interval.lower.tolist() == [float(toy.task(toy.image(s))) for s in seeds]
    assert not GroupScan({**scan.cases, "next": Scan()}).is_finished


def test_one_scanner_of_one_case_is_refused_before_anything_is_measured(toy, whole):
    scanner = toy.scanner_of(1000)
    with refused("policy.mismatch"):
        toy.scan(scanner, policy=whole[0])
    assert scanner.measured == []


REFUSED = {
    "no scanner": (lambda toy: {"scanner": []}, "names every case of the group"),
    "no case": (lambda toy: {"scanner": toy.scanner_of(1), "cases": []}, "names every case"),
    "a word": (lambda toy: {"scanner": toy.scanner_of(1), "cases": "ab"}, "got 'ab'"),
    "a number": (lambda toy: {"scanner": toy.scanner_of(1), "cases": 3}, "got 3"),
    "one name twice": (
        lambda toy: {"scanner": toy.scanner_of(1), "cases": ["a", "a"]},
        "a name of its own for each, got a, a",
    ),
    "fewer names": (
        lambda toy: {"scanner": [toy.scanner_of(1), toy.scanner_of(2)], "cases": ["a"]},
        "got 2 scanners for 1 cases",
    ),
    "named twice over": (
        lambda toy: {"scanner": {"a": toy.scanner_of(1)}, "cases": ["a"]},
        "name their cases already",
    ),
    "case and cases": (
        lambda toy: {"scanner": toy.scanner_of(1), "cases": ["a"], "case": "a"},
        "names one case, and there are several",
    ),
    "no scanner among them": (
        lambda toy: {"scanner": [toy.scanner_of(1), 3]},
        "one of the scanners is a int, which cannot measure a round",
    ),
    "a dictionary for all": (
        lambda toy: {"scanner": toy.scanner_of(1), "cases": ["a", "b"]},
        "measured a dict in round 0; let measure return a list of one piece for each of the 2",
    ),
    "a piece too few": (
        lambda toy: {"scanner": AllSlices(toy, range(2)), "cases": ["a", "b", "c"]},
        "measured 2 pieces in round 0; let measure return a list of one piece for each of the 3",
    ),
    "a number for all": (
        lambda toy: {"scanner": AllSlices(toy, range(2), len), "cases": ["a", "b"]},
        "measured a int in round 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "sentence"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("is_whole", [True, False])
def test_what_is_no_group_is_refused_in_one_sentence(
    toy, toy_policy, whole, is_whole, given, sentence
):
    with pytest.raises(InputError) as refused:
        toy.scan(policy=whole[0] if is_whole else toy_policy, **given(toy))
    assert "\n" not in str(refused.value)


def test_a_group_of_several_tasks_is_scanned_together():
    def two(table):
        outputs = np.stack([table.outputs, 1 - table.outputs], axis=-1)
        targets = np.stack([table.targets, 1 - table.targets], axis=-1)
        return tq.TaskOutputs(outputs, targets, table.accelerations, group=table.group)

    policy = tq.plan(two(TABLE), alpha=0.1, max_width=0.1, unit="whole-group")
    stops = set()
    for cases in groups_of(NEW):
        outputs, targets = two(NEW).outputs[:, cases], two(NEW).targets[cases]
        scan = tq.acquire(policy, scanners_of(outputs, targets), samples=8, recover=recover,
                          task=lambda images: np.reshape(images, (-1, 2)))  # fmt: skip
        stops.add(stop_by_table(policy, outputs))
        assert {len(c.rounds) - 1 for c in scan.cases.values()} == {stop_by_table(policy, outputs)}
        assert scan.interval.lower.shape == (len(cases), 2)
    assert len(stops) > 1
