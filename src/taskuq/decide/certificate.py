"""How much acceleration a calibrated policy is certain to give on average."""

from __future__ import annotations

import math

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
) -> dict[str, float]:
    """Return the mean acceleration on the calibration cases, and the certified one if there is.

    Arguments:
        seen: The calibration cases in the light of the rules.
        thresholds: The calibrated threshold of each round.
        calibrator: What calibrated them.
        accelerations: Of the stored rounds; there is no certificate where one is unknown.
        certainty: The probability of an unlucky calibration.
    """
    exact_level(certainty, "certainty")
    if np.isnan(accelerations).any():
        return {}
    unit, index = calibrator.unit, calibrator.index
    lowest, largest, weight = seen.lowest, seen.largest, unit.weights(index)
    if unit.stops_together:
        largest = seen.allowance(index)
        lowest, weight = np.full(largest.shape, -np.inf), np.ones(largest.shape[1])
    cost = mean_cost(lowest, largest, accelerations, thresholds, weight)
    found = {"mean_acceleration": 1 / cost}
    # Going on is monotone in one threshold, which is what the certificate rests on.
    if len(set(thresholds)) == 1 and seen.is_always_open:
        found["certified"] = certified_acceleration(
            cost, accelerations, int(index.max()) + 1, certainty, groups=unit.is_group
        )
        found["delta"] = certainty
    return found


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
    x = math.log(1 / failing)
    if groups:
        while math.e * x * math.exp(-x) > failing:
            x += 0.01
    epsilon = math.sqrt(x / (2 * units))
    first = accelerations[0] if np.isfinite(accelerations[0]) else np.inf
    return float(1 / min(1.0, cost + (1 - 1 / first) * epsilon))
