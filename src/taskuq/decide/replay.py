"""Replaying stopped scans on stored cases: what would have been measured, reported and missed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taskuq.calibration.family import AnchoredFamily
from taskuq.decide.certificate import costs
from taskuq.decide.rules import Examination, joint_report
from taskuq.evaluation.splits import byte_threshold, test_folds
from taskuq.evaluation.trials import Splitting
from taskuq.interval import BoolArray, FloatArray


@dataclass(frozen=True)
class Replayed:
    """Weighted sums over the test cases of each trial, each (trial,) unless said otherwise.

    The order is that in which a replay adds them up.

    Arguments:
        weight: The weight of all test cases.
        cost: Shares of measurements taken, :math:`1/R_T`.
        covered: Cases whose report contains the target, fully measured ones included.
        early: Cases stopped before everything was measured.
        early_covered: Those of them that are covered.
        width: Widths of early reports.
        center_error: Distances between target and centre of early reports.
        worst_error: Sum over groups of the largest such distance.
        worst_groups: The number of groups with an early report.
        stopped: Cases stopped in each round (round, trial).
        stopped_covered: Those of them that are covered (round, trial).
        case_tests: How often each case was a test case (case,).
        case_covered: How often it was covered (case,).
        case_cost: The sum of its costs (case,).
    """

    weight: float
    cost: FloatArray
    covered: FloatArray
    early: FloatArray
    early_covered: FloatArray
    width: FloatArray
    center_error: FloatArray
    worst_error: FloatArray
    worst_groups: FloatArray
    stopped: FloatArray
    stopped_covered: FloatArray
    case_tests: FloatArray
    case_covered: FloatArray
    case_cost: FloatArray


@dataclass(frozen=True)
class Scans:
    """Stored scans to replay.

    Arguments:
        seen: The cases in the light of the policy's rules.
        targets: (round, case, task).
        accelerations: Of the rounds.
        weight: How much each case counts (case,).
        group_of_case: The group of each case, numbered from 0; each its own where unknown.
        allowance: For whole-group stopping: below which threshold each group stops
            (round, group); empty otherwise.
    """

    seen: Examination
    targets: FloatArray
    accelerations: FloatArray
    weight: FloatArray
    group_of_case: NDArray[np.int64]
    allowance: FloatArray

    @property
    def cost(self) -> FloatArray:
        """The share of measurements at each round, 1 at the end."""
        return costs(self.accelerations)


def replay(scans: Scans, splitting: Splitting, thresholds: FloatArray) -> Replayed:
    """Replay the test cases of every trial with its own thresholds.

    Arguments:
        scans: The stored scans.
        splitting: Who is split and how.
        thresholds: The calibrated threshold of each round and trial (round, trial).
    """
    rounds, cases = scans.seen.score.shape
    sums = np.zeros((8 + 2 * rounds, splitting.trials))
    totals = np.zeros((3, cases))
    if splitting.is_compiled and _is_anchored(scans):
        numbers = np.arange(splitting.trials)
        _compiled(scans, _side_by_side(scans), splitting, numbers, thresholds, sums, totals)
    else:
        for t in range(splitting.trials):
            _one_trial(scans, splitting, thresholds[:, t], t, sums, totals)
    return _replayed(sums, totals, splitting, rounds)


def replay_each(
    trial: Callable[[int], tuple[Scans, FloatArray]], splitting: Splitting, rounds: int
) -> Replayed:
    """Replay the test cases of every trial with rules and thresholds of its own.

    Arguments:
        trial: The scans and the threshold of each round, in the light of a trial's own rules;
            trials differ in the scales of intervals and what follows from them.
        splitting: Who is split and how.
        rounds: The number of rounds.
    """
    sums = np.zeros((8 + 2 * rounds, splitting.trials))
    totals = np.zeros((3, splitting.n_cases))
    arrays: _Arrays | None = None
    for t in range(splitting.trials):
        scans, thresholds = trial(t)
        if not (splitting.is_compiled and _is_anchored(scans)):
            _one_trial(scans, splitting, thresholds, t, sums, totals)
            continue
        arrays = arrays._replace(scale=_scales(scans)) if arrays else _side_by_side(scans)
        column, number = np.zeros((len(sums), 1)), np.array([t])
        _compiled(scans, arrays, splitting, number, thresholds[:, None], column, totals)
        sums[:, t] = column[:, 0]
    return _replayed(sums, totals, splitting, rounds)


def _replayed(sums: FloatArray, totals: FloatArray, splitting: Splitting, rounds: int) -> Replayed:
    by_round = sums[8 : 8 + rounds], sums[8 + rounds :]
    return Replayed(float(splitting.n_test), *sums[:8], *by_round, *totals)  # type: ignore[call-arg]  # eight and three rows


def _one_trial(
    scans: Scans, splitting: Splitting, thresholds: FloatArray, t: int, sums: Any, totals: Any
) -> None:
    fold = test_folds(splitting.seed, t, 1, splitting.units, splitting.n_test)[0]
    of_case = splitting.unit_of_case
    cases = np.flatnonzero(fold[of_case] if len(of_case) else fold)
    seen, rounds = scans.seen, len(thresholds)
    q = thresholds[:, None]
    if scans.allowance.size:
        stops = (q < scans.allowance)[:, of_case]
    else:
        stops = (seen.lowest <= q) & (q < seen.largest)
    stopped = np.vstack([stops, np.ones((1, stops.shape[1]), bool)]).argmax(axis=0)[cases]
    hit = np.ones(len(cases))
    w = scans.weight[cases]
    worst = np.full(int(scans.group_of_case.max()) + 1, -1.0)
    for k in range(rounds):
        here = cases[stopped == k]
        if not here.size:
            continue
        missed = seen.score[k, here] > thresholds[k]
        hit[stopped == k] = ~missed
        width, error = _report(scans, k, thresholds[k], here)
        wk = scans.weight[here]
        sums[2, t] += wk.sum()
        sums[3, t] += (wk * ~missed).sum()
        sums[4, t] += (wk * width).sum()
        sums[5, t] += (wk * error).sum()
        sums[8 + k, t] += wk.sum()
        sums[8 + rounds + k, t] += (wk * ~missed).sum()
        np.maximum.at(worst, scans.group_of_case[here], error)
    sums[0, t] = (w * scans.cost[stopped]).sum()
    sums[1, t] = (w * hit).sum()
    sums[6, t] = worst[worst >= 0].sum()
    sums[7, t] = (worst >= 0).sum()
    totals[0, cases] += 1
    totals[1, cases] += hit
    totals[2, cases] += scans.cost[stopped]


def _report(
    scans: Scans, k: int, threshold: float, cases: NDArray[np.int64]
) -> tuple[FloatArray, FloatArray]:
    """Width and distance of the target from the centre, the largest over tasks."""
    interval = joint_report(scans.seen.rounds[k], threshold)[cases]
    lower, upper = interval.lower.reshape(len(cases), -1), interval.upper.reshape(len(cases), -1)
    z = scans.targets[k, cases]
    with np.errstate(invalid="ignore"):
        center = np.where(
            np.isinf(lower), upper, np.where(np.isinf(upper), lower, (lower + upper) / 2)
        )
    return (upper - lower).max(axis=1), np.abs(z - center).max(axis=1)


class _Arrays(NamedTuple):
    """What compiled loops report from: of each task in each round, (round, task, ...)."""

    targets: FloatArray
    low: FloatArray
    high: FloatArray
    scale: FloatArray
    floor: FloatArray
    ceiling: FloatArray
    window_from: FloatArray
    is_logit: BoolArray
    link_low: FloatArray
    link_high: FloatArray


def _is_anchored(scans: Scans) -> bool:
    """Whether reports are so simple that compiled loops know them."""
    return all(isinstance(e.family, AnchoredFamily) for row in scans.seen.rounds for e in row)


def _scales(scans: Scans) -> FloatArray:
    return np.array([[e.family.scale for e in row] for row in scans.seen.rounds])  # type: ignore[attr-defined]  # anchored


def _side_by_side(scans: Scans) -> _Arrays:
    seen = scans.seen.rounds
    families: list[list[Any]] = [[e.family for e in row] for row in seen]
    low, high = (np.array([[getattr(f, n) for f in r] for r in families]) for n in ("low", "high"))
    sides = np.array([[f.side for f in row] for row in families])[..., None]
    return _Arrays(
        targets=np.ascontiguousarray(np.swapaxes(scans.targets, 1, 2)),
        # A one-sided report is open on the other side.
        low=np.where(sides == "upper", -np.inf, low),
        high=np.where(sides == "lower", np.inf, high),
        scale=_scales(scans),
        floor=np.array([[e.window.lower for e in row] for row in seen]),
        ceiling=np.array([[e.window.upper for e in row] for row in seen]),
        window_from=np.array([[e.window_from for e in row] for row in seen]),
        is_logit=np.array([[not f.link.is_identity for f in row] for row in families]),
        link_low=np.array([[f.link.low for f in row] for row in families]),
        link_high=np.array([[f.link.high for f in row] for row in families]),
    )


def _compiled(
    scans: Scans,
    arrays: _Arrays,
    splitting: Splitting,
    numbers: NDArray[np.int64],
    thresholds: FloatArray,
    sums: Any,
    totals: Any,
) -> None:
    from taskuq.decide import kernels

    kernels.replay(
        np.uint64(splitting.seed), numbers, splitting.units, splitting.n_test,
        byte_threshold(splitting.units, splitting.n_test), splitting.unit_of_case,
        scans.group_of_case, int(scans.group_of_case.max()) + 1, scans.weight,
        np.ascontiguousarray(thresholds), scans.seen.lowest, scans.seen.largest, scans.seen.score,
        *arrays, np.ascontiguousarray(scans.allowance), scans.cost, sums, *totals,
    )  # fmt: skip
