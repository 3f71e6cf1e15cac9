"""The cases that random splits are drawn from, with a score that was learnt without them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taskuq.calibration.family import AnchoredFamily, clipped, family_of, intervals_at
from taskuq.calibration.rank import exact_level
from taskuq.calibration.tuning import needs_tuning, target_share, tuned_score, tuning_count
from taskuq.calibration.units import Unit, as_unit
from taskuq.checks import as_cases, as_ids, as_range
from taskuq.errors import InputError
from taskuq.evaluation.splits import fold_sizes
from taskuq.evaluation.ties import covered_from
from taskuq.interval import BoolArray, FloatArray, Interval, TaskRange
from taskuq.protocols import Family, Score


@dataclass(frozen=True)
class Checked:
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
    task_range: TaskRange
    group: np.ndarray | None
    label: np.ndarray | None

    @property
    def units(self) -> int:
        """The number of units that are split."""
        return self.n_calibration + self.n_test

    @property
    def sizes(self) -> dict[str, Any]:
        """What an evaluation says about its unit and its numbers."""
        return {
            "unit": self.unit.counted,
            "samples": int(self.outputs.shape[-1]),
            "n": self.units,
            "n_calibration": self.n_calibration,
            "n_test": self.n_test,
        }


@dataclass(frozen=True)
class Pool:
    """Cases to split, the score that judges them, and how many units of each fold remain.

    Arguments:
        index: Which cases are in the pool.
        family: Their nested intervals.
        targets: Their targets.
        scores: The scores of their targets (case,), or (end, case).
        task_range: The range intervals are clipped to, if any.
        n_calibration: Units of the calibration fold that remain after tuning.
        n_tuning: Units the score learnt from.
    """

    index: NDArray[np.int64]
    family: Family
    targets: FloatArray
    scores: FloatArray
    task_range: TaskRange
    n_calibration: int
    n_tuning: int

    @property
    def moves_in_lines(self) -> bool:
        """Whether the ends of intervals, before they are clipped, are linear in the quantile."""
        return isinstance(self.family, AnchoredFamily) and self.family.link.is_identity

    @property
    def linear_width(self) -> tuple[FloatArray, FloatArray] | None:
        """Base and slope of widths that are linear in the quantile, or None if they are not."""
        if (
            self.task_range is not None
            or not isinstance(self.family, AnchoredFamily)
            or not self.moves_in_lines
            or self.family.side != "two"
        ):
            return None
        return self.family.high - self.family.low, 2 * self.family.scale

    def interval(self, quantile: ArrayLike) -> Interval:
        """Return the interval of each case at a quantile, or at one of each end."""
        return clipped(self.family.interval(quantile), self.task_range)

    def intervals(self, quantiles: FloatArray) -> Interval:
        """Return the intervals of all cases at each of several quantiles, (quantile, case).

        Where each end has a quantile of its own, ``quantiles`` is (quantile, end).
        """
        return clipped(intervals_at(self.family, quantiles), self.task_range)

    def covered(self, quantiles: FloatArray) -> BoolArray:
        """Return whether each target is covered at each of several quantiles, (quantile, case)."""
        if self.scores.ndim == 1:
            return self.covered_from <= quantiles[:, None]
        return self.intervals(quantiles).contains(self.targets)

    @cached_property
    def covered_from(self) -> FloatArray:
        """The smallest of all scores at which each case is covered, where there is one quantile."""

        def contains(cases: NDArray[np.int64], at: FloatArray) -> BoolArray:
            interval = clipped(self.family.take(cases).interval(at), self.task_range)
            return interval.contains(self.targets[cases])

        return covered_from(self.scores, np.sort(self.scores), contains)

    def offset(self, interval: Interval) -> FloatArray:
        """Return how far each target is above the centre of its interval."""
        return offset(interval, self.targets, self.task_range)

    def take(self, order: NDArray[np.int64]) -> Pool:
        """Return the pool with its cases in another order."""
        return replace(
            self,
            index=self.index[order],
            family=self.family.take(order),
            targets=self.targets[order],
            scores=self.scores[..., order],
        )


def check_cases(
    outputs: Any,
    targets: Any,
    *,
    group: Any = None,
    label: Any = None,
    unit: str | None = None,
    cases: float | str = "random",
    task_range: Any = None,
    share: float = 0.7,
) -> Checked:
    """Check the inputs of an evaluation and count its folds."""
    range_ = as_range(task_range)
    x, z = as_cases(outputs, targets, range_)
    n = len(z)
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
    return Checked(x, z, chosen, unit_of_case, n_calibration, n_test, range_, groups, labels)


def pools(
    checked: Checked,
    score: Score,
    alpha: float,
    tunings: int,
    rng: np.random.Generator | None,
    ends: int = 1,
) -> Iterator[Pool]:
    """Yield the pools to split for a score.

    A score that learns nothing, or only from the outputs of all cases alike (mlwr), has one pool:
    all cases. A score that learns from targets gives up a part of the calibration fold, drawn
    several times because the result depends on the draw; each draw leaves a smaller pool.

    Arguments:
        checked: The checked inputs.
        score: The score.
        alpha: The error rate.
        tunings: How many times tuning units are drawn.
        rng: Draws them at random; without it they are taken at even steps.
        ends: 2 where each end of an interval has a quantile of its own.
    """
    everyone = np.arange(len(checked.targets))
    if not needs_tuning(score):
        yield _pool(checked, score, everyone, 0, ends)
    elif not target_share(score):
        # The same function of all outputs for every split: cases stay exchangeable, exactly.
        tuned = tuned_score(score, checked.outputs, checked.targets, checked.task_range, None)
        yield _pool(checked, tuned, everyone, 0, ends)
    else:
        level = exact_level(alpha) / ends
        take = tuning_count(checked.n_calibration, target_share(score), level)
        if not 1 <= take < checked.n_calibration:
            raise InputError(
                f"a score that learns needs several calibration {checked.unit.counted}s, got "
                f"{checked.n_calibration}; use mlwr or collect more"
            )
        for draw in range(tunings):
            chosen = _tuning_units(checked.units, take, draw, tunings, rng)
            aside = np.isin(checked.unit_of_case, chosen)
            tuned = tuned_score(
                score,
                checked.outputs[..., aside, :],
                checked.targets[aside],
                checked.task_range,
                None if checked.group is None else checked.group[aside],
            )
            yield _pool(checked, tuned, everyone[~aside], take, ends)


def crosses(linear: tuple[FloatArray, FloatArray], least_quantile: float) -> bool:
    """Whether some interval is empty at the smallest quantile, where widths are not linear."""
    base, slope = linear
    return not np.isfinite(least_quantile) or bool((base + slope * least_quantile).min() < 0)


def distance(interval: Interval, targets: FloatArray, task_range: TaskRange) -> FloatArray:
    """Return how far the target is from the centre, or from the one finite end."""
    return np.abs(offset(interval, targets, task_range))


def offset(interval: Interval, targets: FloatArray, task_range: TaskRange) -> FloatArray:
    """Return how far the target is above the centre, or above the one finite end.

    Arguments:
        interval: Intervals, clipped to the range.
        targets: Their targets.
        task_range: The range, if any; within a finite one no end is infinite.
    """
    if task_range is not None and np.isfinite(task_range).all() and not interval.is_empty.any():
        return np.asarray(targets - (interval.lower + interval.upper) * 0.5)
    # The extremes tell whether any end is infinite, without an array of answers.
    if np.isfinite(interval.lower.min()) and np.isfinite(interval.upper.max()):
        return np.asarray(targets - interval.center)
    lower_open, upper_open = np.isinf(interval.lower), np.isinf(interval.upper)
    finite_end = np.where(lower_open, interval.upper, interval.lower)
    with np.errstate(invalid="ignore"):  # minus plus infinity has no centre
        center = np.where(lower_open != upper_open, finite_end, interval.center)
    return np.where(lower_open & upper_open, np.inf, targets - center)


def _pool(
    checked: Checked, score: Score, index: NDArray[np.int64], n_tuning: int, ends: int
) -> Pool:
    family, targets = family_of(score, checked.outputs[..., index, :], ends), checked.targets[index]
    left = checked.n_calibration - n_tuning
    return Pool(index, family, targets, family.score(targets), checked.task_range, left, n_tuning)


def _tuning_units(
    units: int, take: int, draw: int, draws: int, rng: np.random.Generator | None
) -> NDArray[np.int64]:
    if rng is not None:
        return rng.permutation(units)[:take]
    offset = (draw + 0.5) / draws
    return np.unique(np.floor((np.arange(take) + offset) * units / take).astype(np.int64))
