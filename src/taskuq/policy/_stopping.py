"""Thresholds, early-stop guarantees, certificate."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from taskuq.conformal._guarantee import Guarantee
from taskuq.conformal._quantiles import BettingEProcess, exact_alpha
from taskuq.conformal._units import Unit
from taskuq.interval import BoolArray, FloatArray
from taskuq.policy._goal import Goal, Goals
from taskuq.policy._rules import StoppingStatistics

# The loss of each group at thresholds in rising order (group, threshold).
Losses: TypeAlias = Callable[[FloatArray], FloatArray]
# Losses computed at a time, so that they stay in cache.
BLOCK = 200_000
# Thresholds looked at in each step of a search.
STEP = 64


@dataclass(frozen=True)
class Calibrator(ABC):
    """Find the thresholds that give a guarantee."""

    promise: Guarantee
    unit: Unit
    index: NDArray[np.int64]

    @abstractmethod
    def quantiles(self, scores: FloatArray) -> FloatArray:
        """Return the quantile of each row of scores (row, case) that keeps the promise."""

    @property
    @abstractmethod
    def units(self) -> int:
        """The number of units in a calibration set."""

    @abstractmethod
    def found(self, find: Callable[[BoolArray], float]) -> FloatArray:
        """Return what is found in a calibration set, or in each, told its units (unit,)."""

    @abstractmethod
    def smallest(self, thresholds: FloatArray, losses: Losses) -> FloatArray:
        """Return the smallest threshold at which the groups lose no more than is allowed."""

    def stopping(self, seen: StoppingStatistics) -> FloatArray:
        """Return the threshold, along a first axis, at which stopped reports keep the promise."""
        if self.unit.stops_together:
            allowance = seen.allowance(self.index)
            # Losses change only where a group starts to stop or a case starts to be covered.
            sure = seen.sure_allowance(self.index)
            ends = [allowance if sure is None else sure, allowance, seen.score]
            grid = np.unique(np.concatenate([*(end.ravel() for end in ends), [-np.inf]]))

            def losses(some: FloatArray) -> FloatArray:
                return _group_losses(allowance, seen.score, self.index, some, self.unit, sure)

            least = self.smallest(grid, losses)[None]
            return np.asarray(np.maximum(least, seen.lowest.max()))
        Lambda = stopping_score(seen.lowest, seen.largest, seen.score, seen.surely)
        # A larger threshold keeps the promise too, and below every opening no case could stop.
        return np.asarray(np.maximum(self.quantiles(Lambda[None]), seen.lowest.min()))


def stopping_score(
    lowest: FloatArray,
    largest: FloatArray,
    score: FloatArray,
    surely: FloatArray | None = None,
) -> FloatArray:
    """Return the supremum of the thresholds at which the policy stops with a miss."""
    sure = largest if surely is None else surely
    result = np.full(largest.shape[1], -np.inf)
    for k in range(len(largest)):
        top = np.minimum(largest[k], score[k])
        # Thresholds just below `top` may stop earlier; go down to where no earlier round stops.
        for _ in range(k):
            for j in range(k):
                taken = (lowest[j] < top) & (top <= sure[j])
                top = np.where(taken, lowest[j], top)
        result = np.where(top > lowest[k], np.maximum(result, top), result)
    return np.asarray(result)


def _group_losses(
    allowance: FloatArray,
    score: FloatArray,
    index: NDArray[np.int64],
    thresholds: FloatArray,
    unit: Unit,
    surely: FloatArray | None = None,
) -> FloatArray:
    """Return the loss of each group at each threshold, made monotone, (group, threshold)."""
    step = max(1, BLOCK // allowance.shape[1])
    blocks = [thresholds[start : start + step] for start in range(0, len(thresholds), step)]
    sure = allowance if surely is None else surely
    return np.hstack([_losses(allowance, score, index, block, unit, sure) for block in blocks])


def _losses(
    allowance: FloatArray,
    score: FloatArray,
    index: NDArray[np.int64],
    thresholds: FloatArray,
    unit: Unit,
    sure: FloatArray,
) -> FloatArray:
    groups, count = allowance.shape[1], len(thresholds)
    sizes = np.bincount(index, minlength=groups)[:, None]
    losses = np.zeros((groups, count))
    before = np.full((groups, 1), -np.inf)
    for k in range(len(allowance)):
        # A case is missed at all thresholds below its score; where an earlier round stops below
        # `before`, only what is missed there counts.
        place = index * (count + 1) + np.searchsorted(thresholds, score[k])
        found = np.bincount(place, minlength=groups * (count + 1)).reshape(groups, count + 1)
        missed = sizes - np.cumsum(found[:, :-1], axis=1)
        at_before = np.bincount(index[score[k] > before[index, 0]], minlength=groups)[:, None]
        loss = unit.loss(np.where(thresholds < before, at_before, missed), sizes)
        stops = np.maximum(thresholds, before) < allowance[k][:, None]
        losses = np.maximum(losses, np.where(stops, loss, 0.0))
        before = np.maximum(before, sure[k][:, None])
    return losses


def smallest_threshold(thresholds: FloatArray, totals: FloatArray, allowed: float) -> FloatArray:
    """Return the smallest threshold with an allowed total loss, or infinity."""
    # Shares of cases are not exact in floats; a meeting of sums counts as allowed.
    good = (totals <= allowed + 1e-9) & (allowed >= 0)
    first = np.where(good.any(axis=-1), good.argmax(axis=-1), len(thresholds))
    return np.asarray(np.append(thresholds, np.inf)[first])


def search_allowed(thresholds: FloatArray, losses: Losses, allowed: float) -> FloatArray:
    """Return the smallest threshold at which the groups' total is allowed, looking at few of them."""
    while len(thresholds) > STEP:
        step = -(-len(thresholds) // STEP)
        # The first part whose last threshold is allowed has the smallest one; else the last part.
        ends = thresholds[step - 1 : -1 : step]
        numbers, totals = np.arange(float(len(ends))), losses(ends).sum(axis=0)
        part = int(np.minimum(smallest_threshold(numbers, totals, allowed), len(ends)))
        thresholds = thresholds[part * step : (part + 1) * step]
    return smallest_threshold(thresholds, losses(thresholds).sum(axis=0), allowed)


def smallest_certified(thresholds: FloatArray, losses: FloatArray, bets: BettingEProcess) -> float:
    """Return the smallest threshold from which on all losses are certified; infinity for none."""
    totals = losses.sum(axis=0)
    # Losses that add up to the same are the same: each is looked at once, where it begins.
    begins = np.flatnonzero(np.append(True, totals[1:] < totals[:-1]))
    failed = np.flatnonzero(~bets.certify(losses[:, begins]))
    first = failed[-1] + 1 if failed.size else 0
    return float(thresholds[begins[first]]) if first < len(begins) else np.inf


def guarantee_at_stop(goal: Goal | Goals, promise: str) -> str:
    """Return the guarantee statement at the stop."""
    what = promise.removeprefix("Guaranteed: ")
    stopped = f"Guaranteed for the report at the stop, where {goal.sentence}: {what}"
    return f"{stopped} A scan that measures everything knows the target."


def make_certificate(
    seen: StoppingStatistics,
    thresholds: FloatArray,
    calibrator: Calibrator,
    accelerations: FloatArray,
    certainty: float,
    within: Callable[[float], StoppingStatistics] | None = None,
) -> dict[str, Any]:
    """Return the mean acceleration at calibration, and the certified one if there is."""
    exact_alpha(certainty, "certainty")
    if np.isnan(accelerations).any():
        return {}
    cost, of_cases = (
        _cost(seen, seen.largest, thresholds, calibrator, accelerations, every_case_alike=alike)
        for alike in (False, True)
    )
    found: dict[str, Any] = {
        "mean_over": calibrator.unit.mean_unit,
        "mean_acceleration": 1 / cost,
        "mean_acceleration_of_cases": 1 / of_cases,
    }
    # Going on is monotone in one threshold, which is what the certificate rests on.
    if len(set(thresholds)) > 1 or not seen.is_always_open:
        return found
    units, failing = int(calibrator.index.max()) + 1, float(exact_alpha(certainty, "certainty"))
    groups, slowest = calibrator.unit.is_group, seen.largest
    if within is not None:
        # Half of the failures are left to what was learnt: two quantiles of each round and task,
        # each off to both sides.
        failing /= 2
        quantiles = 4 * len(accelerations) * len(seen.rounds[0])
        surely = within(2 * _deviation(units, failing / quantiles, groups=groups)).surely
        assert surely is not None
        slowest = surely
    cost = _cost(seen, slowest, thresholds, calibrator, accelerations)
    found["certified"] = _certified_acceleration(cost, accelerations, units, failing, groups=groups)
    found["delta"] = certainty
    return found


def _cost(
    seen: StoppingStatistics,
    largest: FloatArray,
    thresholds: FloatArray,
    calibrator: Calibrator,
    accelerations: FloatArray,
    *,
    every_case_alike: bool = False,
) -> float:
    """The mean cost of the calibration cases where rounds stop below the given thresholds."""
    unit, index = calibrator.unit, calibrator.index
    weight = np.ones(len(index)) if every_case_alike else unit.weights(index)
    lowest = seen.lowest
    if unit.stops_together:
        largest = seen.of_groups(largest, index)
        lowest = np.full(largest.shape, -np.inf)
        weight = np.asarray(np.bincount(index, weights=weight), dtype=float)
    return mean_cost(lowest, largest, accelerations, thresholds, weight)


def mean_cost(
    lowest: FloatArray,
    largest: FloatArray,
    accelerations: FloatArray,
    threshold: FloatArray | float,
    weight: FloatArray | None = None,
) -> float:
    r"""Return the mean share of measurements that cases take, :math:`\mathbb E[1 / R_T]`."""
    at = np.broadcast_to(np.asarray(threshold, float), len(largest))[:, None]
    stops = (lowest <= at) & (at < largest)
    stopped = np.concatenate([stops, np.ones((1, stops.shape[1]), bool)]).argmax(axis=0)
    return float(np.average(costs(accelerations)[stopped], weights=weight))


def costs(accelerations: FloatArray) -> FloatArray:
    """Return the share of measurements at each round, and at the end; 0 where it is unknown."""
    known = np.where(np.isnan(accelerations), np.inf, accelerations)
    return np.append(1 / known, 1.0)


def _certified_acceleration(
    cost: float, accelerations: FloatArray, units: int, delta: float, *, groups: bool
) -> float:
    """Return an average acceleration that new units exceed, but for a share delta of calibrations."""
    failing = float(exact_alpha(delta, "delta")) / len(accelerations)
    epsilon = _deviation(units, failing, groups=groups)
    first = accelerations[0] if np.isfinite(accelerations[0]) else np.inf
    return float(1 / min(1.0, cost + (1 - 1 / first) * epsilon))


def _deviation(units: int, failing: float, *, groups: bool) -> float:
    """Return how far a distribution function exceeds the one seen, but for so many failures."""
    x = math.log(1 / failing)
    if groups:
        while math.e * x * math.exp(-x) > failing:
            x += 0.01
    return math.sqrt(x / (2 * units))


# The share of units from which the thresholds to test are taken.
EARLY_TUNING_SHARE = 0.1
# How many thresholds are tested at most.
RUNGS = 64


@dataclass(frozen=True)
class TuningCases:
    """Held-out cases evaluated under the rules."""

    seen: StoppingStatistics
    index: NDArray[np.int64]


class _EarlyStops(NamedTuple):
    """Early stops and miscoverage per case and threshold."""

    early: BoolArray
    missed: BoolArray


def _stops_at(
    seen: StoppingStatistics, thresholds: FloatArray, unit: Unit, index: NDArray[np.int64]
) -> _EarlyStops:
    """Replay the stop of each case at each of several thresholds."""
    largest = seen.allowance(index)[:, index] if unit.stops_together else seen.largest
    at = thresholds[:, None]
    early = np.zeros((len(thresholds), seen.cases), dtype=bool)
    missed = early.copy()
    for lowest, top, score in zip(seen.lowest, largest, seen.score, strict=True):
        here = ~early & (lowest <= at) & (at < top)
        early |= here
        missed |= here & (score > at)
    return _EarlyStops(early, missed)


def threshold_grid(tuning: TuningCases, calibrator: Calibrator) -> FloatArray:
    """Return thresholds to test, from conservative to aggressive."""
    found = np.unique(tuning.seen.largest[np.isfinite(tuning.seen.largest)])[::-1]
    if not found.size:
        return found
    rungs = found[np.unique(np.linspace(0, len(found) - 1, RUNGS).round().astype(np.int64))]
    unit, promise = calibrator.unit, calibrator.promise
    weight = unit.weights(tuning.index) / (tuning.index.max() + 1)
    early = _stops_at(tuning.seen, rungs, unit, tuning.index).early @ weight
    enough = min(1.0, promise._unit.needed(promise.alpha, promise.delta) / calibrator.units)
    return rungs[int((early >= (early.max() ** 2 * enough) ** (1 / 3)).argmax()) :]


def last_certified(
    seen: StoppingStatistics, calibrator: Calibrator, rungs: FloatArray
) -> FloatArray:
    """Return the last threshold before the first failed test (fixed-sequence testing)."""
    promise, unit, index = calibrator.promise, calibrator.unit, calibrator.index
    assert promise.delta is not None
    delta = promise.delta
    stops = _stops_at(seen, rungs, unit, index)
    weight = unit.weights(index)[:, None]
    early, missed = np.zeros((2, int(index.max()) + 1, len(rungs)))
    np.add.at(early, index, weight * stops.early.T)
    np.add.at(missed, index, weight * stops.missed.T)
    certify = _certified_groups if unit.is_group else _certified_cases

    def walk(kept: BoolArray) -> float:
        certified = certify(early[kept], missed[kept], promise.alpha, delta)
        return float(np.append(np.inf, rungs)[np.append(certified, False).argmin()])

    return calibrator.found(walk)[None]


def _certified_cases(
    early: FloatArray, missed: FloatArray, alpha: float, delta: float
) -> BoolArray:
    from scipy.special import bdtr

    stopped, lost = (np.rint(each.sum(axis=0)).astype(np.int64) for each in (early, missed))
    return np.asarray(bdtr(lost, stopped, alpha) <= delta)


def _certified_groups(
    early: FloatArray, missed: FloatArray, alpha: float, delta: float
) -> BoolArray:
    return BettingEProcess(alpha, delta).certify(missed + alpha * (1 - early), early > 0)
