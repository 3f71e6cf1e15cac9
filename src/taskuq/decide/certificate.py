"""How much acceleration a calibrated policy is certain to give on average."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from taskuq.calibration.rank import exact_level
from taskuq.decide.rules import Examination
from taskuq.decide.stopping import Calibrator
from taskuq.interval import FloatArray


def make_certificate(
    seen: Examination,
    thresholds: FloatArray,
    calibrator: Calibrator,
    accelerations: FloatArray,
    certainty: float,
    within: Callable[[float], Examination] | None = None,
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
    exact_level(certainty, "certainty")
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
    units, failing = int(calibrator.index.max()) + 1, float(exact_level(certainty, "certainty"))
    groups, slowest = calibrator.unit.is_group, seen.largest
    if within is not None:
        # Half of the failures are left to what was learnt: two quantiles of each round and task,
        # each off to both sides.
        failing /= 2
        quantiles = 4 * len(accelerations) * len(seen.rounds[0])
        surely = within(2 * deviation(units, failing / quantiles, groups=groups)).surely
        assert surely is not None
        slowest = surely
    cost = _cost(seen, slowest, thresholds, calibrator, accelerations)
    found["certified"] = certified_acceleration(cost, accelerations, units, failing, groups=groups)
    found["delta"] = certainty
    return found


def _cost(
    seen: Examination,
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


def certified_acceleration(
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
        >>> round(certified_acceleration(1 / 14, rates, 1531, 0.1, groups=False), 2)
        9.62
    """
    failing = float(exact_level(delta, "delta")) / len(accelerations)
    epsilon = deviation(units, failing, groups=groups)
    first = accelerations[0] if np.isfinite(accelerations[0]) else np.inf
    return float(1 / min(1.0, cost + (1 - 1 / first) * epsilon))


def deviation(units: int, failing: float, *, groups: bool) -> float:
    r"""Return how far a distribution function exceeds the one seen, but for so many failures.

    Arguments:
        units: The number :math:`n` of independent units.
        failing: The probability of a larger excess anywhere.
        groups: Whether units are groups, each with a distribution of its own.

    Example:
        >>> round(deviation(1531, 0.025, groups=False), 4)
        0.0347
    """
    x = math.log(1 / failing)
    if groups:
        while math.e * x * math.exp(-x) > failing:
            x += 0.01
    return math.sqrt(x / (2 * units))
