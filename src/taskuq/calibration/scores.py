"""The paper's three scores: absolute residual, locally weighted residual, quantile regression."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike

from taskuq.calibration.family import AnchoredFamily, Family, OpaqueFamily, Side
from taskuq.calibration.rank import exact_level
from taskuq.calibration.summaries import mean_and_variance, sample_quantiles
from taskuq.interval import FloatArray, Interval
from taskuq.protocols import Score


class FamilyScore(ABC):
    """A score given by the nested intervals it grows; all of ours are of this kind."""

    # Whether outputs may carry the earlier rounds, (round, case, sample), the current one last.
    uses_earlier_rounds: ClassVar[bool] = False

    @abstractmethod
    def family(self, outputs: FloatArray) -> AnchoredFamily:
        """Return the nested intervals of some cases."""

    def score(self, outputs: FloatArray, targets: FloatArray) -> FloatArray:
        """Score targets (case,) against outputs (case, sample); larger is worse."""
        return self.family(outputs).score(targets)

    def interval(self, outputs: FloatArray, quantile: ArrayLike) -> Interval:
        """Return the set of targets that score at most ``quantile``, for each case."""
        return self.family(outputs).interval(quantile)


def family_of(score: Score, outputs: FloatArray) -> Family:
    """Return the nested intervals of any score, ours or a user's.

    Arguments:
        score: The score.
        outputs: Outputs (case, sample), or of all rounds so far (round, case, sample).

    Example:
        >>> family_of(AR(), np.array([[0.2, 0.4]])).interval(0.1).width.round(12)
        array([0.2])
    """
    if outputs.ndim == 3 and not getattr(score, "uses_earlier_rounds", False):
        outputs = outputs[-1]
    if isinstance(score, FamilyScore):
        return score.family(outputs)
    return OpaqueFamily(score, outputs)


@final
@dataclass(frozen=True)
class AR(FamilyScore):
    r"""Absolute residual: the same width for every case.

    .. math:: s = |z - \bar z|, \qquad \mathcal C = [\bar z - \hat q,\; \bar z + \hat q]

    :math:`\bar z` is the point estimate, or the mean of the samples where there are several.

    References:
        Lei et al., Distribution-Free Predictive Inference for Regression, JASA 2018.

    Arguments:
        side: ``two``, ``upper`` or ``lower``.

    Example:
        >>> AR().score(np.array([[0.2], [0.7]]), np.array([0.3, 0.4])).round(12)
        array([0.1, 0.3])
    """

    name: ClassVar[str] = "ar"
    side: Side = "two"

    def family(self, outputs: FloatArray) -> AnchoredFamily:
        """Return the nested intervals around the mean."""
        mean, _ = mean_and_variance(outputs)
        return AnchoredFamily(mean, mean, np.ones_like(mean), self.side)


@final
@dataclass(frozen=True)
class LWR(FamilyScore):
    r"""Locally weighted residual: the width follows the spread of the samples.

    .. math:: s = \frac{|z - \bar z|}{\sigma_z}, \qquad
        \mathcal C = [\bar z - \hat q \sigma_z,\; \bar z + \hat q \sigma_z]

    :math:`\sigma_z` is the population standard deviation of the :math:`p` samples. Identical
    samples make the interval the point :math:`\bar z`; a target elsewhere scores infinity.

    References:
        Lei et al., Distribution-Free Predictive Inference for Regression, JASA 2018.

    Arguments:
        side: ``two``, ``upper`` or ``lower``.

    Example:
        >>> LWR().score(np.array([[0.2, 0.4], [0.5, 0.5]]), np.array([0.5, 0.6])).round(12)
        array([ 2., inf])
    """

    name: ClassVar[str] = "lwr"
    side: Side = "two"

    def family(self, outputs: FloatArray) -> AnchoredFamily:
        """Return the nested intervals around the mean, in units of the spread."""
        mean, variance = mean_and_variance(outputs)
        return AnchoredFamily(mean, mean, np.sqrt(variance), self.side)


@final
@dataclass(frozen=True)
class CQR(FamilyScore):
    r"""Conformalised quantile regression: sample quantiles, shifted outwards by one number.

    .. math:: s = \max\{\hat z(\tfrac\alpha2) - z,\; z - \hat z(1 - \tfrac\alpha2)\}, \qquad
        \mathcal C = [\hat z(\tfrac\alpha2) - \hat q,\; \hat z(1 - \tfrac\alpha2) + \hat q]

    :math:`\hat z(\omega)` is the linearly interpolated empirical quantile of the :math:`p`
    samples, as the paper's authors compute it. A one-sided bound uses level :math:`\alpha`
    instead of :math:`\alpha / 2`. With :math:`\hat q < 0` the ends may cross: such an interval is
    empty.

    References:
        Romano, Patterson and Candès, Conformalized Quantile Regression, NeurIPS 2019.

    Arguments:
        alpha: The error rate whose sample quantiles are used.
        side: ``two``, ``upper`` or ``lower``.

    Example:
        >>> samples = np.linspace(0, 1, 41)[None]
        >>> CQR(alpha=0.05).interval(samples, quantile=0.1).width.round(12)
        array([1.15])
    """

    name: ClassVar[str] = "cqr"
    alpha: float
    side: Side = "two"

    def family(self, outputs: FloatArray) -> AnchoredFamily:
        """Return the nested intervals around the sample quantiles."""
        tail = float(exact_level(self.alpha)) / (2 if self.side == "two" else 1)
        low, high = sample_quantiles(outputs, [tail, 1 - tail])
        return AnchoredFamily(low, high, np.ones_like(low), self.side)
