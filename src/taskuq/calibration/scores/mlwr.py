"""Moderated locally weighted residual: LWR that survives few and identical samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from taskuq.calibration.family import AnchoredFamily, FamilyScore, Side
from taskuq.calibration.link import IDENTITY, Link, natural_link
from taskuq.calibration.moderation import SpreadPrior
from taskuq.calibration.steady import TREND, SpreadLevels, spread_levels
from taskuq.calibration.summaries import mean_and_variance
from taskuq.interval import BoolArray, FloatArray, TaskRange
from taskuq.protocols import Steadied

# Fewer cases than this say nothing useful about how spreads vary.
FEWEST_TUNING_CASES = 8


class Spreads(NamedTuple):
    """What the score reads of the outputs of cases: mean and variance of each, and how many."""

    mean: FloatArray
    variance: FloatArray
    samples: int

    def take(self, cases: np.ndarray) -> Spreads:
        """Return those of some of the cases."""
        return Spreads(self.mean[cases], self.variance[cases], self.samples)


@final
@dataclass(frozen=True)
class MLWR(FamilyScore):
    r"""Moderated LWR, the default: a steadied spread plus a floor that is a share of the typical.

    .. math:: s = \frac{|z - \bar z|}{u}, \qquad u = \tilde\sigma + c \cdot
        \operatorname{median}\sigma, \qquad \mathcal C = [\bar z \pm \hat q u]

    :math:`\tilde\sigma` is the sample spread shrunk towards a trend in :math:`\bar z` (see
    :class:`~taskuq.calibration.moderation.SpreadPrior`). The prior is two medians over units,
    learnt without targets: from the outputs of the calibration units themselves
    (:meth:`learner`), from other cases, or from all cases of an evaluation alike; each keeps the
    guarantee exact. With one sample, or without a prior, the width is constant or
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

    @property
    def needs_tuning(self) -> bool:
        """Whether there is no prior yet."""
        return self.prior is None

    def tuned(
        self,
        outputs: FloatArray,
        targets: Any = None,
        *,
        range_: TaskRange = None,
        group: np.ndarray | None = None,
    ) -> MLWR:
        """Return the score with the prior of other cases; only their outputs are looked at."""
        read = self.read(outputs)
        if read.samples < 2 or len(read.mean) < FEWEST_TUNING_CASES:
            return self
        index = np.arange(len(read.mean))
        if group is not None:
            index = np.unique(group, return_inverse=True)[1]
        link = natural_link(range_, outputs)
        everyone = np.ones(len(index), dtype=bool)
        return replace(self, prior=_levels(read, link).at(everyone, index, 0.5), link=link)

    def read(self, outputs: FloatArray) -> Spreads:
        """Return all that the score reads of outputs (case, sample)."""
        return Spreads(*mean_and_variance(outputs, ddof=1), outputs.shape[1])

    def learner(self, read: Spreads, range_: TaskRange) -> SteadyMLWR:
        """Return what learns from the outputs of calibration units, none of which is set aside.

        Arguments:
            read: What :meth:`read` returned of all cases.
            range_: The declared task range, if any; without one there is no trend, because one
                that was only seen could be left by a new unit.
        """
        link = IDENTITY if range_ is None else natural_link(range_)
        return SteadyMLWR(replace(self, link=link), _levels(read, link), read)

    def family(self, outputs: FloatArray) -> AnchoredFamily:
        """Return the nested intervals around the mean, in units of the moderated spread."""
        return self.grown(self.read(outputs))

    def grown(self, read: Spreads) -> AnchoredFamily:
        """Return the nested intervals of cases from what was read of their outputs."""
        if read.samples < 2:
            u = np.ones_like(read.mean)
        elif self.prior is None:
            u = np.sqrt(read.variance)
        else:
            x = _covariate(read.mean, self.link)
            spread = self.prior.moderated(read.variance, x, read.samples)
            u = spread + self.floor * self.prior.typical
        return AnchoredFamily(read.mean, read.mean, u, self.side)


@final
@dataclass(frozen=True)
class SteadyMLWR:
    r"""The score, ready to learn from any calibration units among some cases.

    Unit :math:`i` of calibration units and a new one is scored with the prior
    :math:`\theta_{-i}` of all the others: that is symmetric, so the scores are exchangeable. For
    the new unit it is the prior of the calibration units, which ``score`` has. For a calibration
    unit it would take the new unit too; ``narrow`` and ``wide`` have the least and the largest
    scale that any new unit could give it, so that the larger of their scores is at least as large.

    Arguments:
        score: The score without a prior.
        levels: What its prior is learnt from.
        read: What was read of all cases.
    """

    score: MLWR
    levels: SpreadLevels
    read: Spreads

    @property
    def has_spread(self) -> bool:
        """Whether there are several samples, so that there is something to learn."""
        return self.read.samples > 1

    def learn(self, kept: BoolArray, index: NDArray[np.int64]) -> Steadied:
        """Return what some cases give, their units given."""
        if not self.has_spread:
            return Steadied(self.score, self.score, self.score)
        priors = self.levels.learn(kept, index)
        return Steadied(*(replace(self.score, prior=prior) for prior in priors))

    def between(
        self, kept: BoolArray, index: NDArray[np.int64], margin: float
    ) -> tuple[MLWR, MLWR]:
        """Return the scores whose priors are quantiles a margin below and above the medians."""
        if not self.has_spread:
            return self.score, self.score
        low, high = (self.levels.at(kept, index, 0.5 + off) for off in (-margin, margin))
        return replace(self.score, prior=low), replace(self.score, prior=high)


def _levels(read: Spreads, link: Link) -> SpreadLevels:
    trend = 0.0 if link.is_identity else TREND
    samples = max(read.samples, 2)
    return spread_levels(read.variance, _covariate(read.mean, link), samples, trend=trend)


def _covariate(mean: FloatArray, link: Link) -> FloatArray:
    """Half the log of the variance a soft output of this mean could have; 0 off a range."""
    if link.is_identity:
        return np.zeros_like(mean)
    t = np.clip((mean - link.low) / (link.high - link.low), 0, 1)
    return np.asarray(np.log(t * (1 - t) + 1e-4) / 2)
