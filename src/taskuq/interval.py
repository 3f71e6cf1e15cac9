"""Intervals of many cases, stored as arrays of lower and upper ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taskuq._display import MOST_BARS, MOST_ROWS, Displayed, Summary, svg
from taskuq.errors import InputError, import_extra

if TYPE_CHECKING:
    import pandas

FloatArray: TypeAlias = NDArray[np.floating]
BoolArray: TypeAlias = NDArray[np.bool_]
# The lowest and the highest value that a task can have, where it has any.
TaskRange: TypeAlias = tuple[float, float] | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Interval(Displayed):
    r"""Closed intervals :math:`[\ell_i, u_i]`, one for each case.

    An interval whose ends cross (:math:`\ell_i > u_i`, which CQR can produce) is *empty*: it has
    width 0 and contains nothing.

    The object unpacks into ``lower, upper`` and converts to a NumPy array (case, 2), or
    (case, task, 2) for several tasks.

    Args:
        lower: Lower ends, an array of any shape.
        upper: Upper ends, of the same shape.
        case: Ids of the cases along the first axis, if known.
        task_names: Names of the tasks along the last axis, if there are several.

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
        ends = np.asarray(lower, dtype=float), np.asarray(upper, dtype=float)
        try:
            lower_ends, upper_ends = np.broadcast_arrays(*ends)
        except ValueError:
            message = f"ends have shapes {ends[0].shape} and {ends[1].shape}; pass equal shapes"
            raise InputError(message, code="shape.mismatch") from None
        object.__setattr__(self, "lower", lower_ends)
        object.__setattr__(self, "upper", upper_ends)
        object.__setattr__(self, "case", case)
        object.__setattr__(self, "task_names", task_names)

    @property
    def is_empty(self) -> BoolArray:
        """True where the interval is empty because its ends cross."""
        return np.asarray(self.lower > self.upper)

    @property
    def is_unbounded(self) -> BoolArray:
        """True where at least one end is infinite."""
        return np.asarray(np.isinf(self.lower) | np.isinf(self.upper))

    @property
    def width(self) -> FloatArray:
        """Upper end minus lower end; 0 where the interval is empty."""
        # An interval that is empty at infinity would otherwise give inf - inf.
        width = np.subtract(
            self.upper, self.lower, out=np.zeros(self.lower.shape), where=~self.is_empty
        )
        return np.asarray(width)

    @property
    def center(self) -> FloatArray:
        """Midpoint of each interval, a point estimate of the target."""
        # Halving first keeps two ends near the largest float from overflowing.
        return np.asarray(self.lower / 2 + self.upper / 2)

    def contains(self, values: ArrayLike) -> BoolArray:
        """Return a mask that is True where the value lies in the interval or at one of its ends.

        Labelled values (pandas, polars, xarray) are matched by the ids of the cases, if known.

        Raises:
            InputError: If shapes or ids differ, or values are masked.
        """
        z = self._aligned(values)
        return np.asarray((self.lower <= z) & (z <= self.upper))

    def _aligned(self, values: ArrayLike) -> FloatArray:
        """Return one value per interval, in the order of the intervals."""
        from taskuq._arrays import align_cases, as_array

        found = align_cases({"intervals": self, "values": values})["values"]
        z = as_array(found, "values").astype(float)
        shared = min(z.ndim, self.lower.ndim)
        if shared and z.shape[-shared:] != self.lower.shape[-shared:]:
            message = f"values {z.shape} do not fit intervals {self.lower.shape}"
            raise InputError(message, code="shape.mismatch")
        return z

    def clip(self, low: float, high: float) -> Interval:
        """Return the part of each interval inside [low, high]."""
        lower, upper = np.maximum(self.lower, low), np.minimum(self.upper, high)
        return Interval(lower, upper, case=self.case, task_names=self.task_names)

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas DataFrame with columns lower, upper and width.

        The index holds the ids of the cases, if known; with several tasks, also the task names.

        Raises:
            InputError: If pandas is not installed.
        """
        frames = import_extra("pandas", "pandas")
        columns = {"lower": self.lower, "upper": self.upper, "width": self.width}
        cases, tasks = self._names
        index = frames.Index(cases, name="case")
        if tasks:
            index = frames.MultiIndex.from_product([index, tasks], names=["case", "task"])
        return frames.DataFrame({n: np.ravel(v) for n, v in columns.items()}, index=index)

    def __iter__(self) -> Iterator[FloatArray]:
        return iter((self.lower, self.upper))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.stack([self.lower, self.upper], axis=-1, dtype=dtype)

    def __repr__(self) -> str:
        if self.lower.ndim == 0:
            return "empty" if self.is_empty else f"[{self.lower:.4g}, {self.upper:.4g}]"
        return Displayed.__repr__(self)

    @property
    def _names(self) -> tuple[NDArray[Any], tuple[str, ...]]:
        """Return the names of the cases, and the names of the tasks if there are several."""
        tasks = self.task_names
        if not tasks and self.lower.ndim > 1:
            tasks = tuple(f"task {k}" for k in range(self.lower.shape[-1]))
        cases = np.arange(self.lower.size // max(1, len(tasks)))
        return (cases if self.case is None else np.atleast_1d(self.case)), tasks

    def _summary(self) -> Summary:
        cases, tasks = self._names
        some = cases[:MOST_ROWS]
        names = [
            (str(case), *task)
            for case in some
            for task in (zip(tasks, strict=True) if tasks else [()])
        ]
        ends = zip(self.lower.flat, self.upper.flat, self.width.flat, strict=True)
        rows = [
            [*name, *("empty" if lower > upper else f"{v:.4g}" for v in (lower, upper, width))]
            for name, (lower, upper, width) in islice(zip(names, ends, strict=False), MOST_ROWS)
        ]
        more = f"... {self.lower.size - MOST_ROWS} more" if self.lower.size > MOST_ROWS else ""
        columns = ("case", *(["task"] if tasks else []), "lower", "upper", "width")
        return Summary("", rows, more, columns)

    def _picture(self) -> str:
        cases, tasks = self._names
        labels = cases[:MOST_BARS].tolist()
        # Tasks have no common axis.
        first = np.reshape(np.asarray(self), (-1, max(1, len(tasks)), 2))[:MOST_BARS, 0]
        return svg(" ".join(["interval", *tasks[:1]]), bars=first, labels=labels)

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
