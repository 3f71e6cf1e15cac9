"""Moderated locally weighted residual: LWR that survives few and identical samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import numpy as np

from taskuq.calibration.family import AnchoredFamily, FamilyScore, Side
from taskuq.calibration.link import IDENTITY, Link, natural_link
from taskuq.calibration.moderation import SpreadPrior, fit_spread_prior
from taskuq.calibration.summaries import mean_and_variance
from taskuq.interval import FloatArray, TaskRange

# Fewer cases than this say nothing useful about how spreads vary.
FEWEST_TUNING_CASES = 8


@final
@dataclass(frozen=True)
class MLWR(FamilyScore):
    r"""Moderated LWR, the default: a steadied spread plus a floor that is a share of the typical.

    .. math:: s = \frac{|z - \bar z|}{u}, \qquad u = \tilde\sigma + c \cdot
        \operatorname{median}\tilde\sigma, \qquad \mathcal C = [\bar z \pm \hat q u]

    :math:`\tilde\sigma` is the sample spread shrunk towards a trend in :math:`\bar z` (see
    :class:`~taskuq.calibration.moderation.SpreadPrior`). The prior is learnt without targets, from
    cases other than the calibration cases, or from all cases of an evaluation alike, and either
    keeps the guarantee exact. With one sample, or without a prior, the width is constant or
    :math:`u = \sigma_z`.

    Arguments:
        side: ``two``, ``upper`` or ``lower``.
        floor: The share :math:`c` of the typical spread that is always added.
        prior: The fitted prior; absent until :meth:`tuned`.
        link: The task's scale; the trend exists only where it is a logit.

    Example:
        >>> outputs = np.clip(0.5 + 0.1 * rng.standard_normal((60, 4)), 0, 1)
        >>> score = MLWR().tuned(outputs)
        >>> widths = score.interval(outputs, quantile=1.0).width
        >>> bool(widths.max() / widths.min() < np.ptp(outputs, 1).max() / np.ptp(outputs, 1).min())
        True
    """

    tuning_needs_targets: ClassVar[bool] = False
    tuning_share: ClassVar[float] = 0.1

    side: Side = "two"
    floor: float = 0.5
    prior: SpreadPrior | None = None
    link: Link = IDENTITY

    def tuned(
        self,
        outputs: FloatArray,
        targets: Any = None,
        *,
        range_: TaskRange = None,
        group: Any = None,
    ) -> MLWR:
        """Return the score with the prior of these cases; only their outputs are looked at."""
        cases, p = outputs.shape
        if p < 2 or cases < FEWEST_TUNING_CASES:
            return self
        link = natural_link(range_, outputs)
        mean, variance = mean_and_variance(outputs, ddof=1)
        prior = fit_spread_prior(variance, _covariate(mean, link), p)
        return replace(self, prior=prior, link=link)

    @property
    def needs_tuning(self) -> bool:
        """Whether there is no prior yet."""
        return self.prior is None

    def family(self, outputs: FloatArray) -> AnchoredFamily:
        """Return the nested intervals around the mean, in units of the moderated spread."""
        p = outputs.shape[1]
        mean, variance = mean_and_variance(outputs, ddof=1)
        if p < 2:
            u = np.ones_like(mean)
        elif self.prior is None:
            u = np.sqrt(variance)
        else:
            spread = self.prior.moderated(variance, _covariate(mean, self.link), p)
            u = spread + self.floor * self.prior.typical
        return AnchoredFamily(mean, mean, u, self.side)


def _covariate(mean: FloatArray, link: Link) -> FloatArray:
    """Half the log of the variance a soft output of this mean could have; 0 off a range."""
    if link.is_identity:
        return np.zeros_like(mean)
    t = np.clip((mean - link.low) / (link.high - link.low), 0, 1)
    return np.asarray(np.log(t * (1 - t) + 1e-4) / 2)
