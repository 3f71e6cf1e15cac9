"""A small robust ridge regression whose predictions never extrapolate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskuq.files import numbers_from_json
from taskuq.interval import FloatArray


@dataclass(frozen=True)
class RobustRidge:
    r"""Coefficients of :math:`y \approx b_0 + \sum_k b_k t_k`, features standardised and clipped.

    Arguments:
        intercept: :math:`b_0`.
        coefficients: :math:`b_k`.
        centers: The mean of each feature in the fit.
        widths: The standard deviation of each feature in the fit.
        lows: The smallest value of each feature in the fit; smaller ones are moved there.
        highs: The largest.
    """

    intercept: float
    coefficients: tuple[float, ...]
    centers: tuple[float, ...]
    widths: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]

    def __call__(self, features: FloatArray) -> FloatArray:
        """Predict from features (case, feature)."""
        inside = np.clip(features, self.lows, self.highs)
        standard = (inside - self.centers) / np.asarray(self.widths)
        # Column by column: a matrix product would round differently for other numbers of cases.
        total = np.full(len(features), self.intercept)
        for column, coefficient in zip(standard.T, self.coefficients, strict=True):
            total += column * coefficient
        return total


def ridge_from_dict(record: Mapping[str, Any]) -> RobustRidge:
    """Read a regression back from its fields."""
    vectors = {k: numbers_from_json(v) for k, v in record.items() if k != "intercept"}
    return RobustRidge(intercept=float(record["intercept"]), **vectors)


def fit_robust_ridge(
    features: FloatArray, response: FloatArray, penalty: float = 3.0, rounds: int = 6
) -> RobustRidge:
    r"""Fit by ridge with a free intercept, down-weighting responses far from the fit.

    Residuals beyond twice their median absolute deviation get Huber weights
    :math:`2\,\mathrm{MAD}/|r|`, recomputed in a few rounds.

    Arguments:
        features: Features (case, feature), without a constant.
        response: What to predict (case,).
        penalty: The ridge penalty on standardised coefficients.
        rounds: How many times weights are recomputed.

    Example:
        >>> x = rng.standard_normal((200, 1))
        >>> y = 2 * x[:, 0] + 1
        >>> y[:5] += 50  # outliers hardly matter
        >>> fit = fit_robust_ridge(x, y)
        >>> bool(abs(fit(np.array([[0.0], [1.0]])) - [1, 3]).max() < 0.1)
        True
    """
    centers = features.mean(axis=0)
    widths = features.std(axis=0)
    widths = np.where(widths > 1e-12 * (1 + np.abs(centers)), widths, 1.0)
    design = np.column_stack([np.ones(len(features)), (features - centers) / widths])
    ridge = np.diag(np.r_[0.0, np.full(features.shape[1], penalty)])
    weights = np.ones(len(features))
    b = np.zeros(design.shape[1])
    for _ in range(rounds):
        weighted = design * weights[:, None]
        b = np.linalg.solve(weighted.T @ design + ridge, weighted.T @ response)
        residual = np.abs(response - design @ b)
        cut = 2 * float(np.median(residual)) + 1e-12
        weights = np.minimum(1.0, cut / np.maximum(residual, 1e-300))
    return RobustRidge(
        intercept=float(b[0]),
        coefficients=tuple(map(float, b[1:])),
        centers=tuple(map(float, centers)),
        widths=tuple(map(float, widths)),
        lows=tuple(map(float, features.min(axis=0))),
        highs=tuple(map(float, features.max(axis=0))),
    )
