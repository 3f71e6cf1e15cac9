"""Which cases a score may learn from without spoiling the guarantee on the others."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TypeGuard

import numpy as np

from taskuq.calibration.family import rounds_read
from taskuq.calibration.rank import exact_level
from taskuq.calibration.scores.mlwr import FEWEST_TUNING_CASES
from taskuq.calibration.units import Unit
from taskuq.interval import FloatArray, TaskRange
from taskuq.protocols import LearningScore, Score, SteadyScore


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


def is_steady(score: Score, delta: float | None = None) -> TypeGuard[SteadyScore]:
    """Whether a score learns from the outputs of the calibration units, so that none is set aside.

    A promise given the calibration set (``delta``) needs a score that was fixed before.

    Example:
        >>> from taskuq.calibration import Learned, MLWR
        >>> is_steady(MLWR()), is_steady(MLWR(), delta=0.1), is_steady(Learned())
        (True, False, False)
    """
    return delta is None and isinstance(score, SteadyScore) and score.needs_tuning


def tuning_units(
    score: Score,
    unit: Unit,
    units: int,
    alpha: float | Fraction,
    delta: float | None,
    least: float = 0.0,
) -> int:
    """Return how many units are set aside for the score, or something beside it, to learn from.

    It depends on what is promised and on the number of units alone, never on what they hold, so
    that the units that are left stay exchangeable with a new one. A score that learns without
    targets gives way where the others would become too few for a finite interval; one that is
    steady (:func:`is_steady`) need not be asked.

    Arguments:
        score: The score.
        unit: What is exchangeable.
        units: How many there are.
        alpha: The error rate.
        delta: For a promise given the calibration set.
        least: The share that something beside the score learns from.

    Example:
        >>> from taskuq.calibration import Learned, MLWR
        >>> from taskuq.calibration.units import NewCase
        >>> tuning_units(MLWR(), NewCase(), 200, alpha=0.05, delta=0.1)
        21
        >>> tuning_units(Learned(), NewCase(), 200, alpha=0.05, delta=None)
        61
    """
    beside = tuning_count(units, least, alpha) if least else 0
    if not needs_tuning(score):
        return beside
    take = tuning_count(units, score.tuning_share, alpha)
    if not score.tuning_needs_targets:
        take = max(0, min(take, units - unit.needed(alpha, delta)))
        # A case is one case; a group may hold many.
        take = 0 if not unit.is_group and take < FEWEST_TUNING_CASES else take
    return max(take, beside)


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
