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
    """What finds thresholds that keep a promise: on one calibration set, or in many at once.

    A threshold is a number for one set, and one for each trial, (trial,), for many.

    Arguments:
        promise: What is promised.
        unit: Whom it is for, and what stops together.
        index: The unit of each case, numbered from 0.
    """

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
        """Return the smallest threshold at which the groups lose no more than is allowed.

        Arguments:
            thresholds: Thresholds in rising order.
            losses: The loss of each group at some of them (group, threshold), nonincreasing.
        """

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
    r"""Return the supremum of the thresholds at which the policy stops with a miss.

    At threshold :math:`\lambda` the policy stops in the first round :math:`k` with
    :math:`\lambda \in [\ell_k, \lambda_k^*)` and misses there when :math:`s_k > \lambda`.
    Without lower limits (:math:`\ell_k = -\infty`) and with
    :math:`M_k = \max_{j \le k} \lambda_j^*` this is

    .. math:: \Lambda = \max\{\min(\lambda_k^*, s_k) : \lambda_k^* > M_{k-1},\; s_k > M_{k-1}\}

    or minus infinity where the policy misses at no threshold. A policy run at a threshold
    :math:`\hat\lambda` misses only if :math:`\Lambda > \hat\lambda`: so a conformal quantile of
    :math:`\Lambda` is a threshold that keeps the stopped report's promise.

    Where :math:`\lambda_k^*` and :math:`s_k` are only known to lie in ranges, their upper ends and
    the lower ends of :math:`\lambda_k^*` give the largest :math:`\Lambda` possible.

    Arguments:
        lowest: :math:`\ell_k` (round, case).
        largest: :math:`\lambda_k^*` (round, case), or its upper ends.
        score: :math:`s_k`, the smallest threshold at which the report contains the target.
        surely: The lower ends of :math:`\lambda_k^*`, where it is known within a range only.

    Example:
        >>> lowest = np.full((2, 3), -np.inf)
        >>> largest = np.array([[2.0, 1.0, 1.0], [5.0, 5.0, 5.0]])
        >>> score = np.array([[1.5, 0.5, 0.5], [1.0, 3.0, 0.5]])
        >>> stopping_score(lowest, largest, score)
        array([1.5, 3. , 0.5])
    """
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
    r"""Return the loss of each group at each threshold, made monotone, (group, threshold).

    The loss is the share of cases missed at the round where the group stops, or, for a promise
    about a share of the cases, whether too few are covered. Made monotone,

    .. math:: \tilde L_v(\lambda) = \sup_{\lambda' \ge \lambda} L_v(\lambda') =
        \max_k L_{vk}(\max(\lambda, M_{v,k-1}))

    over the rounds :math:`k` with :math:`\lambda_{vk}^* > \max(\lambda, M_{v,k-1})`, where
    :math:`M_{vk} = \max_{j \le k} \lambda_{vj}^*`.

    Arguments:
        allowance: :math:`\lambda_{vk}^*` (round, group).
        score: The smallest threshold at which each case's report contains its target (round, case).
        index: The group of each case.
        thresholds: Thresholds :math:`\lambda`, in rising order.
        unit: Whom the promise is for, which says what a missed case loses.
        surely: The lower ends of the allowances, where they are known within a range only.

    Example:
        >>> from taskuq.conformal._units import RandomCaseUnit
        >>> allowance, index = np.array([[2.0]]), np.array([0, 0])
        >>> score, thresholds = np.array([[1.0, 3.0]]), np.array([0.5, 1.5, 2.5])
        >>> _group_losses(allowance, score, index, thresholds, RandomCaseUnit())
        array([[1. , 0.5, 0. ]])
    """
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
    """Return the smallest threshold at which a total loss is allowed; infinity where none is.

    Arguments:
        thresholds: Thresholds in rising order.
        totals: The total loss at each of them (..., threshold).
        allowed: The largest total; negative where not even no loss would do.

    Example:
        >>> smallest_threshold(np.array([1.0, 2, 3]), np.array([[5.0, 2, 0], [5, 4, 3]]), allowed=2)
        array([ 2., inf])
    """
    # Shares of cases are not exact in floats; a meeting of sums counts as allowed.
    good = (totals <= allowed + 1e-9) & (allowed >= 0)
    first = np.where(good.any(axis=-1), good.argmax(axis=-1), len(thresholds))
    return np.asarray(np.append(thresholds, np.inf)[first])


