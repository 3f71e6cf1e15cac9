"""Promises about the scans that stop early: thresholds tested one after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taskuq.calibration.betting import Bets
from taskuq.calibration.units import Unit
from taskuq.decide.rules import Examination
from taskuq.decide.stopping import Calibrator
from taskuq.interval import BoolArray, FloatArray

# The share of units from which the thresholds to test are taken.
EARLY_TUNING_SHARE = 0.1
# How many thresholds are tested at most.
RUNGS = 64


@dataclass(frozen=True)
class SetAside:
    """Cases set aside, in the light of the rules.

    Arguments:
        seen: The cases.
        index: The unit of each, numbered from 0.
    """

    seen: Examination
    index: NDArray[np.int64]


class Stops(NamedTuple):
    """Which cases stop before everything is measured, and which of those are missed.

    Arguments:
        early: Whether each case stops early at each threshold (threshold, case).
        missed: Whether it does and its report does not contain the target.
    """

    early: BoolArray
    missed: BoolArray


def stops_at(
    seen: Examination, thresholds: FloatArray, unit: Unit, index: NDArray[np.int64]
) -> Stops:
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
    return Stops(early, missed)


def ladder(tuning: SetAside, calibrator: Calibrator) -> FloatArray:
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
    early = stops_at(tuning.seen, rungs, unit, tuning.index).early @ weight
    enough = min(1.0, promise.whom.needed(promise.alpha, promise.delta) / calibrator.units)
    return rungs[int((early >= (early.max() ** 2 * enough) ** (1 / 3)).argmax()) :]


def boldest_certified(seen: Examination, calibrator: Calibrator, rungs: FloatArray) -> FloatArray:
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
    stops = stops_at(seen, rungs, unit, index)
    weight = unit.weights(index)[:, None]
    early, missed = np.zeros((2, int(index.max()) + 1, len(rungs)))
    np.add.at(early, index, weight * stops.early.T)
    np.add.at(missed, index, weight * stops.missed.T)
    certify = certified_groups if unit.is_group else certified_cases

    def walk(kept: BoolArray) -> float:
        certified = certify(early[kept], missed[kept], promise.alpha, delta)
        return float(np.append(np.inf, rungs)[np.append(certified, False).argmin()])

    return calibrator.found(walk)[None]


def certified_cases(early: FloatArray, missed: FloatArray, alpha: float, delta: float) -> BoolArray:
    """Say at which thresholds few enough of the cases that stop early are missed.

    Arguments:
        early: 1 where a case stops early, else 0 (case, threshold).
        missed: 1 where it does and is missed.
        alpha: The error rate among early stops.
        delta: The probability of an unlucky calibration set.

    Example:
        >>> certified_cases(np.ones((45, 1)), np.zeros((45, 1)), alpha=0.05, delta=0.1)
        array([ True])
        >>> certified_cases(np.ones((44, 1)), np.zeros((44, 1)), alpha=0.05, delta=0.1)
        array([False])
    """
    from scipy.special import bdtr

    stopped, lost = (np.rint(each.sum(axis=0)).astype(np.int64) for each in (early, missed))
    return np.asarray(bdtr(lost, stopped, alpha) <= delta)


def certified_groups(
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
        >>> certified_groups(early, early * 0.02, alpha=0.2, delta=0.1)
        array([False,  True])
    """
    return Bets(alpha, delta).certify(missed + alpha * (1 - early), early > 0)
