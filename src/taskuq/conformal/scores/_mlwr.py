"""Regularised LWR, the default score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taskuq.conformal._family import (
    IDENTITY,
    LinearFamily,
    Link,
    NestedIntervalScore,
    Side,
    mean_and_deviation,
    natural_link,
    robust_mean_and_deviation,
)
from taskuq.conformal._units import unit_index
from taskuq.interval import BoolArray, FloatArray, TaskRange
from taskuq.protocols import SelfTuned, SelfTunedScore

# Sums of shares are floats, off by less than this.
SLACK = 1e-9


class _UnitQuantile(NamedTuple):
    """Quantile ``value`` and, for each unit, bounds on it that hold if this unit is replaced."""

    value: float
    low: FloatArray
    high: FloatArray


def unit_quantile(
    values: FloatArray,
    index: NDArray[np.int64],
    level: float = 0.5,
    order: NDArray[np.int64] | None = None,
) -> _UnitQuantile:
    """Return a quantile with equal weight per unit, and bounds on it if a unit is replaced."""
    order = np.argsort(values, kind="stable") if order is None else order
    ordered = np.append(np.asarray(values, dtype=float)[order], np.inf)
    unit = index[order]
    sizes = np.bincount(index)
    share_below = level * len(sizes)
    share = 1 / sizes[unit]
    total = np.cumsum(share)
    # Counts of cases are exact; sums of shares are not, so that the wider range is taken.
    slack = -SLACK if len(sizes) == len(values) else SLACK
    levels = share_below - 1 - SLACK, share_below + slack
    # A unit's own share is at most 1, so both levels are reached within this window.
    start = int(np.searchsorted(total, levels[0]))
    window = slice(start, int(np.searchsorted(total, levels[1] + 1 + SLACK)) + 1)
    own, inside = np.bincount(unit[:start], share[:start], len(sizes)), np.unique(unit[window])
    mine = np.where(unit[window] == inside[:, None], share[window], 0.0)
    others, ends = total[window] - own[inside, None] - np.cumsum(mine, axis=1), []
    for at in levels:
        # Most units have no value in the window: their share before it is all they have.
        place, there = np.searchsorted(total, at + own), others >= at
        place[inside] = np.where(there.any(axis=1), start + there.argmax(axis=1), len(total))
        ends.append(ordered[place])
    low, high = ends
    middle = int(np.searchsorted(total, share_below - SLACK))
    return _UnitQuantile(float(ordered[middle]), np.where(levels[0] <= 0, -np.inf, low), high)


def _value_at(values: FloatArray, index: NDArray[np.int64], level: float) -> float:
    """Return a quantile with equal weight per unit; infinite for a level outside (0, 1]."""
    if not 0 < level <= 1:
        return -np.inf if level <= 0 else np.inf
    order = np.argsort(values, kind="stable")
    total = np.cumsum(1 / np.bincount(index)[index[order]])
    return float(values[order][np.searchsorted(total, level * total[-1] - SLACK)])


MANY_DEGREES = 1000.0


@dataclass(frozen=True)
class SpreadPrior:
    """Empirical-Bayes prior on the standard deviation of samples."""

    coefficients: tuple[float, float, float]
    degrees: float
    covariate_range: tuple[float, float]
    typical: float
    # Factor of the trend, and the least spread: both in the unit of the task.
    level: float = 1.0
    least: float = 0.0

    def moderated(self, deviation: FloatArray, covariate: FloatArray, samples: int) -> FloatArray:
        """Return the standard deviation of each case, shrunk towards the prior."""
        c0, c1, c2 = self.coefficients
        x = np.clip(covariate, *self.covariate_range)
        d0, d = self.degrees, samples - 1
        if c2 == 0:
            # Factors, so that many levels can be tried on the same cases.
            trend = self.trend_at_zero * np.exp(c1 * x / 2)
        else:
            # Coefficients of a curve may be far larger than their sum.
            trend = self.level * np.exp((c0 + (c1 + c2 * x) * x + self._shift) / 2)
        own = np.maximum(deviation, self.least)
        return np.asarray(np.hypot(math.sqrt(d0 / (d0 + d)) * trend, math.sqrt(d / (d0 + d)) * own))

    @cached_property
    def trend_at_zero(self) -> FloatArray:
        return np.asarray(self.level * np.exp((self.coefficients[0] + self._shift) / 2))

    @property
    def _shift(self) -> float:
        return _log_bias(self.degrees)


def _log_bias(degrees: float) -> float:
    """Return the expected log of a chi-squared variable divided by its degrees of freedom."""
    from scipy.special import digamma

    return float(digamma(degrees / 2) - np.log(degrees / 2))


def fit_spread_prior(deviation: FloatArray, covariate: FloatArray, samples: int) -> SpreadPrior:
    """Fit the prior by matching two moments of the logarithm of the sample variance."""
    from scipy.special import polygamma

    sd = np.maximum(np.asarray(deviation, dtype=float), LEAST)
    e = 2 * np.log(sd) - _log_bias(samples - 1)
    # A centred, scaled covariate keeps the small least-squares problem well conditioned.
    middle, spread = float(np.mean(covariate)), float(np.std(covariate)) or 1.0
    t = (covariate - middle) / spread
    design = np.stack([np.ones_like(t), t, t**2], axis=1)
    b0, b1, b2 = np.linalg.lstsq(design, e, rcond=None)[0]
    excess = float(np.var(e - design @ [b0, b1, b2])) - float(polygamma(1, (samples - 1) / 2))
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
        least=LEAST,
    )
    return replace(prior, typical=float(np.median(prior.moderated(sd, covariate, samples))))


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
# Spreads below this fraction of the task's range, or of its typical error, count as this large.
LEAST = 1e-6
# Fewer units than this learn no prior, or no shift.
FEWEST_UNITS, FEWEST_SHIFTED = 3, 8
# Part of the floor for a guarantee of each class: the typical spread is that of a frequent class.
CLASS_FLOOR = 0.4


def _tail(units: int) -> float:
    """Return the level t for which the shift is the midpoint of the quantiles at t and 1 - t."""
    return min(0.5, max(0.15, 3 / math.sqrt(units)))


@dataclass(frozen=True)
class _Cases:
    """Sample statistics and targets of cases, to which the parameters of MLWR are fitted."""

    read: _SampleSpreads
    targets: FloatArray | None
    link: Link
    floor: float
    range_: TaskRange

    @cached_property
    def trend(self) -> float:
        return 0.0 if self.link.is_identity else TREND

    @cached_property
    def covariate(self) -> FloatArray:
        return _covariate(self.read.mean, self.link)

    @cached_property
    def residuals(self) -> FloatArray:
        assert self.targets is not None
        return np.asarray(self.targets - self.read.mean, dtype=float)

    @cached_property
    def least(self) -> float | None:
        """Lower limit of the spread; None if it is fitted."""
        if self.range_ is not None and np.isfinite(self.range_).all():
            return LEAST * float(self.range_[1] - self.range_[0])
        return 0.0 if self.targets is None else None

    @cached_property
    def learned(self) -> list[FloatArray]:
        """Arrays whose medians over units are the prior's ``level``, ``typical`` and ``least``."""
        typical = self.read.deviation * math.exp(-_log_bias(self.read.samples - 1) / 2)
        level = typical * np.exp(-self.trend * self.covariate / 2)
        extra = [] if self.least is not None else [LEAST * np.abs(self.residuals)]
        return [level, typical, *extra]

    @cached_property
    def orders(self) -> list[NDArray[np.int64]]:
        return [np.argsort(values, kind="stable") for values in self.learned]

    def prior(self, level: Any, typical: Any, least: Any = None) -> SpreadPrior:
        """Return a prior with the given parameters, each a number or an array (case,)."""
        least = self.least if self.least is not None else least
        centered = (-_log_bias(DEGREES), self.trend, 0.0)
        return SpreadPrior(centered, DEGREES, COVARIATES, typical, level, least)

    def scale(self, prior: SpreadPrior | None, kept: BoolArray) -> FloatArray:
        """Return the divisor :math:`u` of :class:`MLWR` for the residual of each kept case."""
        if self.read.samples < 2 or prior is None:
            return np.ones(int(kept.sum()))
        spread = prior.moderated(self.read.deviation[kept], self.covariate[kept], self.read.samples)
        return np.asarray(spread + self.floor * prior.typical)

    def ratios(self, prior: SpreadPrior | None, kept: BoolArray) -> FloatArray:
        """Return the residuals of the kept cases divided by :meth:`scale`, (case,)."""
        r = self.residuals[kept]
        with np.errstate(divide="ignore", over="ignore"):
            return np.divide(r, self.scale(prior, kept), out=np.zeros_like(r), where=r != 0)


