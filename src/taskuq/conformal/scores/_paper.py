"""Scores AR, LWR and CQR of the paper."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taskuq.conformal._family import (
    LinearFamily,
    NestedIntervalScore,
    Side,
    mean_and_deviation,
    sample_quantiles,
)
from taskuq.conformal._quantiles import exact_alpha
from taskuq.interval import FloatArray


@dataclass(frozen=True)
class AR(NestedIntervalScore):
    r"""Absolute residual; all intervals have the same width.

    .. math:: s = |z - \bar z|, \qquad \mathcal C = [\bar z - \hat q,\; \bar z + \hat q]

    :math:`\bar z` is the point estimate, or the mean of several samples.

    References:
        Lei et al., Distribution-Free Predictive Inference for Regression, JASA 2018.

    Args:
        side: 'two', 'upper' or 'lower'.

    Example:
        >>> AR().score(np.array([[0.2], [0.7]]), np.array([0.3, 0.4])).round(12)
        array([0.1, 0.3])
    """

    side: Side = "two"

    def family(self, outputs: FloatArray) -> LinearFamily:
        mean, _ = mean_and_deviation(outputs)
        return LinearFamily(mean, mean, np.ones_like(mean), self.side)


@dataclass(frozen=True)
class CQR(NestedIntervalScore):
    r"""Conformalised quantile regression: both sample quantiles are moved by the same distance.

    .. math:: s = \max\{\hat z(\tfrac\alpha2) - z,\; z - \hat z(1 - \tfrac\alpha2)\}, \qquad
        \mathcal C = [\hat z(\tfrac\alpha2) - \hat q,\; \hat z(1 - \tfrac\alpha2) + \hat q]

    :math:`\hat z(\omega)` is the linearly interpolated empirical quantile of the samples, as
    the paper's authors compute it. A one-sided bound uses level :math:`\alpha` instead of
    :math:`\alpha / 2`. If :math:`\hat q < 0`, the ends may cross; such an interval is empty.

    References:
        Romano, Patterson and Candès, Conformalized Quantile Regression, NeurIPS 2019.

    Args:
        alpha: Error rate that sets the levels of the sample quantiles.
        side: 'two', 'upper' or 'lower'.

    Example:
        >>> samples = np.linspace(0, 1, 41)[None]
        >>> CQR(alpha=0.05).interval(samples, quantile=0.1).width.round(12)
        array([1.15])
    """

    alpha: float
    side: Side = "two"

    def family(self, outputs: FloatArray) -> LinearFamily:
        tail = float(exact_alpha(self.alpha)) / (2 if self.side == "two" else 1)
        low, high = sample_quantiles(outputs, [tail, 1 - tail])
        return LinearFamily(low, high, np.ones_like(low), self.side)


@dataclass(frozen=True)
class LWR(NestedIntervalScore):
    r"""Locally weighted residual; widths are proportional to the spread of the samples.

    .. math:: s = \frac{|z - \bar z|}{\sigma_z}, \qquad
        \mathcal C = [\bar z - \hat q \sigma_z,\; \bar z + \hat q \sigma_z]

    :math:`\sigma_z` is the standard deviation of the :math:`p` samples, with divisor :math:`p`. If
    all samples are equal, the interval is the point :math:`\bar z`, and any other target has an
    infinite score.

    References:
        Lei et al., Distribution-Free Predictive Inference for Regression, JASA 2018.

    Args:
        side: 'two', 'upper' or 'lower'.

    Example:
        >>> LWR().score(np.array([[0.2, 0.4], [0.5, 0.5]]), np.array([0.5, 0.6])).round(12)
        array([ 2., inf])
    """

    side: Side = "two"

    def family(self, outputs: FloatArray) -> LinearFamily:
        mean, deviation = mean_and_deviation(outputs)
        return LinearFamily(mean, mean, deviation, self.side)