def search_allowed(thresholds: FloatArray, losses: Losses, allowed: float) -> FloatArray:
    """Return the smallest threshold at which the groups' total is allowed, looking at few of them.

    Arguments:
        thresholds: Thresholds in rising order.
        losses: The loss of each group at some of them, nonincreasing.
        allowed: The largest total; negative where not even no loss would do.

    Example:
        >>> def losses(some):
        ...     return np.maximum(5.0 - some, 0.0)[None]
        >>> search_allowed(np.arange(1000.0), losses, allowed=2)
        array(3.)
    """
    while len(thresholds) > STEP:
        step = -(-len(thresholds) // STEP)
        # The first part whose last threshold is allowed has the smallest one; else the last part.
        ends = thresholds[step - 1 : -1 : step]
        numbers, totals = np.arange(float(len(ends))), losses(ends).sum(axis=0)
        part = int(np.minimum(smallest_threshold(numbers, totals, allowed), len(ends)))
        thresholds = thresholds[part * step : (part + 1) * step]
    return smallest_threshold(thresholds, losses(thresholds).sum(axis=0), allowed)


def smallest_certified(thresholds: FloatArray, losses: FloatArray, bets: BettingEProcess) -> float:
    """Return the smallest threshold from which on all losses are certified; infinity for none.

    Arguments:
        thresholds: Thresholds in rising order.
        losses: The loss of each group at each of them (group, threshold), nonincreasing.
        bets: What certifies losses.

    Example:
        >>> losses = np.linspace(0.2, 0.0, 5) * np.ones((30, 1))
        >>> smallest_certified(np.arange(5.0), losses, BettingEProcess(alpha=0.1, delta=0.1))
        4.0
    """
    totals = losses.sum(axis=0)
    # Losses that add up to the same are the same: each is looked at once, where it begins.
    begins = np.flatnonzero(np.append(True, totals[1:] < totals[:-1]))
    failed = np.flatnonzero(~bets.certify(losses[:, begins]))
    first = failed[-1] + 1 if failed.size else 0
    return float(thresholds[begins[first]]) if first < len(begins) else np.inf


def guarantee_at_stop(goal: Goal | Goals, promise: str) -> str:
    """Return what is promised about the report at the stop, as a kind's ``sentence`` says it."""
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
    """Return the mean acceleration at calibration, and the certified one if there is.

    Both are for what the unit draws at random, which ``mean_over`` names: with groups every group
    counts the same. ``mean_acceleration_of_cases`` lets every calibration case count the same.

    Arguments:
        seen: The calibration cases in the light of the rules.
        thresholds: The calibrated threshold of each round.
        calibrator: What calibrated them.
        accelerations: Of the stored rounds; there is no certificate where one is unknown.
        certainty: The probability of an unlucky calibration.
        within: For rules that learnt from the calibration cases: the cases in the light of all
            rules whose quantiles over units are off by a margin.
    """
    exact_alpha(certainty, "certainty")
    if np.isnan(accelerations).any():
        return {}
    cost, of_cases = (
        _cost(seen, seen.largest, thresholds, calibrator, accelerations, every_case_alike=alike)
        for alike in (False, True)
    )
    found: dict[str, Any] = {
        "mean_over": calibrator.unit.mean_over,
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
    r"""Return the mean share of measurements that cases take, :math:`\mathbb E[1 / R_T]`.

    Arguments:
        lowest: Thresholds below which a round does not stop a case (round, case).
        largest: Thresholds from which on it does not (round, case).
        accelerations: Of the stored rounds.
        threshold: The policy's threshold, or one per round.
        weight: How much each case counts; all the same where None.

    Example:
        >>> lowest, largest = np.full((1, 2), -np.inf), np.array([[1.0, 3.0]])
        >>> mean_cost(lowest, largest, np.array([4.0]), 2.0)  # one goes on to R = 1
        0.625
    """
    at = np.broadcast_to(np.asarray(threshold, float), len(largest))[:, None]
    stops = (lowest <= at) & (at < largest)
    stopped = np.concatenate([stops, np.ones((1, stops.shape[1]), bool)]).argmax(axis=0)
    return float(np.average(costs(accelerations)[stopped], weights=weight))


def costs(accelerations: FloatArray) -> FloatArray:
    """Return the share of measurements at each round, and at the end; 0 where it is unknown.

    Example:
        >>> costs(np.array([np.nan, 4.0]))
        array([0.  , 0.25, 1.  ])
    """
    known = np.where(np.isnan(accelerations), np.inf, accelerations)
    return np.append(1 / known, 1.0)


def _certified_acceleration(
    cost: float, accelerations: FloatArray, units: int, delta: float, *, groups: bool
) -> float:
    r"""Return an average acceleration that new units exceed, but for a share delta of calibrations.

    For cases it is the mean over new cases, for groups over a random case of a new group.

    The mean cost is :math:`\kappa = 1/R_1 + \sum_k (1/R_{k+1} - 1/R_k)\, P_k` with the probability
    :math:`P_k` of going on after round :math:`k`, a distribution function of the threshold. By the
    Dvoretzky-Kiefer-Wolfowitz inequality in each of the :math:`K` rounds, for all thresholds at
    once and so for the calibrated one,

    .. math:: \kappa \le \hat\kappa + \Big(1 - \frac1{R_1}\Big) \varepsilon, \qquad
        \varepsilon = \sqrt{\frac{\log(K/\delta)}{2n}}

    Averages over groups are conditional means of such distribution functions; by Jensen's
    inequality the tail :math:`e^{-x}`, :math:`x = 2n\varepsilon^2`, becomes :math:`e\,x\,e^{-x}`.

    Arguments:
        cost: :math:`\hat\kappa` on the calibration units.
        accelerations: Of the stored rounds, decreasing.
        units: The number :math:`n` of calibration units.
        delta: The probability of an unlucky calibration.
        groups: Whether units are groups.

    Example:
        >>> rates = np.array([16.0, 8.0, 4.0, 2.0])
        >>> round(_certified_acceleration(1 / 14, rates, 1531, 0.1, groups=False), 2)
        9.62
    """
    failing = float(exact_alpha(delta, "delta")) / len(accelerations)
    epsilon = _deviation(units, failing, groups=groups)
    first = accelerations[0] if np.isfinite(accelerations[0]) else np.inf
    return float(1 / min(1.0, cost + (1 - 1 / first) * epsilon))


def _deviation(units: int, failing: float, *, groups: bool) -> float:
    r"""Return how far a distribution function exceeds the one seen, but for so many failures.

    Arguments:
        units: The number :math:`n` of independent units.
        failing: The probability of a larger excess anywhere.
        groups: Whether units are groups, each with a distribution of its own.

    Example:
        >>> round(_deviation(1531, 0.025, groups=False), 4)
        0.0347
    """
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
    """Cases set aside, in the light of the rules.

    Arguments:
        seen: The cases.
        index: The unit of each, numbered from 0.
    """

    seen: StoppingStatistics
    index: NDArray[np.int64]


class _EarlyStops(NamedTuple):
    """Which cases stop before everything is measured, and which of those are missed.

    Arguments:
        early: Whether each case stops early at each threshold (threshold, case).
        missed: Whether it does and its report does not contain the target.
    """

    early: BoolArray
    missed: BoolArray


def _stops_at(
    seen: StoppingStatistics, thresholds: FloatArray, unit: Unit, index: NDArray[np.int64]
) -> _EarlyStops:
    """Replay the stop of each case at each of several thresholds.

    Arguments:
        seen: Cases in the light of rules.
        thresholds: Thresholds (threshold,).
        unit: What stops together.
        index: The unit of each case, numbered from 0.
    """
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
    r"""Return the thresholds to test, from a cautious one to the boldest, falling.

    They are those at which the cases set aside begin to stop. The first is the most cautious at
    which a share :math:`(e^2 e_0)^{1/3}` of them stops early, where :math:`e` is the largest share
    that does and :math:`e_0` the one that would be enough if no report missed: so many that chance
    decides little, and so few that hardly any of their reports should miss. Every choice that does
    not look at the calibration units is valid.

    Arguments:
        tuning: The cases set aside.
        calibrator: Whom the promise is for, and the calibration sets.
    """
    found = np.unique(tuning.seen.largest[np.isfinite(tuning.seen.largest)])[::-1]
    if not found.size:
        return found
    rungs = found[np.unique(np.linspace(0, len(found) - 1, RUNGS).round().astype(np.int64))]
    unit, promise = calibrator.unit, calibrator.promise
    weight = unit.weights(tuning.index) / (tuning.index.max() + 1)
    early = _stops_at(tuning.seen, rungs, unit, tuning.index).early @ weight
    enough = min(1.0, promise.whom.needed(promise.alpha, promise.delta) / calibrator.units)
    return rungs[int((early >= (early.max() ** 2 * enough) ** (1 / 3)).argmax()) :]


def last_certified(
    seen: StoppingStatistics, calibrator: Calibrator, rungs: FloatArray
) -> FloatArray:
    r"""Return the last threshold before the first that is not certified, or infinity.

    A threshold is certified if at most a share :math:`\alpha` of the scans that stop early at it
    are missed, but for a probability :math:`\delta`: for cases by the exact binomial test of
    :math:`m` misses among :math:`n` early stops,

    .. math:: \mathbb P\{\mathrm{Bin}(n, \alpha) \le m\} \le \delta

    and for groups by bets on the losses :math:`L_v = m_v + \alpha (1 - e_v)` of those groups of
    which a share :math:`e_v > 0` stops early; a share :math:`m_v` does and is missed.

    Arguments:
        seen: The cases to calibrate on.
        calibrator: Whom the promise is for, and the calibration sets.
        rungs: The thresholds to test, in this order; fixed without these cases.
    """
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
    """Say at which thresholds few enough of the cases that stop early are missed.

    Arguments:
        early: 1 where a case stops early, else 0 (case, threshold).
        missed: 1 where it does and is missed.
        alpha: The error rate among early stops.
        delta: The probability of an unlucky calibration set.

    Example:
        >>> _certified_cases(np.ones((45, 1)), np.zeros((45, 1)), alpha=0.05, delta=0.1)
        array([ True])
        >>> _certified_cases(np.ones((44, 1)), np.zeros((44, 1)), alpha=0.05, delta=0.1)
        array([False])
    """
    from scipy.special import bdtr

    stopped, lost = (np.rint(each.sum(axis=0)).astype(np.int64) for each in (early, missed))
    return np.asarray(bdtr(lost, stopped, alpha) <= delta)


def _certified_groups(
    early: FloatArray, missed: FloatArray, alpha: float, delta: float
) -> BoolArray:
    """Say at which thresholds few enough of the cases of groups that stop early are missed.

    Arguments:
        early: The share of cases that stops early (group, threshold).
        missed: The share that does and is missed.
        alpha: The error rate among early stops.
        delta: The probability of an unlucky calibration set.

    Example:
        >>> early = np.full((50, 2), [0.1, 0.9])
        >>> _certified_groups(early, early * 0.02, alpha=0.2, delta=0.1)
        array([False,  True])
    """
    return BettingEProcess(alpha, delta).certify(missed + alpha * (1 - early), early > 0)
