"""The cases that random splits are drawn from, with a score that was learnt without them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskuq.calibration.family import AnchoredFamily, Side, family_of
from taskuq.calibration.scores import resolve_score, score_name
from taskuq.calibration.tuning import needs_tuning, target_share, tuned_score, tuning_count
from taskuq.calibration.units import Unit, as_unit
from taskuq.checks import as_ids, as_numbers, as_range, require_in_range
from taskuq.errors import InputError
from taskuq.evaluation.splits import fold_sizes
from taskuq.interval import FloatArray, Interval
from taskuq.protocols import Family, Score


@dataclass(frozen=True)
class Cases:
    """Checked inputs of an evaluation.

    Arguments:
        outputs: (case, sample), or (round, case, sample) with the current round last.
        targets: (case,).
        unit: What is split, and which of its cases are covered.
        unit_of_case: The number of each case's group; of the case itself where cases are the unit.
        n_calibration: Units in a calibration fold.
        n_test: Units in a test fold.
        task_range: The declared range.
        group: The group of each case, if known.
        label: The class of each case, if known.
    """

    outputs: FloatArray
    targets: FloatArray
    unit: Unit
    unit_of_case: NDArray[np.int64]
    n_calibration: int
    n_test: int
    task_range: tuple[float, float] | None
    group: np.ndarray | None
    label: np.ndarray | None

    @property
    def units(self) -> int:
        """The number of units that are split."""
        return self.n_calibration + self.n_test


@dataclass(frozen=True)
class Pool:
    """Cases to split, the score that judges them, and how many units of each fold remain.

    Arguments:
        index: Which cases are in the pool.
        family: Their nested intervals.
        scores: The scores of their targets.
        n_calibration: Units of the calibration fold that remain after tuning.
        n_tuning: Units the score learnt from.
    """

    index: NDArray[np.int64]
    family: Family
    scores: FloatArray
    n_calibration: int
    n_tuning: int


def check_cases(
    outputs: Any,
    targets: Any,
    *,
    group: Any,
    label: Any,
    unit: str | None,
    cases: float | str = "random",
    task_range: Any,
    share: float,
) -> Cases:
    """Check the inputs of an evaluation and count its folds."""
    range_ = as_range(task_range)
    x = as_numbers(outputs, "outputs", ndim=(2, 3))
    z = as_numbers(targets, "targets", ndim=(1,)).astype(float)
    n = int(x.shape[-2])
    if z.shape != (n,):
        raise InputError(
            f"outputs of shape {x.shape} are {n} cases, but targets have shape {z.shape}; one "
            "target per case is needed"
        )
    if x.shape[-1] < 1:
        raise InputError("outputs hold no samples; at least one per case is needed")
    require_in_range(z, range_, "targets")
    groups = None if group is None else as_ids(group, "group", n)
    chosen = as_unit(
        unit,
        cases,
        has_groups=groups is not None,
        missing="unit {unit!r} needs the group of each case; give groups or use 'case'",
    )
    unit_of_case = chosen.index(n, groups)
    n_calibration, n_test = fold_sizes(int(unit_of_case.max()) + 1 if n else 0, share)
    labels = None if label is None else as_ids(label, "label", n)
    return Cases(x, z, chosen, unit_of_case, n_calibration, n_test, range_, groups, labels)


def named_score(score: str | Score, alpha: float, side: Side) -> tuple[str, Score]:
    """Return a score with the name it has in tables."""
    resolved = resolve_score(score, alpha, side)
    return score_name(resolved), resolved


def pools(
    cases: Cases, score: Score, alpha: float, tunings: int, rng: np.random.Generator | None
) -> Iterator[Pool]:
    """Yield the pools to split for a score.

    A score that learns nothing, or only from the outputs of all cases alike (mlwr), has one pool:
    all cases. A score that learns from targets gives up a part of the calibration fold, drawn
    several times because the result depends on the draw; each draw leaves a smaller pool.

    Arguments:
        cases: The checked inputs.
        score: The score.
        alpha: The error rate.
        tunings: How many times tuning units are drawn.
        rng: Draws them at random; without it they are taken at even steps.
    """
    everyone = np.arange(len(cases.targets))
    if not needs_tuning(score):
        yield _pool(cases, score, everyone, 0)
    elif not target_share(score):
        # The same function of all outputs for every split: cases stay exchangeable, exactly.
        tuned = tuned_score(score, cases.outputs, cases.targets, cases.task_range, None)
        yield _pool(cases, tuned, everyone, 0)
    else:
        take = tuning_count(cases.n_calibration, target_share(score), alpha)
        if not 1 <= take < cases.n_calibration:
            raise InputError(
                f"a score that learns needs several calibration {cases.unit.counted}s, got "
                f"{cases.n_calibration}; use mlwr or collect more"
            )
        for draw in range(tunings):
            chosen = _tuning_units(cases.units, take, draw, tunings, rng)
            aside = np.isin(cases.unit_of_case, chosen)
            tuned = tuned_score(
                score,
                cases.outputs[..., aside, :],
                cases.targets[aside],
                cases.task_range,
                None if cases.group is None else cases.group[aside],
            )
            yield _pool(cases, tuned, everyone[~aside], take)


def linear_width(
    family: Family, task_range: tuple[float, float] | None
) -> tuple[FloatArray, FloatArray] | None:
    """Return base and slope of widths that are linear in the quantile, or None if they are not."""
    if (
        task_range is not None
        or not isinstance(family, AnchoredFamily)
        or family.link.kind != "identity"
        or family.side != "two"
    ):
        return None
    return family.high - family.low, 2 * family.scale


def crosses(linear: tuple[FloatArray, FloatArray], least_quantile: float) -> bool:
    """Whether some interval is empty at the smallest quantile, where widths are not linear."""
    base, slope = linear
    return not np.isfinite(least_quantile) or bool((base + slope * least_quantile).min() < 0)


def clipped(interval: Interval, task_range: tuple[float, float] | None) -> Interval:
    """Return the part of intervals inside the task's range, if it has one."""
    return interval if task_range is None else interval.clip(*task_range)


