"""Intervals as pairs of arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taskuq.errors import import_extra

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

    Unpack it into ``lower, upper``, or pass it to NumPy, which sees an array (case, 2), or
    (case, task, 2) for several tasks.

    Args:
        lower: The lower ends, any shape.
        upper: The upper ends, the same shape.
        case: Ids of the cases along the first axis, if known.
        task_names: Names of the tasks along the last axis, for several tasks.

    Example:
        >>> interval = Interval([0.1, 0.6, -0.2], [0.3, 0.5, 0.2])
        >>> lower, upper = interval
        >>> np.asarray(interval).shape
        (3, 2)
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
    case: NDArray[Any] | None
    task_names: tuple[str, ...]

    def __init__(
        self,
        lower: ArrayLike,
        upper: ArrayLike,
        *,
        case: NDArray[Any] | None = None,
        task_names: tuple[str, ...] = (),
    ) -> None:
        lower_ends, upper_ends = np.broadcast_arrays(
            np.asarray(lower, dtype=float), np.asarray(upper, dtype=float)
        )
        object.__setattr__(self, "lower", lower_ends)
        object.__setattr__(self, "upper", upper_ends)
        object.__setattr__(self, "case", case)
        object.__setattr__(self, "task_names", task_names)

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
        lower, upper = np.maximum(self.lower, low), np.minimum(self.upper, high)
        return Interval(lower, upper, case=self.case, task_names=self.task_names)

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with columns lower, upper and width.

        Its index holds the ids of the cases, if known; with several tasks, case and task.

        Raises:
            InputError: If pandas is not installed.
        """
        pandas = import_extra("pandas", "pandas")
        columns = {"lower": self.lower, "upper": self.upper, "width": self.width}
        cases = self.case
        if cases is None:
            cases = np.arange(self.lower.shape[0] if self.lower.ndim else 1)
        index = pandas.Index(np.atleast_1d(cases), name="case")
        if self.task_names:
            index = pandas.MultiIndex.from_product([index, self.task_names], names=["case", "task"])
        return pandas.DataFrame({n: np.ravel(v) for n, v in columns.items()}, index=index)

    def _repr_html_(self) -> str:
        return str(self.to_frame().head(SHOWN).to_html())

    def __iter__(self) -> Iterator[FloatArray]:
        return iter((self.lower, self.upper))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.stack([self.lower, self.upper], axis=-1, dtype=dtype)

    def __repr__(self) -> str:
        if self.lower.ndim == 0:
            return _pair(float(self.lower), float(self.upper))
        ends = zip(self.lower.ravel()[:SHOWN], self.upper.ravel()[:SHOWN], strict=True)
        more = self.lower.size - SHOWN
        return "\n".join([_pair(*pair) for pair in ends] + [f"... {more} more"] * (more > 0))

    def __len__(self) -> int:
        return len(self.lower)

    def __getitem__(self, index: Any) -> Interval:
        first, *rest = index if isinstance(index, tuple) else (index,)
        case = None if self.case is None else self.case[first]
        names = self.task_names
        for at in rest if names else ():
            picked = np.asarray(names)[at]
            names = tuple(picked.tolist()) if picked.ndim else ()
        return Interval(self.lower[index], self.upper[index], case=case, task_names=names)


def _pair(lower: float, upper: float) -> str:
    return "empty" if lower > upper else f"[{lower:.4g}, {upper:.4g}]"
