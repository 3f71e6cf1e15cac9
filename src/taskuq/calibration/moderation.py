"""Spread of a few samples, steadied by what the other cases say about spreads."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from taskuq.interval import FloatArray

# Identical samples get this variance, so that logarithms exist.
LEAST_VARIANCE = 1e-12
MANY_DEGREES = 1000.0


@dataclass(frozen=True)
class SpreadPrior:
    r"""What is known about the spread of a case before its samples are seen.

    The sample variance :math:`v` on :math:`d = p - 1` degrees of freedom is shrunk towards a
    trend :math:`s_0^2(x)` in a covariate :math:`x`, as if the trend had been seen on
    :math:`d_0` degrees of freedom:

    .. math:: \tilde\sigma^2 = \frac{d_0\, s_0^2(x) + d\, v}{d_0 + d}, \qquad
        s_0^2(x) = \exp\{c_0 + c_1 x + c_2 x^2 + \psi(d_0/2) - \log(d_0/2)\}

    References:
        Smyth, Linear Models and Empirical Bayes Methods for Assessing Differential Expression,
        2004.

    Arguments:
        coefficients: :math:`c_0, c_1, c_2`.
        degrees: :math:`d_0`.
        covariate_range: The covariates seen when fitting; others are moved to its ends.
        typical: The median of :math:`\tilde\sigma` over the fitting cases.
    """

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
        """:math:`s_0^2(0)`."""
        return np.asarray(np.exp(self.coefficients[0] + self._shift))

    @property
    def _shift(self) -> float:
        from scipy.special import digamma

        half = self.degrees / 2
        return float(digamma(half) - np.log(half))


def fit_spread_prior(variance: FloatArray, covariate: FloatArray, samples: int) -> SpreadPrior:
    r"""Fit the prior of spreads by matching two moments of :math:`\log v`.

    With :math:`e = \log v - \psi(d/2) + \log(d/2)` regressed on :math:`(1, x, x^2)`, the excess of
    the residual variance over :math:`\psi_1(d/2)` is :math:`\psi_1(d_0/2)`.

    Arguments:
        variance: Sample variances with ``ddof=1`` (case,), at least two samples each.
        covariate: The covariate :math:`x` (case,); constant where there is no trend.
        samples: The number :math:`p` of samples behind each variance.

    Example:
        >>> spread = rng.gamma(4.0, 0.01, size=500)
        >>> draws = spread[:, None] * rng.standard_normal((500, 4))
        >>> prior = fit_spread_prior(draws.var(axis=1, ddof=1), np.zeros(500), samples=4)
        >>> moderated = prior.moderated(draws.var(axis=1, ddof=1), np.zeros(500), samples=4)
        >>> bool(abs(moderated - spread).mean() < abs(draws.std(axis=1, ddof=1) - spread).mean())
        True
    """
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
    typical = float(np.median(prior.moderated(v, covariate, samples)))
    return replace(prior, typical=typical)


def _inverse_trigamma(value: float) -> float:
    """Solve trigamma(y) = value by Newton steps on 1/trigamma, which is nearly linear."""
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