# With fewer cases the variation of spreads is not fitted.
FEWEST_TUNING_CASES = 8


class _SampleSpreads(NamedTuple):
    mean: FloatArray
    deviation: FloatArray
    samples: int

    def take(self, cases: np.ndarray) -> _SampleSpreads:
        return _SampleSpreads(self.mean[cases], self.deviation[cases], self.samples)


@dataclass(frozen=True)
class MLWR(NestedIntervalScore):
    r"""Regularised LWR (default): distance from a shifted mean, divided by a shrunken spread.

    .. math:: s = \Big|\frac{z - \bar z}{u} - b\Big|, \qquad u = \tilde\sigma + c \cdot
        \operatorname{median}\sigma, \qquad \mathcal C = [\bar z + b u \pm \hat q u]

    :math:`\bar z` and :math:`\sigma` are mean and standard deviation of the samples of a case, and
    :math:`\tilde\sigma` is :math:`\sigma` shrunk towards a function of :math:`\bar z`. The shift
    :math:`b` corrects the bias of the samples: it is the midpoint between two quantiles of
    :math:`(z - \bar z)/u` over units, or the median if there are few units. These parameters are
    fitted to the calibration units themselves (:meth:`leave_one_out`), to held-out cases, or to all
    cases of an evaluation; the guarantee holds for each of these fits. With one sample,
    :math:`u = 1`; without a prior, :math:`u = \sigma`.

    Args:
        side: 'two', 'upper' or 'lower'.
        floor: Fraction :math:`c` of the median spread that is added.
        prior: Fitted prior of the spread; None before :meth:`fit`.
        link: Link of the task range; only for a logit, the prior depends on :math:`\bar z`.
        shift: Distance :math:`b` of the centre from the sample mean, in units of :math:`u`.
        is_shifted: True to fit the shift; default: True for two-sided intervals only.
        is_robust: True to use the trimmed mean (a tenth at each end) and a multiple of the mean
            absolute deviation from it instead of mean and standard deviation.

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
    shift: float = 0.0
    is_shifted: bool | None = None
    is_robust: bool = False

    @property
    def needs_tuning(self) -> bool:
        return self.prior is None and self.shift == 0

    def fit(
        self,
        outputs: FloatArray,
        targets: Any = None,
        *,
        range_: TaskRange = None,
        group: np.ndarray | None = None,
    ) -> SelfTunedScore:
        """Return the score fitted to the given cases; without targets, the shift is 0."""
        read = self.summarise(outputs)
        if len(read.mean) < FEWEST_TUNING_CASES:
            return self
        index = unit_index(len(read.mean), group)
        fit = self.leave_one_out(read, targets, range_)
        return fit.fit(np.ones(len(index), dtype=bool), index).score

    def summarise(self, outputs: FloatArray) -> _SampleSpreads:
        usual = partial(mean_and_deviation, ddof=1)
        moments = robust_mean_and_deviation if self.is_robust else usual
        return _SampleSpreads(*moments(outputs), outputs.shape[1])

    def leave_one_out(
        self, read: _SampleSpreads, targets: FloatArray | None, range_: TaskRange
    ) -> _SelfTunedMLWR:
        """Return an object that fits this score to the calibration units, with none held out."""
        # Without a declared range there is no trend: a new unit could leave the observed one.
        link = natural_link(range_)
        cases = _Cases(read, targets, link, self.floor, range_)
        return _SelfTunedMLWR(replace(self, link=link), cases)

    def family(self, outputs: FloatArray) -> LinearFamily:
        return self.summary_family(self.summarise(outputs))

    def summary_family(self, read: _SampleSpreads) -> LinearFamily:
        if read.samples < 2:
            u = np.ones_like(read.mean)
        elif self.prior is None:
            u = read.deviation
        else:
            x = _covariate(read.mean, self.link)
            spread = self.prior.moderated(read.deviation, x, read.samples)
            u = spread + self.floor * self.prior.typical
        if np.ndim(self.shift) == 0 and self.shift == 0:
            return LinearFamily(read.mean, read.mean, u, self.side)
        with np.errstate(over="ignore", invalid="ignore"):
            move = self.shift * u
            # A shift without a bound leads anywhere, at any scale.
            move = np.where(np.isnan(move), self.shift, move)
        center = np.where(np.isfinite(move), read.mean + move, move)
        return LinearFamily(center, center, u, self.side, mean=read.mean)


@dataclass(frozen=True)
class _SelfTunedMLWR:
    score: MLWR
    cases: _Cases
    # The class of each case, if the shift has to suit every class.
    classes: NDArray[np.int64] | None = None

    def for_classes(self, classes: np.ndarray) -> _SelfTunedMLWR:
        """Return the fit whose shift is the value nearest to 0 in the range of the class shifts."""
        codes, floor = np.unique(classes, return_inverse=True)[1], CLASS_FLOOR * self.score.floor
        cases = replace(self.cases, floor=floor)
        return _SelfTunedMLWR(replace(self.score, floor=floor), cases, codes)

    def fit(self, kept: BoolArray, index: NDArray[np.int64]) -> SelfTuned:
        """Return the fitted score, and scores with extreme parameters.

        The parameters of every fit with one unit replaced lie between the extreme parameters.
        """
        cases, units = self.cases, int(index.max()) + 1
        priors: list[Any] = [None] * 5
        if cases.read.samples > 1 and units >= FEWEST_UNITS:
            place = np.cumsum(kept) - 1
            found = [
                unit_quantile(values[kept], index, 0.5, place[order[kept[order]]])
                for values, order in zip(cases.learned, cases.orders, strict=True)
            ]
            # The ranges of all units together hold that of each.
            priors = [
                cases.prior(*(one.value for one in found)),
                cases.prior(*(one.low.min() for one in found)),
                cases.prior(*(one.high.max() for one in found)),
                cases.prior(*(one.low[index] for one in found)),
                cases.prior(*(one.high[index] for one in found)),
            ]
        shift: float = 0.0
        low: Any = 0.0
        high: Any = 0.0
        if self._is_shifted(units):
            ratios = [cases.ratios(prior, kept) for prior in priors[:3]]
            if self.classes is None:
                shift, low, high = _shift_range(ratios, index, units)
            else:
                shift, low, high = _shared_shift(ratios, index, self.classes[kept])
            low, high = low[index], high[index]
        fitted = replace(self.score, prior=priors[0], shift=shift)
        return SelfTuned(fitted, self._corners(priors[3:], low, high))

    def between(
        self, kept: BoolArray, index: NDArray[np.int64], margin: float
    ) -> tuple[SelfTunedScore, ...]:
        cases, units = self.cases, int(index.max()) + 1
        priors: list[Any] = [None, None]
        if cases.read.samples > 1 and units >= FEWEST_UNITS:
            priors = [
                cases.prior(
                    *(max(_value_at(v[kept], index, 0.5 + off), 0.0) for v in cases.learned)
                )
                for off in (-margin, margin)
            ]
        low, high = 0.0, 0.0
        if self._is_shifted(units):
            ratios, tail = [cases.ratios(prior, kept) for prior in priors], _tail(units)

            def end(inside: BoolArray, sign: int, off: float) -> float:
                inner, pick = unit_index(0, index[inside]), min if sign < 0 else max
                levels = tail + sign * off, 1 - tail + sign * off
                return float(
                    _middle(
                        *(pick(_value_at(r[inside], inner, at) for r in ratios) for at in levels)
                    )
                )

            if self.classes is None:
                low, high = (end(np.ones(len(index), bool), sign, margin) for sign in (-1, 1))
            else:
                parts = [self.classes[kept] == code for code in np.unique(self.classes[kept])]
                count = np.array([len(np.unique(index[part])) for part in parts])
                # Both the distribution within a class and its frequency are off.
                offs = 2 * margin * units / count
                lows, highs = (
                    np.array(
                        [end(*one) for one in zip(parts, [sign] * len(parts), offs, strict=True)]
                    )
                    for sign in (-1, 1)
                )
                sure, possible = (
                    count + off >= FEWEST_SHIFTED for off in (-margin * units, margin * units)
                )
                low, high = map(float, _agreement_range(lows, highs, sure, possible))
        return self._corners(priors, low, high)

    def _is_shifted(self, units: int) -> bool:
        wanted = self.score.is_shifted
        # The quantile of a one-sided bound contains the shift already.
        wanted = self.score.side == "two" if wanted is None else wanted
        return wanted and self.cases.targets is not None and units >= FEWEST_SHIFTED

    def _corners(self, priors: Any, low: Any, high: Any) -> tuple[SelfTunedScore, ...]:
        shifts = [0.0] if np.ndim(low) == 0 and low == high == 0 else [low, high]
        return tuple(
            replace(self.score, prior=prior, shift=shift) for prior in priors for shift in shifts
        )


def _middle(low: Any, high: Any) -> Any:
    return low / 2 + high / 2


def _shift_range(
    ratios: Sequence[FloatArray], index: NDArray[np.int64], units: int
) -> tuple[float, FloatArray, FloatArray]:
    """Return the shift, and bounds on it if any one of ``units`` units is replaced, (unit,).

    ``ratios`` are scaled residuals under the fitted prior and under its two extremes.
    """
    has, inner = np.unique(index, return_inverse=True)
    levels, found = (_tail(units), 1 - _tail(units)), []
    for values in ratios:
        order = np.argsort(values, kind="stable")
        found.append([_among(values, inner, has, units, level, order) for level in levels])
    own, *others = found
    # Each quantile has its extremes at the ends of the prior, their middle need not.
    pairs = list(zip(*others, strict=True))
    return (
        _middle(*(one.value for one in own)),
        _middle(*(np.minimum(a.low, b.low) for a, b in pairs)),
        _middle(*(np.maximum(a.high, b.high) for a, b in pairs)),
    )


def _among(
    values: FloatArray,
    inner: NDArray[np.int64],
    has: NDArray[np.int64],
    units: int,
    level: float,
    order: NDArray[np.int64],
) -> _UnitQuantile:
    """Return a quantile over the units that have values, and bounds on it if a unit is replaced."""
    found = unit_quantile(values, inner, level, order)
    if len(has) == units:
        return found
    # For another unit none of these is left out, and the new one may be one more.
    share = level * (len(has) + 1)
    total = np.cumsum(1 / np.bincount(inner)[inner[order]])
    ordered = np.append(values[order], np.inf)
    ends = np.searchsorted(total, [share - 1 - SLACK, share + SLACK])
    low = np.full(units, ordered[ends[0]] if share - 1 - SLACK > 0 else -np.inf)
    high = np.full(units, ordered[ends[1]])
    low[has], high[has] = found.low, found.high
    return _UnitQuantile(found.value, low, high)


def _shared_shift(
    ratios: Sequence[FloatArray], index: NDArray[np.int64], classes: NDArray[np.int64]
) -> tuple[float, FloatArray, FloatArray]:
    """Return one shift for all classes: the value nearest to 0 in the range of the class shifts.

    Also return, for each unit, bounds on this shift if the unit is replaced.
    """
    units, shifts, lows, highs, others = int(index.max()) + 1, [], [], [], []
    for inside in (classes == code for code in np.unique(classes)):
        shift, low, high = _shift_range([r[inside] for r in ratios], index[inside], units)
        has = np.bincount(index[inside], minlength=units) > 0
        others.append(has.sum() - has)
        shifts.append(shift if has.sum() >= FEWEST_SHIFTED else np.nan)
        lows.append(low)
        highs.append(high)
    known = np.array(shifts)[~np.isnan(shifts)]
    shift = float(np.clip(0.0, known.min(), known.max())) if known.size else 0.0
    count = np.stack(others)
    sure, possible = count >= FEWEST_SHIFTED, count + 1 >= FEWEST_SHIFTED
    return shift, *_agreement_range(np.stack(lows), np.stack(highs), sure, possible)


def _agreement_range(
    low: FloatArray, high: FloatArray, sure: BoolArray, possible: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Return bounds on the shift shared by all classes, from bounds (class, unit) by class."""
    ends = []
    for end in (low, high):
        least = np.where(sure, end, np.inf).min(axis=0)
        most = np.where(sure, end, -np.inf).max(axis=0)
        # Classes in doubt can only move the shift towards 0, unless there are no others.
        ends.append(np.where(sure.any(axis=0), np.clip(0.0, least, np.maximum(least, most)), 0.0))
    doubt, alone = (possible & ~sure).any(axis=0), ~sure.any(axis=0)
    least = np.where(possible & alone, low, 0.0).min(axis=0)
    most = np.where(possible & alone, high, 0.0).max(axis=0)
    return (
        np.where(doubt, np.minimum(np.minimum(ends[0], least), 0.0), ends[0]),
        np.where(doubt, np.maximum(np.maximum(ends[1], most), 0.0), ends[1]),
    )


def _covariate(mean: FloatArray, link: Link) -> FloatArray:
    """Return log(t (1 - t)) / 2, where t in [0, 1] is the mean's position in the task range."""
    if link.is_identity:
        return np.zeros_like(mean)
    t = np.clip((mean - link.low) / (link.high - link.low), 0, 1)
    return np.asarray(np.log(t * (1 - t) + 1e-4) / 2)
