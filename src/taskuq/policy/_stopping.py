"""Calibrated thresholds, guarantees for early stops and certified acceleration."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from taskuq.conformal._guarantee import Guarantee
from taskuq.conformal._quantiles import BettingEProcess, exact_alpha
from taskuq.conformal._units import Unit, quantile_of_mean_loss
from taskuq.conformal.scores._mlwr import unit_quantile
from taskuq.interval import BoolArray, FloatArray
from taskuq.policy._goal import Goal, Goals
from taskuq.policy._rules import StoppingStatistics, first_stop

# Loss of each group at thresholds in rising order (group, threshold).
Losses: TypeAlias = Callable[[FloatArray], FloatArray]
# Probability that the certified acceleration exceeds the mean acceleration.
CERTIFICATE_DELTA = 0.1
# Losses computed at a time, so that they stay in cache; thresholds of each step of a search.
BLOCK, STEP = 200_000, 64


@dataclass(frozen=True)
class Calibrator:
    guarantee: Guarantee
    unit: Unit
    index: NDArray[np.int64]
    # Cases of the class or stratum that is calibrated; all if None.
    inside: BoolArray | None = None
    # Site and group of each case, if sites are the unit.
    sites: np.ndarray | None = None

    @property
    def units(self) -> int:
        return int(self.index.max()) + 1

    @property
    def _ids(self) -> np.ndarray:
        return self.index if self.sites is None else self.sites

    @property
    def together(self) -> NDArray[np.int64] | None:
        """Group of each case if all cases of a group stop together, else None."""
        return self.index if self.unit.stops_together else None

    @property
    def weights(self) -> FloatArray:
        """Weight of each case in a mean over units; 0 outside the class that is calibrated."""
        weight = self.unit.weights(self._ids)
        if self.inside is None:
            return weight
        if self.guarantee.condition_on == "group":
            weight = 1 / np.maximum(np.bincount(self.index, weights=self.inside), 1)[self.index]
        return np.asarray(weight * self.inside)

    def quantiles(self, scores: FloatArray) -> FloatArray:
        if self.inside is None:
            return np.array([self.guarantee.quantile(row, self._ids) for row in scores])
        group = self.index if self.unit.is_group else None
        parts = [self.guarantee.stratum(row, group, self.inside) for row in scores]
        return np.array([part.quantile() for part in parts])

    def smallest(self, thresholds: FloatArray, losses: Losses) -> FloatArray:
        """Return the smallest threshold at which the losses meet the guarantee."""
        levels, share = self.guarantee.levels, np.ones(self.units)
        units = float(self.units)
        if self.inside is not None:
            levels = self.guarantee.stratum_levels
            counts = np.bincount(self.index, weights=self.inside)
            share, units = counts / np.bincount(self.index), float((counts > 0).sum())
        by_case = self.guarantee.condition_on == "case"
        bets = self.unit.bets(*levels)
        if bets is not None:
            # Cases of other classes count as lost at the rate that is allowed.
            outside = float(bets.alpha) * (1 - share)[:, None] if by_case else 0.0
            return np.asarray(smallest_certified(thresholds, losses(thresholds) + outside, bets))
        allowed = self.unit.allowed(int(units), *levels)
        if by_case:
            allowed = float(levels[0]) * (float(share.sum()) + 1) - 1
        return search_threshold(thresholds, losses, allowed)

    def stopping_threshold(self, statistics: StoppingStatistics) -> FloatArray:
        """Return a threshold, (1,), with guaranteed coverage by the intervals that scans report."""
        if self.unit.stops_together:
            return self._group_threshold(statistics)
        lowest, largest, score = statistics.lowest, statistics.largest, statistics.score
        sure = largest if statistics.surely is None else statistics.surely
        least = score if statistics.least is None else statistics.least
        Lambda = stopping_score(lowest, largest, score, sure)
        # Of intervals fitted to the calibration units, no lower bound of the score is computed.
        is_known = statistics.surely is None or statistics.rounds[0][0].is_risk
        is_random = self.unit.name == "group" and self.unit.fraction is None
        if is_known and is_random and self.inside is None and self.guarantee.delta is None:
            fewest = stopping_score(lowest, sure, least, largest)
            found = majority_quantile(Lambda, fewest, self.index, self.guarantee.alpha)
        else:
            found = self.quantiles(Lambda[None])[0]
        # A larger threshold keeps the guarantee, and below every opening no case could stop.
        return np.array([max(found, lowest.min())])

    def _group_threshold(self, statistics: StoppingStatistics) -> FloatArray:
        score, index, allowance = statistics.score, self.index, statistics.allowance(self.index)
        sure, sizes = allowance, np.bincount(index)
        if statistics.surely is not None:
            sure = statistics.group_thresholds(statistics.surely, index)
        if self.inside is not None:
            # A whole group is decided, and only its cases of the class can be lost.
            score, index = score[:, self.inside], index[self.inside]
            if self.guarantee.condition_on == "group":
                has, index = np.unique(index, return_inverse=True)
                allowance, sure, sizes = allowance[:, has], sure[:, has], np.bincount(index)
        # Losses change only where a group starts to stop or a case starts to be covered.
        ends = np.concatenate([sure.ravel(), allowance.ravel(), score.ravel(), [-np.inf]])

        def losses(thresholds: FloatArray) -> FloatArray:
            return _group_losses(allowance, score, index, thresholds, self.unit, sure, sizes)

        least = self.smallest(np.unique(ends), losses)[None]
        return np.asarray(np.maximum(least, statistics.lowest.max()))


def stopping_score(
    lowest: FloatArray, largest: FloatArray, score: FloatArray, surely: FloatArray | None = None
) -> FloatArray:
    """Return the supremum of thresholds at which each case stops early and misses its target."""
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


# A group that loses more than this fraction of its cases is an outlier.
HALF = Fraction(1, 2)


def majority_quantile(
    scores: FloatArray, least: FloatArray, index: NDArray[np.int64], alpha: float
) -> float:
    """Return a score that a random case of a new group exceeds with probability at most alpha.

    Half of the new group's cases are counted as above this score, or more if there are outliers:
    calibration groups with most of their cases above it. ``least`` are lower bounds of the scores.
    """
    sizes, level = np.bincount(index), exact_alpha(alpha)
    units = len(sizes)
    total = level * (units + 1)

    def smallest(lost: Fraction, kept: BoolArray) -> float:
        if lost > total:
            return np.inf
        return quantile_of_mean_loss(scores[kept], sizes[index[kept]], total - lost)

    everyone = np.ones(len(scores), bool)
    cautious = smallest(Fraction(1), everyone)
    if total < 1 or units == 1:
        return cautious
    eager = smallest(HALF, everyone)
    # The threshold that a group would have faced, at least, had it been the new one.
    faced = unit_quantile(least, index, float((units - total + HALF) / units)).low
    above = np.bincount(index, scores > faced[index]).astype(int)
    outliers = np.flatnonzero(2 * above > sizes)
    if not outliers.size:
        return eager
    sure = np.flatnonzero(2 * np.bincount(index, least > eager) > sizes)
    if sure.size > 1:
        return cautious
    # The new group may be no outlier, and a single calibration group may be one.
    alone = [
        smallest(HALF + Fraction(int(above[v]), int(sizes[v])), index != v)
        for v in (sure if sure.size else outliers)
    ]
    return max(cautious, *alone)


def _group_losses(
    allowance: FloatArray,
    score: FloatArray,
    index: NDArray[np.int64],
    thresholds: FloatArray,
    unit: Unit,
    sure: FloatArray | None = None,
    sizes: NDArray[np.int64] | None = None,
) -> FloatArray:
    """Return each group's largest loss at a threshold or any larger one, (group, threshold)."""
    sure = allowance if sure is None else sure
    groups, step = allowance.shape[1], max(1, BLOCK // allowance.shape[1])
    counted = np.bincount(index, minlength=groups)[:, None]
    whole = counted if sizes is None else sizes[:, None]
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
            missed = counted - np.cumsum(counts[:, :-1], axis=1)
            at_before = np.bincount(index[score[k] > before[index, 0]], minlength=groups)[:, None]
            loss = unit.loss(np.where(block < before, at_before, missed), whole)
            stops = np.maximum(block, before) < allowance[k][:, None]
            losses = np.maximum(losses, np.where(stops, loss, 0.0))
            before = np.maximum(before, sure[k][:, None])
        blocks.append(losses)
    return np.hstack(blocks)


def smallest_threshold(thresholds: FloatArray, totals: FloatArray, allowed: float) -> FloatArray:
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
    """Return the smallest threshold that is certified along with all larger ones, or infinity."""
    totals = losses.sum(axis=0)
    # Losses with the same total are the same: each is tested once, where it begins.
    begins = np.flatnonzero(np.append(True, totals[1:] < totals[:-1]))
    failed = np.flatnonzero(~bets.certify(losses[:, begins]))
    first = failed[-1] + 1 if failed.size else 0
    return float(thresholds[begins[first]]) if first < len(begins) else np.inf


def guarantee_at_stop(goal: Goal | Goals, guarantee: str) -> str:
    what = guarantee.removeprefix("Guaranteed: ")
    return (
        f"Guaranteed when the scan stops: {what} A scan stops early only if its "
        f"interval meets the goal ({goal.statement}); a full scan yields the target itself."
    )


def make_certificate(
    statistics: StoppingStatistics,
    thresholds: FloatArray,
    calibrator: Calibrator,
    accelerations: FloatArray,
    with_margin: Callable[[float], StoppingStatistics] | None = None,
) -> dict[str, Any]:
    """Return mean acceleration on the calibration set and, if possible, a certified lower bound."""
    failing = CERTIFICATE_DELTA
    if np.isnan(accelerations).any():
        return {}
    unit, index = calibrator.unit, calibrator.index

    def cost(largest: FloatArray, weight: FloatArray) -> float:
        if unit.stops_together:
            weight = np.asarray(np.bincount(index, weights=weight), dtype=float)
        stops = statistics.stops(thresholds, calibrator.together, largest)
        return mean_cost(stops, accelerations, weight)

    weights = calibrator.weights
    certificate: dict[str, Any] = {
        "mean_over": unit.mean_unit,
        "mean_acceleration": 1 / cost(statistics.largest, weights),
        "mean_acceleration_of_cases": 1 / cost(statistics.largest, np.ones(len(index))),
    }
    # The certificate rests on stops that are monotone in one threshold.
    if len(np.unique(thresholds)) > 1 or not statistics.is_always_open:
        return certificate
    units, slowest = int(index.max()) + 1, statistics.largest
    if with_margin is not None:
        # Half of the failures are left to what was learned in each round and task: three medians,
        # and shifts (also of classes) at both ends of their range, each off to both sides.
        failing /= 2
        guarantee = calibrator.guarantee
        classes = (guarantee.strata or 0) if guarantee.kind == "class" else 0
        quantiles = 10 * (1 + classes) * len(accelerations) * len(statistics.rounds[0])
        margin = 2 * _deviation(units, failing / quantiles, groups=unit.is_group)
        surely = with_margin(margin).surely
        assert surely is not None
        slowest = surely
    certificate["certified"] = _certified_acceleration(
        cost(slowest, weights), accelerations, units, failing, groups=unit.is_group
    )
    certificate["delta"] = CERTIFICATE_DELTA
    return certificate


def mean_cost(
    stops: BoolArray, accelerations: FloatArray, weight: FloatArray | None = None
) -> float:
    return float(np.average(costs(accelerations)[first_stop(stops)], weights=weight))


def costs(accelerations: FloatArray) -> FloatArray:
    """Return the sampled fraction of each round (0 if unknown), then 1 for the full measurement."""
    return np.append(1 / np.where(np.isnan(accelerations), np.inf, accelerations), 1.0)


def _certified_acceleration(
    cost: float, accelerations: FloatArray, units: int, delta: float, *, groups: bool
) -> float:
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
# The same for guarantees of each round, and the parts of alpha that are missed on those units.
ROUND_FRACTION, ROUND_PARTS = 0.2, (0.35, 0.65)
# Held-out cases under the rules, and the unit of each.
TuningCases: TypeAlias = tuple[StoppingStatistics, NDArray[np.int64]]


def _stops_by_round(
    statistics: StoppingStatistics, thresholds: FloatArray, unit: Unit, index: NDArray[np.int64]
) -> list[tuple[BoolArray, BoolArray]]:
    """Return two masks (step, case) for each round: stopped cases, and missed cases among them.

    ``thresholds`` are (step, round).
    """
    largest = statistics.largest
    if unit.stops_together:
        largest = statistics.allowance(index)[:, index]
    early = np.zeros((len(thresholds), statistics.cases), dtype=bool)
    found = []
    for k, lowest in enumerate(statistics.lowest):
        at = thresholds[:, k, None]
        here = ~early & (lowest <= at) & (at < largest[k])
        early = early | here
        found.append((here, here & (statistics.score[k] > at)))
    return found


def _early_stops(
    statistics: StoppingStatistics, thresholds: FloatArray, unit: Unit, index: NDArray[np.int64]
) -> tuple[BoolArray, BoolArray]:
    of_rounds = np.repeat(thresholds[:, None], len(statistics.lowest), axis=1)
    rounds = _stops_by_round(statistics, of_rounds, unit, index)
    early, missed = (np.any(each, axis=0) for each in zip(*rounds, strict=True))
    return np.asarray(early), np.asarray(missed)


def threshold_grid(
    tuning: TuningCases, calibrator: Calibrator, classes: Sequence[BoolArray | None] = (None,)
) -> FloatArray:
    """Return candidate thresholds from tuning cases, the most conservative first."""
    statistics, index = tuning
    grid = np.unique(statistics.largest[np.isfinite(statistics.largest)])[::-1]
    if not grid.size:
        return grid
    grid = grid[np.unique(np.linspace(0, len(grid) - 1, RUNGS).round().astype(np.int64))]
    unit, guarantee = calibrator.unit, calibrator.guarantee
    stops = _early_stops(statistics, grid, unit, index)[0]
    weight = unit.weights(index) / (index.max() + 1)
    enough = min(1.0, guarantee._unit.needed(guarantee.alpha, guarantee.delta) / calibrator.units)
    starts = []
    for inside in classes:
        early = stops @ (weight if inside is None else weight * inside)
        starts.append(int((early >= (early.max() ** 2 * enough) ** (1 / 3)).argmax()))
    return grid[max(starts) :]


def certified_rounds(
    statistics: StoppingStatistics,
    classes: Sequence[Calibrator],
    tuning: TuningCases,
    of_tuning: Sequence[BoolArray | None],
) -> FloatArray:
    """Return a certified threshold for each round; infinity where none is certified.

    The threshold of a round is tested given those of the earlier rounds. Delta is divided among
    the rounds and the possible thresholds of the earlier rounds.
    """
    first, rounds = classes[0], len(statistics.lowest)
    unit, index, levels = first.unit, first.index, first.guarantee.stratum_levels
    assert levels[1] is not None
    alpha, delta = float(levels[0]), float(levels[1])
    row: tuple[float, ...] = ()
    for k in range(rounds):
        level = delta / (rounds * (len(ROUND_PARTS) + 1) ** k)
        enough = 1.5 * first.guarantee._unit.needed(alpha, level) / first.units
        grid = _round_grid(tuning, unit, row, rounds, alpha, enough, of_tuning)
        path = np.full((len(grid), rounds), np.inf)
        path[:, :k], path[:, k] = row, grid
        stops = _stops_by_round(statistics, path, unit, index)[k]
        row += (_last_certified(grid, stops, classes, alpha, level),)
    return np.array(row)


def _last_certified(
    grid: FloatArray,
    stops: tuple[BoolArray, BoolArray],
    classes: Sequence[Calibrator],
    alpha: float,
    delta: float,
) -> float:
    """Return the last threshold before the first one that is not certified in every class."""
    certify = _certified_groups if classes[0].unit.is_group else _certified_cases
    sums = [_by_unit(stops, one) for one in classes]
    passed = np.all([certify(early, missed, alpha, delta) for early, missed in sums], axis=0)
    return float(np.append(np.inf, grid)[np.append(passed, False).argmin()])


def _by_unit(stops: tuple[BoolArray, BoolArray], calibrator: Calibrator) -> FloatArray:
    """Return the total weights of stopped and missed cases in each unit, (2, unit, threshold)."""
    index, weight = calibrator.index, calibrator.weights[:, None]
    sums = np.zeros((2, int(index.max()) + 1, len(stops[0])))
    for total, each in zip(sums, stops, strict=True):
        np.add.at(total, index, weight * each.T)
    return sums


def _round_grid(
    tuning: TuningCases,
    unit: Unit,
    before: tuple[float, ...],
    rounds: int,
    alpha: float,
    enough: float,
    classes: Sequence[BoolArray | None],
) -> FloatArray:
    """Return the thresholds to test in a round, at most one for each p in ``ROUND_PARTS``.

    This is the smallest candidate at which enough tuning cases stop in the round and at most a
    fraction p * alpha of these cases is missed.
    """
    statistics, index = tuning
    k, weight = len(before), unit.weights(index) / (index.max() + 1)
    top = statistics.allowance(index)[k, index] if unit.stops_together else statistics.largest[k]
    # Just below the threshold of a case, so that it stops.
    grid: FloatArray = np.nextafter(np.unique(top[np.isfinite(top)]), -np.inf)
    if not grid.size:
        return grid
    grid = grid[np.unique(np.linspace(0, len(grid) - 1, RUNGS).round().astype(np.int64))]
    trial = np.full((len(grid), rounds), np.inf)
    trial[:, :k], trial[:, k] = before, grid
    here, missed = _stops_by_round(statistics, trial, unit, index)[k]
    weights = [weight if inside is None else weight * inside for inside in classes]
    sums = [(here @ w, missed @ w) for w in weights]
    found = []
    for part in ROUND_PARTS:
        each = [(lost <= part * alpha * stops) & (stops >= enough) for stops, lost in sums]
        good = np.flatnonzero(np.all(each, axis=0))
        found += [grid[good[0]]] if good.size else []
    return np.asarray(np.unique(found)[::-1])


def last_certified(
    statistics: StoppingStatistics, classes: Sequence[Calibrator], grid: FloatArray
) -> FloatArray:
    """Return the last threshold that fixed-sequence testing certifies, (1,)."""
    first = classes[0]
    unit, index, (alpha, delta) = first.unit, first.index, first.guarantee.stratum_levels
    assert delta is not None
    stops = _early_stops(statistics, grid, unit, index)
    return np.array([_last_certified(grid, stops, classes, float(alpha), float(delta))])


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
