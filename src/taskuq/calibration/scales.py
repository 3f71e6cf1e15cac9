"""Bringing the scores of several tasks to one scale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from taskuq.interval import FloatArray

Method: TypeAlias = Literal["max", "scale", "minimax", "rank"]


@dataclass(frozen=True)
class MonotoneScale:
    """A strictly increasing, piecewise linear map that goes on beyond its knots.

    Arguments:
        knots: Rising scores.
        values: Their images, rising.

    Example:
        >>> scale = MonotoneScale((0.0, 1.0, 3.0), (0.0, 0.5, 1.0))
        >>> scale(np.array([0.5, 3.0, 5.0, np.inf]))
        array([0.25, 1.  , 1.5 ,  inf])
        >>> round(scale.inverse(1.5), 12)
        5.0
    """

    knots: tuple[float, ...]
    values: tuple[float, ...]

    def __call__(self, scores: FloatArray) -> FloatArray:
        """Map scores to the common scale."""
        return _interpolate(scores, np.array(self.knots), np.array(self.values))

    def inverse(self, value: float) -> float:
        """Map a value of the common scale back to a score."""
        if self.knots == self.values or not math.isfinite(value):
            return value
        images, knots = np.array(self.values), np.array(self.knots)
        score = float(_interpolate(np.array([value]), images, knots)[0])
        # There and back rounds, relative to the value and to the knots, which may be far larger
        # than the score; the score that set the value must not be lost to that.
        low = np.clip(np.searchsorted(images, value, "right") - 1, 0, len(images) - 2)
        steepness = (knots[low + 1] - knots[low]) / (images[low + 1] - images[low])
        size = abs(score) + abs(score - knots[low]) + abs(value) * steepness
        return score + 8 * float(np.finfo(float).eps) * float(size)


def _interpolate(at: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    low = np.clip(np.searchsorted(x, at, "right") - 1, 0, len(x) - 2)
    slope = (y[low + 1] - y[low]) / (x[low + 1] - x[low])
    return np.asarray(y[low] + slope * (at - x[low]))


def make_scales(
    method: Method, tuning: FloatArray, tasks: int, alpha: float
) -> list[MonotoneScale]:
    """Return what brings the scores of each task to one scale.

    Arguments:
        method: How that is done.
        tuning: Scores of the tuning cases (case, task).
        tasks: The number of tasks.
        alpha: The error rate.
    """
    if method == "max":
        return [MonotoneScale((0.0, 1.0), (0.0, 1.0))] * tasks
    scales = []
    for k in range(tasks):
        finite = np.unique(tuning[:, k][np.isfinite(tuning[:, k])])
        if method == "scale":
            high = float(np.quantile(finite, 1 - alpha / 2)) if finite.size else 1.0
            scales.append(MonotoneScale((0.0, high if high > 0 else 1.0), (0.0, 1.0)))
            continue
        if finite.size < 2:
            scales.append(MonotoneScale((0.0, 1.0), (0.0, 1.0)))
            continue
        share = np.searchsorted(np.sort(tuning[:, k]), finite, "right") / (len(tuning) + 1)
        scales.append(MonotoneScale(tuple(map(float, finite)), tuple(map(float, share))))
    return scales
