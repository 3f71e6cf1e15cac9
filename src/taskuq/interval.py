"""Intervals as pairs of arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray: TypeAlias = NDArray[np.floating]
BoolArray: TypeAlias = NDArray[np.bool_]
# The lowest and the highest value that a task can have, where it has any.
TaskRange: TypeAlias = tuple[float, float] | None

# Intervals that are printed one by one.
SHOWN = 10


@dataclass(frozen=True, slots=True, eq=False)
class Interval:
    r"""Closed intervals :math:`[\ell_i, u_i]`, one for each case.

    An interval whose ends cross (:math:`\ell_i > u_i`, which CQR can produce) is *empty*: it has
    width 0 and contains nothing.

    Args:
        lower: The lower ends, any shape.
        upper: The upper ends, the same shape.

    Example:
        >>> interval = Interval([0.1, 0.6, -0.2], [0.3, 0.5, 0.2])
        >>> interval.width
        array([0.2, 0. , 0.4])
        >>> interval.is_empty
        array([False,  True, False])
        >>> interval.contains([0.3, 0.55, 0.0])
        array([ True, False,  True])
        >>> interval.clip(0, 1).lower
        array([0.1, 0.6, 0. ])
    """

    lower: FloatArray
    upper: FloatArray

    def __init__(self, lower: ArrayLike, upper: ArrayLike) -> None:
        lower_ends, upper_ends = np.broadcast_arrays(
            np.asarray(lower, dtype=float), np.asarray(upper, dtype=float)
        )
        object.__setattr__(self, "lower", lower_ends)
        object.__setattr__(self, "upper", upper_ends)

    @property
    def is_empty(self) -> BoolArray:
        """True where the ends cross."""
        return np.asarray(self.lower > self.upper)

    @property
    def is_unbounded(self) -> BoolArray:
        """True where at least one end is infinite."""
        return np.asarray(np.isinf(self.lower) | np.isinf(self.upper))

    @property
    def width(self) -> FloatArray:
        """Upper minus lower end; 0 where the interval is empty."""
        # An interval that is empty at infinity would otherwise give inf - inf.
        width = np.subtract(
            self.upper, self.lower, out=np.zeros(self.lower.shape), where=~self.is_empty
        )
        return np.asarray(width)

    @property
    def center(self) -> FloatArray:
        """Midpoint, a point estimate of the target."""
        # Halving first keeps two ends near the largest float from overflowing.
        return np.asarray(self.lower / 2 + self.upper / 2)

    def contains(self, values: ArrayLike) -> BoolArray:
        """Return True where a value lies in its interval, ends included."""
        z = np.asarray(values, dtype=float)
        return np.asarray((self.lower <= z) & (z <= self.upper))

    def clip(self, low: float, high: float) -> Interval:
        """Return the part of each interval inside [low, high]."""
        return Interval(np.maximum(self.lower, low), np.minimum(self.upper, high))

    def __repr__(self) -> str:
        if self.lower.ndim == 0:
            return _pair(float(self.lower), float(self.upper))
        ends = zip(self.lower.ravel()[:SHOWN], self.upper.ravel()[:SHOWN], strict=True)
        more = self.lower.size - SHOWN
        return "\n".join([_pair(*pair) for pair in ends] + [f"... {more} more"] * (more > 0))

    def __len__(self) -> int:
        return len(self.lower)

    def __getitem__(self, index: Any) -> Interval:
        return Interval(self.lower[index], self.upper[index])


def _pair(lower: float, upper: float) -> str:
    return "empty" if lower > upper else f"[{lower:.4g}, {upper:.4g}]"
