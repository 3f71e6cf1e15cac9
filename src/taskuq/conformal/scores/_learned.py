"""Score whose centre and width are predicted by regressions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from taskuq.conformal._family import (
    IDENTITY,
    LinearFamily,
    Link,
    NestedIntervalScore,
    Side,
    mean_and_deviation,
    natural_link,
)
from taskuq.conformal.scores._mlwr import SpreadPrior, fit_spread_prior
from taskuq.errors import InputError
from taskuq.interval import FloatArray, TaskRange

FOLDS = 5
# Largest standardised number: its powers are floats.
FARTHEST = 1e50
# Every fold has at least two cases.
FEWEST_TO_LEARN = 2 * FOLDS
# The ridge penalty on standardised coefficients, and how often weights are recomputed.
PENALTY, WEIGHTINGS = 3.0, 6


class _SampleMoments(NamedTuple):
    mean: FloatArray
    spread: FloatArray
    skewness: FloatArray


@dataclass(frozen=True)
class _RobustRidge:
    intercept: float
    coefficients: tuple[float, ...]
    centers: tuple[float, ...]
    widths: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]

    def __call__(self, features: FloatArray) -> FloatArray:
        inside = np.clip(features, self.lows, self.highs)
        standard = (inside - self.centers) / np.asarray(self.widths)
        # Column by column: a matrix product would round differently for other numbers of cases.
        total = np.full(len(features), self.intercept)
        for column, coefficient in zip(standard.T, self.coefficients, strict=True):
            total += column * coefficient
        return total


def _fit_robust_ridge(features: FloatArray, response: FloatArray) -> _RobustRidge:
    """Fit a ridge regression with unpenalised intercept and low weights for outliers."""
    centers = features.mean(axis=0)
    widths = features.std(axis=0)
    varies = widths > 1e-12 * (1 + np.abs(centers))
    widths = np.where(varies, widths, 1.0)
    # What is left of a constant is rounding, which for large numbers is large: it must not count.
    standard = np.where(varies, (features - centers) / widths, 0.0)
    design = np.column_stack([np.ones(len(features)), standard])
    ridge = np.diag(np.r_[0.0, np.full(features.shape[1], PENALTY)])
    weights = np.ones(len(features))
    b = np.zeros(design.shape[1])
    for _ in range(WEIGHTINGS):
        weighted = design * weights[:, None]
        b = np.linalg.solve(weighted.T @ design + ridge, weighted.T @ response)
        residual = np.abs(response - design @ b)
        cut = 2 * float(np.median(residual)) + 1e-12
        weights = np.minimum(1.0, cut / np.maximum(residual, 1e-300))
    columns = b[1:], centers, widths, features.min(axis=0), features.max(axis=0)
    return _RobustRidge(float(b[0]), *(tuple(map(float, column)) for column in columns))


@dataclass(frozen=True)
class _LocationScale:
    """Fitted regressions for the location and the divisor of :class:`LearnedScore`."""

    prior: SpreadPrior | None
    location: _RobustRidge
    scale: _RobustRidge
    typical_spreads: tuple[float, ...]
    typical_moves: tuple[float, ...]
    # Without a range: numbers are measured from the origin in this unit.
    origin: float = 0.0
    unit: float = 1.0

    def standardise(self, values: FloatArray) -> FloatArray:
        if (self.origin, self.unit) == (0, 1):
            return values
        return np.asarray(np.clip((values - self.origin) / self.unit, -FARTHEST, FARTHEST))


@dataclass(frozen=True)
class LearnedScore(NestedIntervalScore):
    r"""Distance of the target from a predicted location, divided by a predicted residual.

    .. math:: s = \frac{|g(z) - m|}{s_x}, \qquad
        \mathcal C = g^{-1}[\,m - \hat q s_x,\; m + \hat q s_x\,]

    The link :math:`g` is a logit on the task range if this is finite, else the identity. Two robust
    ridge regressions predict the location :math:`m` and the divisor :math:`s_x`, the size of the
    residual :math:`g(z) - m`. Their features are mean, regularised spread and skewness of the
    samples after applying :math:`g`, and in a multi-round scan the changes since the earlier
    rounds. They are fitted to tuning cases only, so the guarantee of the calibration on other
    cases holds however poor the fit. Use this score with 400 or more calibration cases.

    Args:
        side: 'two', 'upper' or 'lower'.
        model: Fitted regressions; None before :meth:`fit`.
        link: Link :math:`g`, set by :meth:`fit`.

    Example:
        >>> truth = rng.uniform(0.2, 0.8, 400)
        >>> outputs = truth[:, None] + 0.1 + 0.02 * rng.standard_normal((400, 8))  # biased by 0.1
        >>> score = LearnedScore().fit(outputs[:200], truth[:200], range_=(0, 1))
        >>> center = score.interval(outputs[200:], quantile=1.0).center
        >>> bool(abs(center - truth[200:]).mean() < 0.02)
        True
    """

    uses_earlier_rounds: ClassVar[bool] = True
    tuning_needs_targets: ClassVar[bool] = True
    tuning_fraction: ClassVar[float] = 0.3

    # The field's name in stored files.
    STORED: ClassVar[dict[str, str]] = {"model": "fit"}

    side: Side = "two"
    model: _LocationScale | None = None
    link: Link = IDENTITY

    def fit(
        self,
        outputs: FloatArray,
        targets: FloatArray | None = None,
        *,
        range_: TaskRange = None,
        group: np.ndarray | None = None,
    ) -> LearnedScore:
        """Return the score fitted to targets and outputs, ([round,] case, sample)."""
        rounds = outputs if outputs.ndim == 3 else outputs[None]
        cases = rounds.shape[1]
        if targets is None or cases < FEWEST_TO_LEARN:
            count = f"{FEWEST_TO_LEARN} tuning cases, got {0 if targets is None else cases}"
            message = f"score='learned' needs at least {count}; collect more or use score='mlwr'"
            raise InputError(message, code="units.few")
        link = natural_link(range_)
        origin, unit = _standard(targets) if link.is_identity else (0.0, 1.0)
        where = replace(_UNFITTED, origin=origin, unit=unit)
        shapes = [_shape(where.standardise(link(of_round))) for of_round in rounds]
        p, current = rounds.shape[2], shapes[-1]
        prior = fit_spread_prior(current.spread, current.mean / 2, p) if p > 1 else None
        spreads = [float(np.median(shape.spread)) for shape in shapes]
        moves = [float(np.median(np.abs(current.mean - past.mean))) for past in shapes[:-1]]
        unfitted = replace(
            where, prior=prior, typical_spreads=tuple(spreads), typical_moves=tuple(moves)
        )
        truth = where.standardise(link(targets))
        return replace(self, model=_fit_model(unfitted, shapes, truth, p, group), link=link)

    @property
    def needs_tuning(self) -> bool:
        return self.model is None

    def family(self, outputs: FloatArray) -> LinearFamily:
        if self.model is None:
            raise InputError("the score is not fitted; call fit", code="component.invalid")
        rounds = outputs if outputs.ndim == 3 else outputs[None]
        expected = len(self.model.typical_spreads)
        if len(rounds) != expected:
            message = f"score='learned' needs outputs of {expected} rounds, got {len(rounds)}"
            raise InputError(message, code="samples.mismatch")
        model = self.model
        shapes = [_shape(model.standardise(self.link(of_round))) for of_round in rounds]
        steadied = _steadied(model, shapes[-1], rounds.shape[2])
        bias = model.location(_location_features(model, shapes, steadied))
        m = model.origin + model.unit * (shapes[-1].mean + steadied * bias)
        s = model.unit * np.exp(model.scale(_scale_features(model, shapes, steadied)))
        return LinearFamily(m, m, s, self.side, self.link)


_NOTHING = _RobustRidge(0.0, (), (), (), (), ())
_UNFITTED = _LocationScale(None, _NOTHING, _NOTHING, (), ())


def _standard(targets: FloatArray) -> tuple[float, float]:
    """Return the median and the median absolute deviation of the targets."""
    ordered = np.sort(targets)
    origin = float(ordered[len(ordered) // 2])
    distances = np.sort(np.abs(ordered - origin))
    unit = float(distances[len(distances) // 2] or distances[-1])
    return origin, unit or 1.0


def _fit_model(
    unfitted: _LocationScale,
    shapes: list[_SampleMoments],
    truth: FloatArray,
    p: int,
    group: np.ndarray | None,
) -> _LocationScale:
    current = shapes[-1]
    steadied = _steadied(unfitted, current, p)
    features = _location_features(unfitted, shapes, steadied)
    response = (truth - current.mean) / steadied
    # Residuals of a fit on its own cases would make the scale too small: predict each fold from
    # the others, and keep a group in one fold because its cases resemble each other.
    unit = np.arange(len(truth)) if group is None else np.unique(group, return_inverse=True)[1]
    residual = np.empty_like(response)
    for fold in range(FOLDS):
        held_out = unit % FOLDS == fold
        if held_out.all() or not held_out.any():
            held_out = np.arange(len(truth)) % FOLDS == fold
        model = _fit_robust_ridge(features[~held_out], response[~held_out])
        residual[held_out] = response[held_out] - model(features[held_out])
    error = np.abs(residual) * steadied
    floor = 0.05 * float(np.median(error)) + 1e-12
    by_scale = _scale_features(unfitted, shapes, steadied)
    scale = _fit_robust_ridge(by_scale, np.log(error + floor))
    return replace(unfitted, location=_fit_robust_ridge(features, response), scale=scale)


def _shape(outputs: FloatArray) -> _SampleMoments:
    mean, spread = mean_and_deviation(outputs, ddof=1)
    deviations = outputs - mean[:, None]
    # Much quicker than a power of 3.
    cubes = (deviations * deviations * deviations).mean(axis=1)
    skewness = np.divide(cubes, spread**3, out=np.zeros_like(cubes), where=spread > 1e-12)
    return _SampleMoments(mean, spread, np.clip(skewness, -3, 3))


def _steadied(model: _LocationScale, current: _SampleMoments, p: int) -> FloatArray:
    if model.prior is None:
        return np.ones_like(current.mean)
    return model.prior.moderated(current.spread, current.mean / 2, p)


def _location_features(
    model: _LocationScale, shapes: list[_SampleMoments], steadied: FloatArray
) -> FloatArray:
    current = shapes[-1]
    half = current.mean / 2
    columns = [half, half**2, np.log(steadied), current.skewness]
    unit = current.spread + model.typical_spreads[-1] + 1e-12
    columns += [np.clip((current.mean - past.mean) / unit, -20, 20) for past in shapes[:-1]]
    return np.column_stack(columns)


def _scale_features(
    model: _LocationScale, shapes: list[_SampleMoments], steadied: FloatArray
) -> FloatArray:
    current = shapes[-1]
    half = current.mean / 2
    columns = [half, half**2, np.log(steadied), current.skewness, np.abs(half)]
    typical = model.typical_moves, model.typical_spreads[:-1]
    for past, move, spread in zip(shapes[:-1], *typical, strict=True):
        columns.append(np.log(np.abs(current.mean - past.mean) + 0.1 * move + 1e-12))
        columns.append(np.log(past.spread + 0.01 * spread + 1e-12))
    return np.column_stack(columns)
