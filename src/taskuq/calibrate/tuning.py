"""Which cases a score may learn from without spoiling the guarantee on the others."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from taskuq.calibrate.mlwr import FEWEST_TUNING_CASES
from taskuq.calibrate.rank import cases_needed
from taskuq.interval import BoolArray, FloatArray
from taskuq.protocols import Score


def needs_tuning(score: Score) -> bool:
    """Whether a score learns from cases set aside before it can be calibrated.

    Example:
        >>> from taskuq.calibrate import LWR, MLWR
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
        >>> from taskuq.calibrate import MLWR
        >>> tuning_cases(MLWR(), 200, 0.05, None, None).sum()
        np.int64(20)
        >>> tuning_cases(MLWR(), 20, 0.05, None, None).sum()  # 19 are needed
        np.int64(0)
    """
    if not needs_tuning(score):
        return np.zeros(n, dtype=bool)
    index = unit_index(n, group)
    units = int(index.max()) + 1
    share = float(getattr(score, "tuning_share", 0.3))
    if not getattr(score, "tuning_needs_targets", True):
        take = min(math.floor(share * units), units - cases_needed(alpha))
        share = max(0, take) / units
        if share * n < FEWEST_TUNING_CASES:
            share = 0.0
    return take_units(index, share, rng)


def unit_index(n: int, group: np.ndarray | None) -> NDArray[np.int64]:
    """Number the units of ``n`` cases from 0: the groups, or the cases themselves.

    Example:
        >>> unit_index(3, np.array(["b", "a", "b"]))
        array([1, 0, 1])
    """
    return np.arange(n) if group is None else np.unique(group, return_inverse=True)[1]


def take_units(
    index: NDArray[np.int64], share: float, rng: np.random.Generator | None
) -> BoolArray:
    """Return which cases belong to a share of the units, at random or at even steps.

    Arguments:
        index: The unit of each case, numbered from 0.
        share: The share of units to take, rounded down.
        rng: Picks at random; without it units are taken at even steps.

    Example:
        >>> take_units(np.arange(10), 0.3, None)
        array([False,  True, False, False, False,  True, False, False,  True, False])
    """
    units = int(index.max()) + 1
    take = math.floor(share * units + 1e-9)
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
