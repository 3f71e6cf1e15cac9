"""LWR with a regularised spread (default score)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taskuq.conformal._family import (
    IDENTITY,
    LinearFamily,
    Link,
    NestedIntervalScore,
    Side,
    mean_and_variance,
    natural_link,
)
from taskuq.conformal._units import unit_index
from taskuq.interval import BoolArray, FloatArray, TaskRange
from taskuq.protocols import SelfTuned

# Sums of shares are floats: where they may meet a half, the wider range is taken.
SLACK = 1e-9


class _UnitMedian(NamedTuple):
    """Median in which every unit has equal weight."""

    value: float
    low: FloatArray
    high: FloatArray


def _unit_median(
    values: FloatArray, index: NDArray[np.int64], order: NDArray[np.int64] | None = None
) -> _UnitMedian:
    """Return the median over units, and its range under replacement of any one unit."""
    order = np.argsort(values, kind="stable") if order is None else order
    ordered = np.concatenate([[-np.inf], np.asarray(values, dtype=float)[order], [np.inf]])
    unit = index[order]
    sizes = np.bincount(index)
    if len(sizes) == len(values):
        return _case_median(ordered, unit)
    share = 1 / sizes[unit]
    total = np.cumsum(share)
    half = len(sizes) / 2
    levels = half - 1 - SLACK, half + SLACK
    # A unit's own share is at most 1, so both levels are reached within this window.
    start = int(np.searchsorted(total, levels[0]))
    window = slice(start, int(np.searchsorted(total, levels[1] + 1 + SLACK)) + 1)
    own = np.bincount(unit[:start], weights=share[:start], minlength=len(sizes))
    mine = np.where(unit[window] == np.arange(len(sizes))[:, None], share[window], 0.0)
    others = total[window] - own[:, None] - np.cumsum(mine, axis=1)
    low, high = (
        ordered[np.where(there.any(axis=1), start + there.argmax(axis=1), len(total)) + 1]
        for there in (others >= level for level in levels)
    )
    middle = int(np.searchsorted(total, half - SLACK))
    return _UnitMedian(float(ordered[middle + 1]), np.where(half <= 1, -np.inf, low), high)


def _unit_quantile(values: FloatArray, index: NDArray[np.int64], level: float) -> float:
    """Return a quantile of the mean of the units' distribution functions."""
    if not 0 < level <= 1:
        return -np.inf if level <= 0 else np.inf
    order = np.argsort(values, kind="stable")
    total = np.cumsum(1 / np.bincount(index)[index[order]])
    return float(values[order][np.searchsorted(total, level * total[-1] - SLACK)])


