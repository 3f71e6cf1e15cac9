"""Absolute residual: the paper's score of one width for every case."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from taskuq.calibration.family import AnchoredFamily, FamilyScore, Side
from taskuq.calibration.summaries import mean_and_variance
from taskuq.interval import FloatArray


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

    side: Side = "two"

    def family(self, outputs: FloatArray) -> AnchoredFamily:
        """Return the nested intervals around the mean."""
        mean, _ = mean_and_variance(outputs)
        return AnchoredFamily(mean, mean, np.ones_like(mean), self.side)
