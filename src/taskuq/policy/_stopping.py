"""Calibrated thresholds, guarantees for early stops and certified acceleration."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from taskuq.conformal._guarantee import Guarantee
from taskuq.conformal._quantiles import BettingEProcess, exact_alpha
from taskuq.conformal._units import Unit
from taskuq.interval import BoolArray, FloatArray
from taskuq.policy._goal import Goal, Goals
from taskuq.policy._rules import StoppingStatistics

# Loss of each group at thresholds in rising order (group, threshold).
Losses: TypeAlias = Callable[[FloatArray], FloatArray]
# Losses computed at a time, so that they stay in cache; thresholds of each step of a search.
BLOCK, STEP = 200_000, 64


@dataclass(frozen=True)
class Calibrator(ABC):
    guarantee: Guarantee
    unit: Unit
    index: NDArray[np.int64]

    @property
    @abstractmethod
    def units(self) -> int:
        """Number of units in a calibration set."""

    @abstractmethod
    def quantiles(self, scores: FloatArray) -> FloatArray:
        """Return the guaranteed quantile of each row of scores (row, case)."""

    @abstractmethod
    def map_sets(self, function: Callable[[BoolArray], float]) -> FloatArray:
        """Apply a function to the units (unit,) of the calibration set, or of each set."""

    @abstractmethod
    def smallest(self, thresholds: FloatArray, losses: Losses) -> FloatArray:
        """Return the smallest threshold at which the total loss of the groups is allowed."""

    def stopping_threshold(self, statistics: StoppingStatistics) -> FloatArray:
        """Return the threshold that guarantees reports at the stop, with a leading axis."""
        if self.unit.stops_together:
            score, allowance = statistics.score, statistics.allowance(self.index)
            sure = allowance
            if statistics.surely is not None:
                sure = statistics.group_thresholds(statistics.surely, self.index)
            # Losses change only where a group starts to stop or a case starts to be covered.
            ends = np.concatenate([sure.ravel(), allowance.ravel(), score.ravel(), [-np.inf]])

            def losses(thresholds: FloatArray) -> FloatArray:
                return _group_losses(allowance, score, self.index, thresholds, self.unit, sure)

            least = self.smallest(np.unique(ends), losses)[None]
            return np.asarray(np.maximum(least, statistics.lowest.max()))
        Lambda = stopping_score(
            statistics.lowest, statistics.largest, statistics.score, statistics.surely
        )
        # A larger threshold keeps the guarantee, and below every opening no case could stop.
        return np.asarray(np.maximum(self.quantiles(Lambda[None]), statistics.lowest.min()))


def stopping_score(
    lowest: FloatArray, largest: FloatArray, score: FloatArray, surely: FloatArray | None = None
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
    sure: FloatArray | None = None,
) -> FloatArray:
    """Return the monotone loss of each group at each threshold, (group, threshold)."""
    sure = allowance if sure is None else sure
    groups, step = allowance.shape[1], max(1, BLOCK // allowance.shape[1])
    sizes = np.bincount(index, minlength=groups)[:, None]
    blocks = []
    for start in range(0, len(thresholds), step):
        block = thresholds[start : start + step]
        count = len(block)
        losses, before = np.zeros((groups, count)), np.full((groups, 1), -np.inf)
        for k in range(len(allowance)):
            # A case is missed at all thresholds below its score; where an earlier round stops
            # below `before`, only what is missed there counts.
            place = index * (count + 1) + np.searchsorted(block, score[k])
            counts = np.bincount(place, minlength=groups * (count + 1)).reshape(groups, count + 1)
            missed = sizes - np.cumsum(counts[:, :-1], axis=1)
            at_before = np.bincount(index[score[k] > before[index, 0]], minlength=groups)[:, None]
            loss = unit.loss(np.where(block < before, at_before, missed), sizes)
            stops = np.maximum(block, before) < allowance[k][:, None]
            losses = np.maximum(losses, np.where(stops, loss, 0.0))
            before = np.maximum(before, sure[k][:, None])
        blocks.append(losses)
    return np.hstack(blocks)


def smallest_threshold(thresholds: FloatArray, totals: FloatArray, allowed: float) -> FloatArray:
    """Return the smallest threshold with an allowed total loss; infinity if there is none."""
    # Fractions of cases are not exact in floats; equal sums count as allowed.
    good = (totals <= allowed + 1e-9) & (allowed >= 0)
    first = np.where(good.any(axis=-1), good.argmax(axis=-1), len(thresholds))
    return np.asarray(np.append(thresholds, np.inf)[first])


def search_threshold(thresholds: FloatArray, losses: Losses, allowed: float) -> FloatArray:
    while len(thresholds) > STEP:
        step = -(-len(thresholds) // STEP)
        # The first part whose last threshold is allowed has the smallest one; else the last part.
        ends = thresholds[step - 1 : -1 : step]
        numbers, totals = np.arange(float(len(ends))), losses(ends).sum(axis=0)
        part = int(np.minimum(smallest_threshold(numbers, totals, allowed), len(ends)))
        thresholds = thresholds[part * step : (part + 1) * step]
    return smallest_threshold(thresholds, losses(thresholds).sum(axis=0), allowed)


def smallest_certified(thresholds: FloatArray, losses: FloatArray, bets: BettingEProcess) -> float:
    """Return the smallest threshold from which all losses are certified; infinity if none."""
    totals = losses.sum(axis=0)
    # Losses with the same total are the same: each is tested once, where it begins.
    begins = np.flatnonzero(np.append(True, totals[1:] < totals[:-1]))
    failed = np.flatnonzero(~bets.certify(losses[:, begins]))
    first = failed[-1] + 1 if failed.size else 0
    return float(thresholds[begins[first]]) if first < len(begins) else np.inf


def guarantee_at_stop(goal: Goal | Goals, guarantee: str) -> str:
    what = guarantee.removeprefix("Guaranteed: ")
    return (
        f"Guaranteed for the report at the stop, where {goal.statement}: {what} "
        "A fully sampled scan yields the target itself."
    )


def make_certificate(
    statistics: StoppingStatistics,
    thresholds: FloatArray,
    calibrator: Calibrator,
    accelerations: FloatArray,
    delta: float,
    with_margin: Callable[[float], StoppingStatistics] | None = None,
) -> dict[str, Any]:
    """Return the mean acceleration on the calibration set and its certified lower bound, if any."""
    failing = float(exact_alpha(delta, "certificate_alpha"))
    if np.isnan(accelerations).any():
        return {}
    unit, index = calibrator.unit, calibrator.index

    def cost(largest: FloatArray, weight: FloatArray) -> float:
        if unit.stops_together:
            largest = statistics.group_thresholds(largest, index)
            weight = np.asarray(np.bincount(index, weights=weight), dtype=float)
        lowest = np.full(largest.shape, -np.inf) if unit.stops_together else statistics.lowest
        return mean_cost(lowest, largest, accelerations, thresholds, weight)

    weights = unit.weights(index)
    certificate: dict[str, Any] = {
        "mean_over": unit.mean_unit,
        "mean_acceleration": 1 / cost(statistics.largest, weights),
        "mean_acceleration_of_cases": 1 / cost(statistics.largest, np.ones(len(index))),
    }
    # The certificate rests on stops that are monotone in one threshold.
    if len(set(thresholds)) > 1 or not statistics.is_always_open:
        return certificate
    units, slowest = int(index.max()) + 1, statistics.largest
    if with_margin is not None:
        # Half of the failures are left to what was learned in each round and task: three medians,
        # and shifts at both ends of their range, each off to both sides.
        failing /= 2
        quantiles = 10 * len(accelerations) * len(statistics.rounds[0])
        margin = 2 * _deviation(units, failing / quantiles, groups=unit.is_group)
        surely = with_margin(margin).surely
        assert surely is not None
        slowest = surely
    certificate["certified"] = _certified_acceleration(
        cost(slowest, weights), accelerations, units, failing, groups=unit.is_group
    )
    certificate["delta"] = delta
    return certificate


def mean_cost(
    lowest: FloatArray,
    largest: FloatArray,
    accelerations: FloatArray,
    threshold: FloatArray | float,
    weight: FloatArray | None = None,
) -> float:
    r"""Return the mean sampled fraction at the stop, :math:`\mathbb E[1 / R_T]`."""
    at = np.broadcast_to(np.asarray(threshold, float), len(largest))[:, None]
    stops = (lowest <= at) & (at < largest)
    stopped = np.concatenate([stops, np.ones((1, stops.shape[1]), bool)]).argmax(axis=0)
    return float(np.average(costs(accelerations)[stopped], weights=weight))


def costs(accelerations: FloatArray) -> FloatArray:
    """Return the sampled fraction of each round (0 if unknown) and of the full measurement."""
    return np.append(1 / np.where(np.isnan(accelerations), np.inf, accelerations), 1.0)


def _certified_acceleration(
    cost: float, accelerations: FloatArray, units: int, delta: float, *, groups: bool
) -> float:
    """Return a lower bound of the mean acceleration that holds with probability 1 - delta."""
    failing = float(exact_alpha(delta, "delta")) / len(accelerations)
    epsilon = _deviation(units, failing, groups=groups)
    first = accelerations[0] if np.isfinite(accelerations[0]) else np.inf
    return float(1 / min(1.0, cost + (1 - 1 / first) * epsilon))


def _deviation(units: int, failing: float, *, groups: bool) -> float:
    x = math.log(1 / failing)
    if groups:
        while math.e * x * math.exp(-x) > failing:
            x += 0.01
    return math.sqrt(x / (2 * units))


# Fraction of units from which the thresholds to test are taken, and the most thresholds tested.
EARLY_FRACTION, RUNGS = 0.1, 64
# Held-out cases under the rules, and the unit of each.
TuningCases: TypeAlias = tuple[StoppingStatistics, NDArray[np.int64]]


def _early_stops(
    statistics: StoppingStatistics, thresholds: FloatArray, unit: Unit, index: NDArray[np.int64]
) -> tuple[BoolArray, BoolArray]:
    largest, at = statistics.largest, thresholds[:, None]
    if unit.stops_together:
        largest = statistics.allowance(index)[:, index]
    early = np.zeros((len(thresholds), statistics.cases), dtype=bool)
    missed = early.copy()
    for lowest, top, score in zip(statistics.lowest, largest, statistics.score, strict=True):
        here = ~early & (lowest <= at) & (at < top)
        early |= here
        missed |= here & (score > at)
    return early, missed


def threshold_grid(tuning: TuningCases, calibrator: Calibrator) -> FloatArray:
    """Return thresholds to test, from conservative to aggressive."""
    statistics, index = tuning
    grid = np.unique(statistics.largest[np.isfinite(statistics.largest)])[::-1]
    if not grid.size:
        return grid
    grid = grid[np.unique(np.linspace(0, len(grid) - 1, RUNGS).round().astype(np.int64))]
    unit, guarantee = calibrator.unit, calibrator.guarantee
    early = _early_stops(statistics, grid, unit, index)[0] @ (
        unit.weights(index) / (index.max() + 1)
    )
    enough = min(1.0, guarantee._unit.needed(guarantee.alpha, guarantee.delta) / calibrator.units)
    return grid[int((early >= (early.max() ** 2 * enough) ** (1 / 3)).argmax()) :]


def last_certified(
    statistics: StoppingStatistics, calibrator: Calibrator, grid: FloatArray
) -> FloatArray:
    """Return the last threshold before the first failed test (fixed-sequence testing)."""
    alpha, delta = calibrator.guarantee.alpha, calibrator.guarantee.delta
    unit, index = calibrator.unit, calibrator.index
    assert delta is not None
    stops = _early_stops(statistics, grid, unit, index)
    weight = unit.weights(index)[:, None]
    early, missed = np.zeros((2, int(index.max()) + 1, len(grid)))
    np.add.at(early, index, weight * stops[0].T)
    np.add.at(missed, index, weight * stops[1].T)
    certify = _certified_groups if unit.is_group else _certified_cases

    def test(kept: BoolArray) -> float:
        certified = certify(early[kept], missed[kept], alpha, delta)
        return float(np.append(np.inf, grid)[np.append(certified, False).argmin()])

    return calibrator.map_sets(test)[None]


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
