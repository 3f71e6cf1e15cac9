"""Which cases a score may learn from without spoiling the guarantee on the others."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from taskuq.calibration.mlwr import FEWEST_TUNING_CASES
from taskuq.calibration.rank import cases_needed, exact_level
from taskuq.interval import BoolArray, FloatArray
from taskuq.protocols import Score


def needs_tuning(score: Score) -> bool:
    """Whether a score learns from cases set aside before it can be calibrated.

    Example:
        >>> from taskuq.calibration import LWR, MLWR
        >>> needs_tuning(LWR()), needs_tuning(MLWR())
        (False, True)
    """
    if getattr(score, "prior", None) is not None or getattr(score, "fit", None) is not None:
        return False
    return callable(getattr(score, "tuned", None))


def tuning_cases(
    score: Score,
    n: int,
    alpha: float,
    group: np.ndarray | None,
    rng: np.random.Generator | None,
) -> BoolArray:
    """Return which of ``n`` cases are set aside for the score to learn from.

    Under exchangeability any choice that does not look at the data keeps the guarantee. Whole
    groups are taken where groups are the unit. A score that learns without targets (mlwr) gives
    way where the others would become too few for a finite interval.

    Arguments:
        score: The score.
        n: The number of cases.
        alpha: The error rate.
        group: The group of each case, where groups are the unit.
        rng: Picks at random; without it cases are taken at even steps.

    Example:
        >>> from taskuq.calibration import MLWR
        >>> tuning_cases(MLWR(), 200, 0.05, None, None).sum()
        np.int64(21)
        >>> tuning_cases(MLWR(), 20, 0.05, None, None).sum()  # 19 are needed
        np.int64(0)
    """
    if not needs_tuning(score):
        return np.zeros(n, dtype=bool)
    index = unit_index(n, group)
    units = int(index.max()) + 1
    take = tuning_count(units, float(getattr(score, "tuning_share", 0.3)), alpha)
    if not getattr(score, "tuning_needs_targets", True):
        take = max(0, min(take, units - cases_needed(alpha)))
        take = take if take * n >= FEWEST_TUNING_CASES * units else 0
    return take_units(index, take, rng)


def tuning_count(units: int, share: float, alpha: float) -> int:
    r"""Return how many units to set aside: about a share, and none that calibration could use.

    With :math:`n` units left, :math:`\lfloor \alpha (n + 1) \rfloor` may score above the
    quantile. The nearest :math:`n` at which that number has just risen wastes none.

    Arguments:
        units: The number of units.
        share: The share to set aside, roughly.
        alpha: The error rate.

    Example:
        >>> tuning_count(1531, 0.3, alpha=0.01)  # leaves 1099, of which 11 may score above
        432
    """
    level = exact_level(alpha)
    take = math.floor(share * units)
    left = units - take
    above = math.floor(level * (left + 1))
    sizes = [math.ceil(j / level) - 1 for j in (above, above + 1) if j > 0]
    near = [n for n in sizes if take / 2 <= units - n <= 2 * take and n < units]
    return units - min(near, key=lambda n: abs(n - left)) if near else take


def unit_index(n: int, group: np.ndarray | None) -> NDArray[np.int64]:
    """Number the units of ``n`` cases from 0: the groups, or the cases themselves.

    Example:
        >>> unit_index(3, np.array(["b", "a", "b"]))
        array([1, 0, 1])
    """
    return np.arange(n) if group is None else np.unique(group, return_inverse=True)[1]


def take_units(index: NDArray[np.int64], take: int, rng: np.random.Generator | None) -> BoolArray:
    """Return which cases belong to so many of the units, at random or at even steps.

    Arguments:
        index: The unit of each case, numbered from 0.
        take: The number of units to take.
        rng: Picks at random; without it units are taken at even steps.

    Example:
        >>> take_units(np.arange(10), 3, None)
        array([False,  True, False, False, False,  True, False, False,  True, False])
    """
    units = int(index.max()) + 1
    if rng is not None:
        return np.isin(index, rng.permutation(units)[:take])
    steps = np.floor((np.arange(take) + 0.5) * units / max(take, 1)).astype(np.int64)
    return np.isin(index, steps)


def tuned_score(
    score: Score,
    outputs: FloatArray,
    targets: FloatArray,
    range_: tuple[float, float] | None,
    group: np.ndarray | None,
) -> Score:
    """Return the score after learning from the given cases; one that does not learn as it is.

    Arguments:
        score: The score.
        outputs: Outputs of the tuning cases, (case, sample) or (round, case, sample).
        targets: Their targets (case,).
        range_: The declared task range, if any.
        group: Their groups, if known.
    """
    if not needs_tuning(score):
        return score
    if outputs.ndim == 3 and not getattr(score, "uses_earlier_rounds", False):
        outputs = outputs[-1]
    tuned: Score = score.tuned(outputs, targets, range_=range_, group=group)  # type: ignore[attr-defined]  # checked above
    return tuned