def _case_median(ordered: FloatArray, unit: NDArray[np.int64]) -> _UnitMedian:
    """Return the median of units with one case each, and its range under replacement of one."""
    units = len(unit)
    place = np.empty(units, dtype=np.int64)
    place[unit] = np.arange(1, units + 1)

    def without(count: int) -> FloatArray:
        after = ordered[min(count + 1, units + 1)]
        return np.asarray(np.where(place > count, ordered[count], after))

    half = -(-units // 2)
    low = without(half - 1) if half > 1 else np.full(units, -np.inf)
    return _UnitMedian(float(ordered[half]), low, without(half))


# Identical samples get this variance, so that logarithms exist.
LEAST_VARIANCE = 1e-12
MANY_DEGREES = 1000.0


@dataclass(frozen=True)
class SpreadPrior:
    """Empirical-Bayes prior of the sample spread."""

    coefficients: tuple[float, float, float]
    degrees: float
    covariate_range: tuple[float, float]
    typical: float

    def moderated(self, variance: FloatArray, covariate: FloatArray, samples: int) -> FloatArray:
        r"""Return :math:`\tilde\sigma` of cases with sample variance :math:`v`."""
        c0, c1, c2 = self.coefficients
        x = np.clip(covariate, *self.covariate_range)
        d0, d = self.degrees, samples - 1
        if c2 == 0:
            # Factors, so that many levels can be tried on the same cases.
            trend = self.trend_at_zero * np.exp(c1 * x)
        else:
            # Coefficients of a curve may be far larger than their sum.
            trend = np.exp(c0 + (c1 + c2 * x) * x + self._shift)
        v = np.maximum(variance, LEAST_VARIANCE)
        return np.asarray(np.sqrt((d0 * trend + d * v) / (d0 + d)))

    @property
    def trend_at_zero(self) -> FloatArray:
        return np.asarray(np.exp(self.coefficients[0] + self._shift))

    @property
    def _shift(self) -> float:
        from scipy.special import digamma

        half = self.degrees / 2
        return float(digamma(half) - np.log(half))


def fit_spread_prior(variance: FloatArray, covariate: FloatArray, samples: int) -> SpreadPrior:
    r"""Fit the prior of spreads by matching two moments of :math:`\log v`."""
    from scipy.special import digamma, polygamma

    v = np.maximum(np.asarray(variance, dtype=float), LEAST_VARIANCE)
    half = (samples - 1) / 2
    e = np.log(v) - digamma(half) + np.log(half)
    # A centred, scaled covariate keeps the small least-squares problem well conditioned.
    middle, spread = float(np.mean(covariate)), float(np.std(covariate)) or 1.0
    t = (covariate - middle) / spread
    design = np.stack([np.ones_like(t), t, t**2], axis=1)
    b0, b1, b2 = np.linalg.lstsq(design, e, rcond=None)[0]
    excess = float(np.var(e - design @ [b0, b1, b2])) - float(polygamma(1, half))
    degrees = MANY_DEGREES if excess <= 1e-3 else 2 * _inverse_trigamma(excess)
    prior = SpreadPrior(
        coefficients=(
            float(b0 - b1 * middle / spread + b2 * (middle / spread) ** 2),
            float(b1 / spread - 2 * b2 * middle / spread**2),
            float(b2 / spread**2),
        ),
        degrees=min(degrees, MANY_DEGREES),
        covariate_range=(float(np.min(covariate)), float(np.max(covariate))),
        typical=1.0,
    )
    return replace(prior, typical=float(np.median(prior.moderated(v, covariate, samples))))


def _inverse_trigamma(value: float) -> float:
    """Solve trigamma(y) = value by Newton's method on 1/trigamma, which is nearly linear."""
    from scipy.special import zeta

    y = 0.5 + 1 / value
    for _ in range(50):
        # The derivatives of the digamma function are Hurwitz zeta functions, quicker to have.
        trigamma = float(zeta(2, y))
        step = trigamma * (1 - trigamma / value) / (-2 * float(zeta(3, y)))
        y += step
        if abs(step) < 1e-10 * y:
            break
    return y


# The prior is worth this many further samples.
DEGREES = 4.0
# Slope of log v in x if a task has a range: 0 is for equal spreads on the task's own scale, 4 on
# its logit's. Fixed, so that only two medians are learnt.
TREND = 3.0
# Range of x for a task with a range; without one x is 0.
COVARIATES = (math.log(1e-4) / 2, 0.0)
# The logarithm of a variance larger than any.
BEYOND = 600.0


@dataclass(frozen=True)
class _LogSpreads:
    """Log-spreads whose unit quantiles define the prior."""

    level: FloatArray
    typical: FloatArray
    trend: float

    def at(self, kept: BoolArray, index: NDArray[np.int64], share: float) -> SpreadPrior:
        c, t = (_unit_quantile(e[kept], index, share) for e in (self.level, self.typical))
        return _steady_prior(c, t, self.trend)

    def learn(
        self, kept: BoolArray, index: NDArray[np.int64]
    ) -> tuple[SpreadPrior, SpreadPrior, SpreadPrior]:
        """Return the prior fitted to some cases, with its lower and upper bound for each case."""
        place = np.cumsum(kept) - 1
        c, t = (
            _unit_median(e[kept], index, place[order[kept[order]]])
            for e, order in zip((self.level, self.typical), self.orders, strict=True)
        )
        return (
            _steady_prior(c.value, t.value, self.trend),
            _steady_prior(c.low[index], t.low[index], self.trend),
            _steady_prior(c.high[index], t.high[index], self.trend),
        )

    @cached_property
    def orders(self) -> list[NDArray[np.int64]]:
        return [np.argsort(e, kind="stable") for e in (self.level, self.typical)]


def _steady_prior(level: Any, typical: Any, trend: float) -> SpreadPrior:
    """Return the prior given by two log-spreads, each a number or an array (case,)."""
    from scipy.special import digamma

    half = DEGREES / 2
    # Where no other unit bounds it, a spread beyond all others stands for any.
    c: Any = np.minimum(level, BEYOND) - (float(digamma(half)) - math.log(half))
    middle: Any = np.exp(np.minimum(typical, BEYOND) / 2)
    if not np.ndim(c):
        c, middle = float(c), float(middle)
    return SpreadPrior((c, trend, 0.0), DEGREES, COVARIATES, middle)


# Fewer cases than this say nothing useful about how spreads vary.
FEWEST_TUNING_CASES = 8


class _SampleVariances(NamedTuple):
    """Mean, variance and count of samples per case."""

    mean: FloatArray
    variance: FloatArray
    samples: int

    def take(self, cases: np.ndarray) -> _SampleVariances:
        return _SampleVariances(self.mean[cases], self.variance[cases], self.samples)


@dataclass(frozen=True)
class MLWR(NestedIntervalScore):
    r"""Locally weighted residual with a regularised spread (default score).

    .. math:: s = \frac{|z - \bar z|}{u}, \qquad u = \tilde\sigma + c \cdot
        \operatorname{median}\sigma, \qquad \mathcal C = [\bar z \pm \hat q u]

    :math:`\tilde\sigma` is the sample spread, shrunk towards a trend in :math:`\bar z` (see
    :class:`~taskuq.conformal.scores._mlwr.SpreadPrior`). The prior consists of two medians over
    units. It is fitted without targets: to the outputs of the calibration units themselves
    (:meth:`leave_one_out`), to other cases, or to all cases of an evaluation. Each choice keeps the
    guarantee exact. With one sample the width is constant; without a prior, :math:`u = \sigma_z`.

    Args:
        side: ``two``, ``upper`` or ``lower``.
        floor: Fraction :math:`c` of the typical (median) spread to add.
        prior: Fitted prior; absent until :meth:`fit`.
        link: Scale of the task; only a logit has a trend.

    Example:
        >>> outputs = np.clip(0.5 + 0.1 * rng.standard_normal((60, 4)), 0, 1)
        >>> score = MLWR().fit(outputs)
        >>> widths = score.interval(outputs, quantile=1.0).width
        >>> bool(widths.max() / widths.min() < np.ptp(outputs, 1).max() / np.ptp(outputs, 1).min())
        True
    """

    tuning_needs_targets: ClassVar[bool] = False
    tuning_fraction: ClassVar[float] = 0.1

    side: Side = "two"
    floor: float = 0.5
    prior: SpreadPrior | None = None
    link: Link = IDENTITY

    @property
    def needs_tuning(self) -> bool:
        """True until the prior is fitted."""
        return self.prior is None

    def fit(
        self,
        outputs: FloatArray,
        targets: Any = None,
        *,
        range_: TaskRange = None,
        group: np.ndarray | None = None,
    ) -> MLWR:
        """Return the score with a prior fitted to other cases, without targets."""
        read = self.summarise(outputs)
        if read.samples < 2 or len(read.mean) < FEWEST_TUNING_CASES:
            return self
        index = unit_index(len(read.mean), group)
        link = natural_link(range_, outputs)
        everyone = np.ones(len(index), dtype=bool)
        return replace(self, prior=_levels(read, link).at(everyone, index, 0.5), link=link)

    def summarise(self, outputs: FloatArray) -> _SampleVariances:
        """Return the statistics of outputs (case, sample) that the score uses."""
        return _SampleVariances(*mean_and_variance(outputs, ddof=1), outputs.shape[1])

    def leave_one_out(self, read: _SampleVariances, range_: TaskRange) -> _SelfTunedMLWR:
        """Return the score fitted to the outputs of calibration units, without held-out units."""
        # Without a declared range there is no trend: a new unit could leave the observed one.
        link = IDENTITY if range_ is None else natural_link(range_)
        return _SelfTunedMLWR(replace(self, link=link), _levels(read, link), read)

    def family(self, outputs: FloatArray) -> LinearFamily:
        return self.summary_family(self.summarise(outputs))

    def summary_family(self, read: _SampleVariances) -> LinearFamily:
        """Return the nested intervals of cases from their statistics."""
        if read.samples < 2:
            u = np.ones_like(read.mean)
        elif self.prior is None:
            u = np.sqrt(read.variance)
        else:
            x = _covariate(read.mean, self.link)
            spread = self.prior.moderated(read.variance, x, read.samples)
            u = spread + self.floor * self.prior.typical
        return LinearFamily(read.mean, read.mean, u, self.side)


@dataclass(frozen=True)
class _SelfTunedMLWR:
    """MLWR fitted to the calibration units."""

    score: MLWR
    levels: _LogSpreads
    read: _SampleVariances

    def fit(self, kept: BoolArray, index: NDArray[np.int64]) -> SelfTuned:
        if self.read.samples < 2:
            return SelfTuned(self.score, self.score, self.score)
        priors = self.levels.learn(kept, index)
        return SelfTuned(*(replace(self.score, prior=prior) for prior in priors))

    def between(
        self, kept: BoolArray, index: NDArray[np.int64], margin: float
    ) -> tuple[MLWR, MLWR]:
        """Return the scores whose priors are quantiles a margin below and above the medians."""
        if self.read.samples < 2:
            return self.score, self.score
        low, high = (self.levels.at(kept, index, 0.5 + off) for off in (-margin, margin))
        return replace(self.score, prior=low), replace(self.score, prior=high)


def _levels(read: _SampleVariances, link: Link) -> _LogSpreads:
    from scipy.special import digamma

    trend, half = 0.0 if link.is_identity else TREND, (max(read.samples, 2) - 1) / 2
    e = np.log(np.maximum(read.variance, LEAST_VARIANCE)) - digamma(half) + np.log(half)
    return _LogSpreads(e - trend * _covariate(read.mean, link), e, trend)


def _covariate(mean: FloatArray, link: Link) -> FloatArray:
    """Return half the log of the largest variance of an output in the range, given its mean."""
    if link.is_identity:
        return np.zeros_like(mean)
    t = np.clip((mean - link.low) / (link.high - link.low), 0, 1)
    return np.asarray(np.log(t * (1 - t) + 1e-4) / 2)
