"""A prior of spreads from the outputs of the calibration units themselves, none set aside.

The prior is two medians over units, which no unit alone moves far. What it would be for a
calibration unit, learnt from all other units and a new one, is known within a range; the largest
score in that range is a valid calibration score (docs/guarantees.md, "What mlwr learns from").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskuq.calibration.medians import unit_median, unit_quantile
from taskuq.calibration.moderation import LEAST_VARIANCE, SpreadPrior
from taskuq.interval import BoolArray, FloatArray

# The prior is worth this many further samples.
DEGREES = 4.0
# How log v follows x where a task has a range: 0 would be spreads alike on the task's own scale,
# 4 spreads alike on its logit's. Fixed, so that two medians are all there is to learn.
TREND = 3.0
# Where x lies for a task with a range; without one it is 0.
COVARIATES = (math.log(1e-4) / 2, 0.0)
# The logarithm of a variance larger than any.
BEYOND = 600.0


@dataclass(frozen=True)
class SpreadLevels:
    r"""Logarithms of spreads, whose quantiles over units are a prior.

    With :math:`e = \log v - \psi(d/2) + \log(d/2)` the level of the trend
    :math:`s_0^2(x) = e^{c + bx}` is a quantile :math:`c` of :math:`e - bx`, and the typical spread
    is :math:`e^{t/2}` with a quantile :math:`t` of :math:`e`; :math:`b` and :math:`d_0` are fixed.
    The moderated spread rises with both.

    Arguments:
        level: :math:`e - bx` of each case.
        typical: :math:`e` of each case.
        trend: The slope :math:`b`.
    """

    level: FloatArray
    typical: FloatArray
    trend: float

    def at(self, kept: BoolArray, index: NDArray[np.int64], share: float) -> SpreadPrior:
        """Return the prior at a quantile over units of some cases; one half is the one in use.

        Arguments:
            kept: Which cases to learn from.
            index: The unit of each of them, numbered from 0.
            share: The level of the quantile.
        """
        c, t = (unit_quantile(e[kept], index, share) for e in (self.level, self.typical))
        return steady_prior(c, t, self.trend)

    def learn(
        self, kept: BoolArray, index: NDArray[np.int64]
    ) -> tuple[SpreadPrior, SpreadPrior, SpreadPrior]:
        """Return the prior of some cases, and the least and the largest for each of them.

        Arguments:
            kept: Which cases to learn from.
            index: The unit of each of them, numbered from 0.
        """
        place = np.cumsum(kept) - 1
        c, t = (
            unit_median(e[kept], index, place[order[kept[order]]])
            for e, order in zip((self.level, self.typical), self.orders, strict=True)
        )
        return (
            steady_prior(c.value, t.value, self.trend),
            steady_prior(c.low[index], t.low[index], self.trend),
            steady_prior(c.high[index], t.high[index], self.trend),
        )

    @cached_property
    def orders(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What sorts all cases, once for the many calibration sets of a simulation."""
        level, typical = (np.argsort(e, kind="stable") for e in (self.level, self.typical))
        return level, typical


def spread_levels(
    variance: FloatArray, covariate: FloatArray, samples: int, *, trend: float
) -> SpreadLevels:
    r"""Return the logarithms of spreads that a steady prior is made of.

    Arguments:
        variance: Sample variances with ``ddof=1`` (case,), at least two samples each.
        covariate: The covariate :math:`x` (case,).
        samples: The number :math:`p` of samples behind each variance.
        trend: The slope :math:`b`.

    Example:
        >>> variance = np.array([0.01, 0.02, 0.04, 0.09])
        >>> levels = spread_levels(variance, np.zeros(4), 1000, trend=0.0)
        >>> prior, low, high = levels.learn(np.ones(4, dtype=bool), np.arange(4))
        >>> round(prior.typical, 3), high.typical.round(3)
        (0.141, array([0.2  , 0.2  , 0.141, 0.141]))
    """
    from scipy.special import digamma

    half = (samples - 1) / 2
    e = np.log(np.maximum(variance, LEAST_VARIANCE)) - digamma(half) + np.log(half)
    return SpreadLevels(e - trend * covariate, e, trend)


def steady_prior(level: Any, typical: Any, trend: float) -> SpreadPrior:
    """Return the prior of two logarithms; one number each, or one for each case.

    Example:
        >>> round(steady_prior(-4.0, -4.0, trend=0.0).typical, 4)
        0.1353
    """
    from scipy.special import digamma

    half = DEGREES / 2
    # Where no other unit bounds it, a spread beyond all others stands for any.
    c = np.minimum(level, BEYOND) - (float(digamma(half)) - math.log(half))
    middle = np.exp(np.minimum(typical, BEYOND) / 2)
    return SpreadPrior((_plain(c), trend, 0.0), DEGREES, COVARIATES, _plain(middle))


def _plain(value: Any) -> Any:
    return value if np.ndim(value) else float(value)
