"""Locally weighted residual: the paper's score whose width follows the spread of the samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from taskuq.calibration.family import AnchoredFamily, FamilyScore, Side
from taskuq.calibration.summaries import mean_and_variance
from taskuq.interval import FloatArray


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

    side: Side = "two"

    def family(self, outputs: FloatArray) -> AnchoredFamily:
        """Return the nested intervals around the mean, in units of the spread."""
        mean, variance = mean_and_variance(outputs)
        return AnchoredFamily(mean, mean, np.sqrt(variance), self.side)
