"""Which cases a score may learn from without spoiling the guarantee on the others."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from taskuq.calibration.family import rounds_read
from taskuq.calibration.rank import cases_needed, exact_level
from taskuq.calibration.scores.mlwr import FEWEST_TUNING_CASES
from taskuq.calibration.units import take_units
from taskuq.interval import BoolArray, FloatArray, TaskRange
from taskuq.protocols import LearningScore, Score


def needs_tuning(score: Score) -> TypeGuard[LearningScore]:
    """Whether a score has still to learn from cases set aside before it can be calibrated.

    Example:
        >>> from taskuq.calibration import LWR, MLWR
        >>> needs_tuning(LWR()), needs_tuning(MLWR())
        (False, True)
    """
    return isinstance(score, LearningScore) and score.needs_tuning


def target_share(score: Score) -> float:
    """Return the share of units set aside for a score to learn from their targets; 0 for none.

    Example:
        >>> from taskuq.calibration import Learned, MLWR
        >>> target_share(MLWR()), target_share(Learned())
        (0.0, 0.3)
    """
    if needs_tuning(score) and score.tuning_needs_targets:
        return score.tuning_share
    return 0.0


def tuning_cases(
    score: Score,
    index: NDArray[np.int64],
    alpha: float | Fraction,
    rng: np.random.Generator | None,
    least: float = 0.0,
) -> BoolArray:
    """Return which cases are set aside for the score, or something beside it, to learn from.

    Under exchangeability any choice that does not look at the data keeps the guarantee. Whole
    groups are taken where groups are the unit. A score that learns without targets (mlwr) gives
    way where the others would become too few for a finite interval.

    Arguments:
        score: The score.
        index: The unit of each case, numbered from 0.
        alpha: The error rate.
        rng: Picks at random; without it cases are taken at even steps.
        least: The share that something beside the score learns from.

    Example:
        >>> from taskuq.calibration import MLWR
        >>> tuning_cases(MLWR(), np.arange(200), 0.05, None).sum()
        np.int64(21)
        >>> tuning_cases(MLWR(), np.arange(20), 0.05, None).sum()  # 19 are needed
        np.int64(0)
    """
    units = int(index.max()) + 1
    aside = np.zeros(len(index), dtype=bool)
    if needs_tuning(score):
        take = tuning_count(units, score.tuning_share, alpha)
        if not score.tuning_needs_targets:
            take = max(0, min(take, units - cases_needed(alpha)))
            take = take if take * len(index) >= FEWEST_TUNING_CASES * units else 0
        aside = take_units(index, take, rng)
    if aside.mean() < least:
        aside = take_units(index, tuning_count(units, least, alpha), rng)
    return aside


def tuning_count(units: int, share: float, alpha: float | Fraction) -> int:
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


def tuned_score(
    score: Score,
    outputs: FloatArray,
    targets: FloatArray,
    range_: TaskRange,
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
    return score.tuned(rounds_read(score, outputs), targets, range_=range_, group=group)
