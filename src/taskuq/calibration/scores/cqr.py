"""Conformalised quantile regression: the paper's score from the quantiles of the samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from taskuq.calibration.family import AnchoredFamily, FamilyScore, Side
from taskuq.calibration.rank import exact_level
from taskuq.calibration.summaries import sample_quantiles
from taskuq.interval import FloatArray


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

    alpha: float
    side: Side = "two"

    def family(self, outputs: FloatArray) -> AnchoredFamily:
        """Return the nested intervals around the sample quantiles."""
        tail = float(exact_level(self.alpha)) / (2 if self.side == "two" else 1)
        low, high = sample_quantiles(outputs, [tail, 1 - tail])
        return AnchoredFamily(low, high, np.ones_like(low), self.side)
