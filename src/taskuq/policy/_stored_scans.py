"""Simulation of stops on stored scans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskuq.conformal._family import LinearFamily
from taskuq.conformal._splits import Splits, byte_threshold, covering_quantile
from taskuq.interval import BoolArray, FloatArray
from taskuq.policy._rules import StoppingStatistics, joint_report
from taskuq.policy._stopping import costs


@dataclass(frozen=True)
class SimulatedStops:
    weight: float
    cost: FloatArray
    covered: FloatArray
    early: FloatArray
    early_covered: FloatArray
    width: FloatArray
    center_error: FloatArray
    worst_error: FloatArray
    worst_groups: FloatArray
    kept: FloatArray
    plain_cost: FloatArray
    cases: FloatArray
    stopped: FloatArray
    stopped_covered: FloatArray
    # Splits in which each case is tested, covered, its cost, early stops and their width.
    by_case: FloatArray


@dataclass(frozen=True)
class StoredScans:
    statistics: StoppingStatistics
    targets: FloatArray
    accelerations: FloatArray
    weight: FloatArray
    group_of_case: NDArray[np.int64]
    unit_of_case: NDArray[np.int64]
    enough: NDArray[np.int64]
    # Group of each case, if all cases of a group stop together.
    together: NDArray[np.int64] | None

    @property
    def cost(self) -> FloatArray:
        return costs(self.accelerations)

    def covered_from(self, thresholds: FloatArray) -> FloatArray:
        """Return the smallest threshold at which each report covers the target, (round, case)."""
        found = [
            covering_quantile(scores, np.unique(thresholds[k]), partial(self._contains, k))
            for k, scores in enumerate(self.statistics.score)
        ]
        return np.stack(found)

    def covered_at(self, thresholds: FloatArray) -> FloatArray:
        """Return the smallest covering thresholds, at most the given ones where these cover."""
        found = self.statistics.score.copy()
        for k, row in enumerate(thresholds):
            q = np.broadcast_to(row, found[k].shape)
            cases = np.flatnonzero((found[k] > q) & (q < self.statistics.largest[k]))
            # A window is the same at any threshold, so it has no ties.
            if cases.size and not self.statistics.rounds[k][0].is_risk:
                inside = cases[self._contains(k, cases, q[cases])]
                found[k, inside] = q[inside]
        return found

    def _contains(self, k: int, cases: NDArray[np.int64], at: FloatArray) -> BoolArray:
        inside = [
            e.select(cases).report(at).contains(self.targets[k, cases, t])
            for t, e in enumerate(self.statistics.rounds[k])
        ]
        return np.asarray(np.all(inside, axis=0))

    def covered_weight(self, hit: BoolArray, chosen: BoolArray) -> float:
        """Return the weight of the chosen units for which the guarantee holds."""
        if not self.enough.size:
            return float((self.weight * hit)[chosen].sum())
        units = np.unique(self.unit_of_case[chosen])
        return float((np.bincount(self.unit_of_case, weights=hit) >= self.enough)[units].sum())


def simulate_splits(
    scans: StoredScans, splitting: Splits, thresholds: FloatArray
) -> SimulatedStops:
    """Apply policies to the test cases of every split."""
    sums, by_case = _empty_sums(scans, splitting, len(thresholds))
    starts, rounds = scans.covered_from(thresholds), scans.statistics.rounds
    is_linear = all(isinstance(e.family, LinearFamily) for row in rounds for e in row)
    if splitting.is_compiled and is_linear:
        _run_kernel(scans, splitting, thresholds, starts, sums, by_case)
    else:
        for t, level in enumerate(thresholds.T):
            _simulate_split(scans, splitting, level, starts, t, sums, by_case)
    return _as_stops(sums, splitting, len(thresholds), by_case)


def simulate_each_split(
    calibrate: Callable[[int], tuple[StoredScans, FloatArray]], splitting: Splits, rounds: int
) -> SimulatedStops:
    """Apply rules and thresholds, (round,) or (round, case), of each split to its test cases."""
    for t in range(splitting.trials):
        scans, thresholds = calibrate(t)
        if t == 0:
            sums, by_case = _empty_sums(scans, splitting, rounds)
        starts = scans.covered_at(thresholds)
        _simulate_split(scans, splitting, thresholds, starts, t, sums, by_case)
    return _as_stops(sums, splitting, rounds, by_case)


def _empty_sums(
    scans: StoredScans, splitting: Splits, rounds: int
) -> tuple[FloatArray, FloatArray]:
    return np.zeros((11 + 2 * rounds, splitting.trials)), np.zeros((5, scans.statistics.cases))


def _as_stops(
    sums: FloatArray, splitting: Splits, rounds: int, by_case: FloatArray
) -> SimulatedStops:
    by_round = sums[11 : 11 + rounds], sums[11 + rounds :]
    return SimulatedStops(float(splitting.n_test), *sums[:11], *by_round, by_case)  # type: ignore[call-arg]  # eleven rows


def _simulate_split(
    scans: StoredScans,
    splitting: Splits,
    thresholds: FloatArray,
    covered_from: FloatArray,
    t: int,
    sums: Any,
    by_case: FloatArray,
) -> None:
    chosen = splitting.case_folds(np.array([t]))[0].astype(bool)
    stopped, hit = scans.statistics.outcomes(thresholds, scans.together, covered_from)
    rounds, w = len(thresholds), scans.weight
    worst = np.full(int(scans.group_of_case.max()) + 1, -1.0)
    for k in range(rounds):
        here = np.flatnonzero(chosen & (stopped == k))
        if not here.size:
            continue
        report, z = joint_report(scans.statistics.rounds[k], thresholds[k])[here], scans.targets[k]
        lower, upper = (end.reshape(len(here), -1) for end in (report.lower, report.upper))
        with np.errstate(invalid="ignore"):
            middle = np.where(np.isinf(upper), lower, (lower + upper) / 2)
        center = np.where(np.isinf(lower), upper, middle)
        # Of several tasks, the largest.
        width, error = (upper - lower).max(axis=1), np.abs(z[here] - center).max(axis=1)
        wk, covered = w[here], (w * hit)[here].sum()
        sums[2, t] += wk.sum()
        sums[3, t] += covered
        sums[4, t] += (wk * width).sum()
        sums[5, t] += (wk * error).sum()
        sums[11 + k, t] += wk.sum()
        sums[11 + rounds + k, t] += covered
        by_case[3, here] += 1
        by_case[4, here] += width
        np.maximum.at(worst, scans.group_of_case[here], error)
    cost = scans.cost[stopped]
    by_case[:3] += [chosen, chosen & hit, chosen * cost]
    sums[0, t] = (w * cost)[chosen].sum()
    sums[1, t] = (w * hit)[chosen].sum()
    sums[6, t] = worst[worst >= 0].sum()
    sums[7, t] = (worst >= 0).sum()
    sums[8, t] = scans.covered_weight(hit, chosen)
    sums[9, t] = cost[chosen].sum()
    sums[10, t] = chosen.sum()


def _run_kernel(
    scans: StoredScans,
    splitting: Splits,
    thresholds: FloatArray,
    covered_from: FloatArray,
    sums: FloatArray,
    by_case: FloatArray,
) -> None:
    from taskuq.conformal import _kernels as kernels

    rounds, together = scans.statistics.rounds, scans.together
    allowance = np.empty((0, 0)) if together is None else scans.statistics.allowance(together)
    families: list[list[Any]] = [[e.family for e in row] for row in rounds]
    low, high, scale, sides = (
        np.array([[getattr(f, name) for f in row] for row in families])
        for name in ("low", "high", "scale", "side")
    )
    floor, ceiling, window_from = (
        np.array([[get(e) for e in row] for row in rounds])
        for get in map(attrgetter, ("window.lower", "window.upper", "window_from"))
    )
    is_identity, link_low, link_high = (
        np.array([[getattr(f.link, name) for f in row] for row in families])
        for name in ("is_identity", "low", "high")
    )
    # A one-sided report is open on the other side.
    low = np.where(sides[..., None] == "upper", -np.inf, low)
    high = np.where(sides[..., None] == "lower", np.inf, high)
    kernels.replay(
        np.uint64(splitting.seed), np.arange(splitting.trials), splitting.units, splitting.n_test,
        byte_threshold(splitting.units, splitting.n_test), splitting.unit_of_case,
        scans.group_of_case, int(scans.group_of_case.max()) + 1, scans.weight,
        np.ascontiguousarray(thresholds), scans.statistics.lowest, scans.statistics.largest,
        covered_from, np.ascontiguousarray(np.swapaxes(scans.targets, 1, 2)),
        low, high, scale, floor, ceiling, window_from, ~is_identity, link_low, link_high,
        np.ascontiguousarray(allowance), scans.cost, scans.enough, sums,
        by_case,
    )  # fmt: skip
