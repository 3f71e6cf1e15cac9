"""Windows where targets most probably lie, by the residuals that tuning cases had."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from taskuq.calibration.family import AnchoredFamily
from taskuq.decide.goal import Goal
from taskuq.errors import InputError
from taskuq.interval import FloatArray, Interval, TaskRange

# The log odds at which quantiles are remembered; between and beyond them the law is logistic.
LOG_ODDS = np.arange(-10, 11) / 2
# How many points stand for the kernel around a residual.
POINTS = 40


@final
@dataclass(frozen=True)
class ResidualLaw:
    r"""The distribution function :math:`F` of residuals over scales, in pieces of logistic laws.

    .. math:: \log\frac{F(r)}{1 - F(r)} =
        \ell_j + \frac{\ell_{j+1} - \ell_j}{q_{j+1} - q_j} (r - q_j), \qquad q_j \le r \le q_{j+1}

    and straight on beyond the first and the last, so that no residual is impossible.

    Arguments:
        quantiles: The quantiles :math:`q_j` at log odds :math:`\ell_j` from -5 to 5, by halves.

    Example:
        >>> law = ResidualLaw(tuple(LOG_ODDS))  # the logistic law itself
        >>> float(law.outside(np.array(-1.0), np.array(1.0)).round(6)), round(2 / (1 + np.e), 6)
        (0.537883, 0.537883)
    """

    quantiles: tuple[float, ...]

    def __post_init__(self) -> None:
        q = np.asarray(self.quantiles, dtype=float)
        if q.shape != LOG_ODDS.shape or not np.isfinite(q).all() or not (np.diff(q) > 0).all():
            raise InputError(
                f"a law of residuals needs {LOG_ODDS.size} rising quantiles; plan again"
            )

    def log_odds(self, residuals: FloatArray) -> FloatArray:
        """Return the log odds that a residual is at most so large; infinite ones are certain."""
        q = np.asarray(self.quantiles)
        slopes = np.diff(LOG_ODDS) / np.diff(q)
        piece = np.clip(np.searchsorted(q, residuals) - 1, 0, len(slopes) - 1)
        return np.asarray(LOG_ODDS[piece] + slopes[piece] * (residuals - q[piece]))

    def outside(self, below: FloatArray, above: FloatArray) -> FloatArray:
        """Return the probability of a residual outside of [below, above]."""
        from scipy.special import expit

        # A sum of two tails: one minus what lies between would lose small ones to rounding.
        return np.asarray(expit(self.log_odds(below)) + expit(-self.log_odds(above)))


def fit_residual_law(residuals: FloatArray) -> ResidualLaw:
    r"""Fit the law of residuals, each of them smoothed by a logistic kernel.

    The kernel has the standard deviation :math:`0.9\, \mathrm{IQR} / 1.34\, n^{-1/5}`.

    References:
        Silverman, Density Estimation for Statistics and Data Analysis, 1986.

    Arguments:
        residuals: Residuals over their predicted sizes (case,).

    Example:
        >>> law = fit_residual_law(rng.standard_normal(1000))
        >>> bool(abs(law.outside(np.array(-1.96), np.array(1.96)) - 0.05) < 0.02)
        True
    """
    share = (np.arange(POINTS) + 0.5) / POINTS
    iqr = float(np.subtract(*np.quantile(residuals, [0.75, 0.25])))
    deviation = 0.9 * iqr / 1.34 * len(residuals) ** -0.2
    width = deviation * np.sqrt(3) / np.pi
    smoothed = residuals[:, None] + width * np.log(share / (1 - share))
    quantiles = np.quantile(smoothed, 1 / (1 + np.exp(-LOG_ODDS)))
    # Residuals that are all the same have quantiles that are; a law has to rise.
    least = 1e-9 * (1 + float(np.abs(quantiles).max()))
    return ResidualLaw(tuple(map(float, quantiles + least * np.arange(len(quantiles)))))


def probable_window(
    family: AnchoredFamily, law: ResidualLaw, goal: Goal, place: TaskRange
) -> tuple[Interval, FloatArray]:
    r"""Return the windows that most probably contain the targets, and their probability of a miss.

    .. math:: p = \min_l \Big\{ F\Big(\frac{g(l) - m}{u}\Big) + 1 -
        F\Big(\frac{g(l + \tau) - m}{u}\Big) \Big\}

    over the window around the centre and all windows with an end at a remembered quantile of the
    target, moved into their place. An end at the end of the place misses nothing.

    Arguments:
        family: Centres :math:`m` and scales :math:`u` of cases, and the link :math:`g`.
        law: The law :math:`F` of residuals over scales.
        goal: The width :math:`\tau`.
        place: The range to stay in, if any.

    Example:
        >>> from taskuq.calibration.link import Link
        >>> center = np.array([0.3, 0.3])  # undecided: almost sure, and any number
        >>> family = AnchoredFamily(center, center, np.array([0.01, 3.0]), link=Link("logit"))
        >>> window, p = probable_window(
        ...     family, ResidualLaw(tuple(LOG_ODDS)), Goal(max_width=0.2), (0.0, 1.0)
        ... )
        >>> window.lower.round(2), p.round(2)
        (array([0.47, 0.8 ]), array([0.  , 0.59]))
    """
    assert goal.max_width is not None
    tau, link = goal.max_width, family.link
    m, u = family.high[:, None], family.scale[:, None]
    low, high = place or (-np.inf, np.inf)
    top = max(low, high - tau)
    # The window around the centre first: it is kept where no other is better.
    around = goal.window(family.high, link, place)[0].lower[:, None]
    ends = link.inverse(m + u * np.asarray(law.quantiles))
    lower = np.clip(np.concatenate([around, ends, ends - tau], axis=1), low, top)
    # (high - tau) + tau may round to less than high, and would lose a target there.
    upper = np.maximum(lower + tau, np.where(lower >= top, high, -np.inf))
    below = np.where(lower <= low, -np.inf, (link(lower) - m) / u)
    above = np.where(upper >= high, np.inf, (link(upper) - m) / u)
    missed = law.outside(below, above)
    best = np.arange(len(missed)), missed.argmin(axis=1)
    return Interval(lower[best], upper[best]), missed[best]