def distance(
    interval: Interval, targets: FloatArray, task_range: tuple[float, float] | None
) -> FloatArray:
    """Return how far the target is from the centre, or from the one finite end.

    Arguments:
        interval: Intervals, clipped to the range.
        targets: Their targets.
        task_range: The range, if any; within a finite one no end is infinite.
    """
    if task_range is not None and np.isfinite(task_range).all() and not interval.is_empty.any():
        return np.abs(targets - (interval.lower + interval.upper) * 0.5)
    # The extremes tell whether any end is infinite, without an array of answers.
    if np.isfinite(interval.lower.min()) and np.isfinite(interval.upper.max()):
        return np.abs(targets - interval.center)
    lower_open, upper_open = np.isinf(interval.lower), np.isinf(interval.upper)
    finite_end = np.where(lower_open, interval.upper, interval.lower)
    with np.errstate(invalid="ignore"):  # minus plus infinity has no centre
        center = np.where(lower_open != upper_open, finite_end, interval.center)
    return np.where(lower_open & upper_open, np.inf, np.abs(targets - center))


def _pool(cases: Cases, score: Score, index: NDArray[np.int64], n_tuning: int) -> Pool:
    family = family_of(score, cases.outputs[..., index, :])
    scores = family.score(cases.targets[index])
    return Pool(index, family, scores, cases.n_calibration - n_tuning, n_tuning)


def _tuning_units(
    units: int, take: int, draw: int, draws: int, rng: np.random.Generator | None
) -> NDArray[np.int64]:
    if rng is not None:
        return rng.permutation(units)[:take]
    offset = (draw + 0.5) / draws
    return np.unique(np.floor((np.arange(take) + offset) * units / take).astype(np.int64))
