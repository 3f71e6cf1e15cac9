"""What is seen of a unit in the first round of its scan: one number for each statistic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from taskuq.interval import FloatArray

ERROR = "error"
# So many digits count: a policy's file stays small, and the last bits of a network tell nothing.
DIGITS = 6


def statistics(
    outputs: FloatArray,
    index: NDArray[np.int64],
    task_names: Sequence[str],
    targets: FloatArray | None = None,
) -> dict[str, tuple[float, ...]]:
    """Return what is seen of units in the first round, the only one that every scan has.

    The centre of a case is the mean of its outputs, the spread their standard deviation, the error
    how far the centre is from the target. Of a group it is the mean over its cases.

    Arguments:
        outputs: Of the first round, (case, sample, task).
        index: The unit of each case, numbered from 0.
        task_names: One per task.
        targets: (case, task), where they are known.

    Returns:
        One number for each unit, by the name of the statistic.

    Example:
        >>> x = np.array([[0.1, 0.3], [0.5, 0.5]])[..., None]
        >>> statistics(x, np.array([0, 1]), ["tear"], np.array([[0.2], [0.9]]))
        {'centre': (0.2, 0.5), 'spread': (0.1, 0.0), 'error': (0.0, 0.4)}
        >>> statistics(x, np.array([0, 0]), ["tear"])
        {'centre': (0.35,), 'spread': (0.05,)}
    """
    x = np.asarray(outputs, dtype=float)
    cases = np.bincount(index)
    found: dict[str, tuple[float, ...]] = {}
    for t, task in enumerate(task_names):
        of = "" if len(task_names) == 1 else f" of {task}"
        centre = x[..., t].mean(axis=1)
        seen = {"centre": centre}
        if x.shape[1] > 1:
            seen["spread"] = x[..., t].std(axis=1)
        if targets is not None:
            seen[ERROR] = np.abs(targets[:, t] - centre)
        found |= {
            name + of: tuple(map(rounded, np.bincount(index, weights=values) / cases))
            for name, values in seen.items()
        }
    return found


def rounded(value: float) -> float:
    """Return a number with the digits that count.

    Example:
        >>> rounded(0.123456789)
        0.123457
    """
    return float(f"{value:.{DIGITS}g}")
