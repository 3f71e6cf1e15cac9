"""Joint intervals for the targets of several tasks."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taskuq._arrays import (
    align_cases,
    as_ids,
    as_ranges,
    as_real_array,
    case_ids,
    encode_cases,
    per_task,
    ranges_from_json,
    ranges_to_json,
    require_in_ranges,
    warn_of_calibration_cases,
)
from taskuq._display import Summary, svg
from taskuq._io import number_from_json, number_to_json
from taskuq.conformal._bound import BaseBound, read_bound
from taskuq.conformal._calibrate import aligned, as_round, is_self_tuned, tuned_score, tuning_units
from taskuq.conformal._family import Side, SidePerTask, clipped, interval_family, stack_intervals
from taskuq.conformal._guarantee import WHOLE_RANGE, Guarantee
from taskuq.conformal._quantiles import exact_alpha
from taskuq.conformal._units import UnitName, as_unit, case_contents, choose_units, make_unit
from taskuq.conformal.scores import resolve_score, score_from_dict, score_name, score_to_dict
from taskuq.conformal.scores._mlwr import unit_quantile
from taskuq.errors import InputError
from taskuq.interval import FloatArray, Interval, TaskRange
from taskuq.protocols import Score, SelfTunedScore
from taskuq.table._table import TableLike, TaskRanges

Method: TypeAlias = Literal["scale", "minimax"]


@dataclass(frozen=True)
class _MonotoneScale:
    """Strictly increasing, piecewise linear map with linear extrapolation."""

    knots: tuple[float, ...]
    values: tuple[float, ...]

    def __call__(self, scores: FloatArray) -> FloatArray:
        return _interpolate(scores, np.array(self.knots), np.array(self.values))

    def inverse(self, value: float) -> float:
        if self.knots == self.values or not math.isfinite(value):
            return value
        images, knots = np.array(self.values), np.array(self.knots)
        score = float(_interpolate(np.array([value]), images, knots)[0])
        # There and back rounds, relative to the value and to the knots, which may be far larger
        # than the score; the score that set the value must not be lost to that.
        low = np.clip(np.searchsorted(images, value, "right") - 1, 0, len(images) - 2)
        steepness = (knots[low + 1] - knots[low]) / (images[low + 1] - images[low])
        size = abs(score) + abs(score - float(knots[low])) + abs(value) * float(steepness)
        return score + 8 * float(np.finfo(float).eps) * size


def _interpolate(at: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    low = np.clip(np.searchsorted(x, at, "right") - 1, 0, len(x) - 2)
    slope = (y[low + 1] - y[low]) / (x[low + 1] - x[low])
    # Far beyond the knots an image is infinite, which only widens intervals.
    with np.errstate(over="ignore"):
        return np.asarray(y[low] + slope * (at - x[low]))


def _make_scales(
    method: Method, tuning: FloatArray, tasks: int, alpha: float
) -> list[_MonotoneScale]:
    scales = [_MonotoneScale((0.0, 1.0), (0.0, 1.0))] * tasks
    for k in range(tasks) if len(tuning) else ():
        finite = np.unique(tuning[:, k][np.isfinite(tuning[:, k])])
        if method == "scale":
            size = np.sort(np.abs(finite))
            rank = math.ceil((1 - alpha / tasks) * len(size))
            high = float(size[rank - 1]) if rank else 1.0
            scales[k] = _MonotoneScale((0.0, high if high > 0 else 1.0), (0.0, 1.0))
        elif finite.size >= 2:
            share = np.searchsorted(np.sort(tuning[:, k]), finite, "right") / (len(tuning) + 1)
            scales[k] = _MonotoneScale(tuple(map(float, finite)), tuple(map(float, share)))
    return scales


SCHEMA = "taskuq.joint-bound/1"
TUNING_FRACTION = 0.3


@dataclass(frozen=True, repr=False)
class JointBound(BaseBound):
    """Calibrated intervals for several tasks, which cover all targets of a new case jointly.

    Call it with outputs (case, sample, task); the intervals have shape (case, task).

    Args:
        scores: One score per task.
        quantiles: One quantile per task.
        guarantee: Guarantee for all tasks together.
        method: Method that makes the scores of the tasks comparable, as in
            :func:`taskuq.calibrate_joint`.
        samples: Number of posterior samples per case.
        task_ranges: Range to which the intervals of each task are clipped.
        provenance: Origin of the calibration data.
        task_names: One name per task.
        acceleration: Acceleration of the measurements, if given.
        miss_rates: For each task, the measured fraction of calibration cases whose target lies
            outside the interval; not a guarantee.
    """

    scores: tuple[Score, ...]
    quantiles: tuple[float, ...]
    guarantee: Guarantee
    method: Method
    samples: int
    task_ranges: tuple[TaskRange, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    task_names: tuple[str, ...] = ()
    acceleration: float | None = None
    miss_rates: tuple[float, ...] = ()

    @property
    def _parts(self) -> tuple[tuple[Score, float], ...]:
        return tuple(zip(self.scores, self.quantiles, strict=True))

    @property
    def is_finite(self) -> bool:
        """True if all quantiles are finite; if not, ``guarantee.caveat`` gives the reason."""
        return bool(np.isfinite(self.quantiles).all())

    def predict(self, outputs: ArrayLike) -> Interval:
        """Return the intervals (case, task) of new cases with outputs (case, sample, task)."""
        names, outputs = case_ids(outputs), align_cases({"outputs": outputs})["outputs"]
        x = as_real_array(outputs, "outputs", ndim=(3,))
        expected = (self.samples, len(self.scores))
        if x.shape[1:] != expected:
            message = f"outputs need (sample, task) = {expected} per case, got {x.shape[1:]}"
            raise InputError(message, code="samples.mismatch")
        warn_of_calibration_cases(self.provenance.get("cases"), x)
        each = [
            clipped(interval_family(score, x[:, :, k]).interval(q), self.task_ranges[k])
            for k, (score, q) in enumerate(self._parts)
        ]
        lower, upper = stack_intervals(each, axis=1)
        return Interval(lower, upper, case=names, task_names=self.task_names)

    __call__ = predict

    def _summary(self) -> Summary:
        rates = self.miss_rates or (math.nan,) * len(self.scores)
        rows = [
            (name, score_name(score), f"{quantile:.4g}", f"{rate:.1%}")
            for name, (score, quantile), rate in zip(
                self.task_names, self._parts, rates, strict=True
            )
        ]
        title = f"{len(self.scores)} tasks jointly at alpha {self.guarantee.alpha:g}"
        columns = ("task", "score", "quantile", "measured misses")
        return Summary(title, rows, str(self.guarantee), columns)

    def _picture(self) -> str:
        bars = [(0.0, rate) for rate in self.miss_rates]
        return svg("measured misses", bars=bars, labels=self.task_names)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return {
            "schema": SCHEMA,
            "scores": [score_to_dict(score) for score in self.scores],
            "quantiles": [number_to_json(q) for q in self.quantiles],
            "guarantee": self.guarantee.to_dict(),
            "sentence": self.guarantee.statement,
            "method": self.method,
            "samples": self.samples,
            **ranges_to_json(self.task_ranges),
            "task_names": list(self.task_names),
            "acceleration": self.acceleration,
            "miss_rates": list(self.miss_rates),
            "provenance": dict(self.provenance),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any], score: Score | None = None) -> JointBound:
        """Return the bound stored as JSON values by :meth:`to_dict`."""
        names, count = record["task_names"], len(record["scores"])
        if not isinstance(names, list) or [type(name) for name in names] != [str] * count:
            raise ValueError("each task needs a name")
        return cls(
            scores=tuple(score_from_dict(one, score) for one in record["scores"]),
            quantiles=tuple(number_from_json(q) for q in record["quantiles"]),
            guarantee=Guarantee.from_dict(record["guarantee"]),
            method=record["method"],
            samples=int(record["samples"]),
            task_ranges=ranges_from_json(record, names),
            provenance=dict(record["provenance"]),
            task_names=tuple(names),
            acceleration=None if record["acceleration"] is None else float(record["acceleration"]),
            miss_rates=tuple(map(float, record["miss_rates"])),
        )


def load_joint_bound(path: str | os.PathLike[str], *, score: Score | None = None) -> JointBound:
    """Read a bound that :meth:`JointBound.save` wrote; arguments as in :func:`load_bound`."""
    return read_bound(path, {SCHEMA: JointBound.from_dict}, score)


def calibrate_joint(
    outputs: TableLike,
    targets: ArrayLike | None = None,
    *,
    alpha: float,
    score: str | Score = "mlwr",
    method: Method = "scale",
    group: ArrayLike | None = None,
    unit: UnitName | None = None,
    cases: float | str = "random",
    delta: float | None = None,
    side: SidePerTask = "two",
    task_range: TaskRanges = None,
    task_names: Sequence[str] | None = None,
    acceleration: float | str | None = None,
    seed: int | np.random.Generator | None = None,
) -> JointBound:
    r"""Calibrate intervals for several tasks with joint coverage of at least 1 - alpha.

    The scores of the :math:`K` tasks are made comparable, and the maximum over the tasks is then
    calibrated like the score of a single task. There are two methods:

    ===========  ============================================================================
    ``scale``    divide the scores of a task by its conformal quantile at error rate
                 :math:`\alpha/K`, computed from the other units; intervals are never wider than
                 with the Bonferroni correction. With ``delta``, the quantile is computed from
                 held-out units
    ``minimax``  map the scores of a task by their empirical distribution on held-out units,
                 extrapolated linearly
    ===========  ============================================================================

    Raises:
        InputError: If arrays do not fit together, values are not finite, or options conflict.

    References:
        Wen, Ahmad and Schniter, Conformal Bounds on Full-Reference Image Quality, and their
        multi-target follow-up, for ``minimax``.

    Args:
        outputs: Task outputs (case, sample, task), or a table of task outputs.
        targets: Targets (case, task); omit with a table.
        alpha: Error rate: largest probability that any target of a new case is missed.
        score: Name or object of a score, used for every task.
        method: 'scale' or 'minimax'.
        group: Group of each case.
        unit: Exchangeable unit, 'case' or 'group'; default: 'group' if groups are given.
        cases: Cases of a new group that are covered, as in :func:`taskuq.calibrate`.
        delta: Allowed probability of a lower coverage, as in :func:`taskuq.calibrate`.
        side: 'two', 'upper' or 'lower': one value for all tasks, or a list or dictionary by task.
        task_range: Range (low, high) of all tasks, or a list or dictionary of ranges by task.
        task_names: Names of the tasks; with a table, the tasks to use.
        acceleration: Round of the table to use, by acceleration or name; stored with the bound.
        seed: Integer or Generator for the random choice of units to hold out, if any.

    Example:
        >>> truth = rng.random((400, 2))
        >>> outputs = truth[:, None, :] + 0.05 * rng.standard_normal((400, 8, 2))
        >>> bound = calibrate_joint(outputs, truth, alpha=0.1)
        >>> bound(outputs[:3]).width.shape
        (3, 2)
    """
    if method not in get_args(Method):
        raise InputError(f"method must be scale or minimax, got {method!r}", code="choice.unknown")
    outputs, targets, group = aligned(outputs, targets, group=group)
    arrays = as_round(
        outputs, targets, acceleration, task_names, group, task_range, unit, joint=True
    )
    x = as_real_array(arrays.outputs, "outputs", ndim=(3,))
    z = as_real_array(arrays.targets, "targets", ndim=(2,)).astype(float)
    n, p, tasks = x.shape
    if z.shape != (n, tasks):
        message = f"outputs {x.shape} need targets {(n, tasks)}, got {z.shape}"
        raise InputError(message, code="shape.mismatch")
    if n < 2 or tasks < 1 or p < 1:
        message = f"at least 2 cases, 1 sample and 1 task are needed, got {x.shape}"
        raise InputError(message, code="units.few")
    names = arrays.task_names or tuple(f"task{k}" for k in range(tasks))
    ranges = as_ranges(arrays.task_range, names)
    sides: tuple[Side, ...] = per_task(side, names, "side", lambda one: one or "two")
    require_in_ranges(z, ranges, "targets")
    groups = None if arrays.group is None else as_ids(arrays.group, "group", n)
    by_unit = as_unit(unit, cases, has_groups=groups is not None)
    # Scores of the scaled method are those of intervals for each task by itself.
    level = exact_alpha(alpha) / (tasks if method == "scale" else 1)
    chosen = [resolve_score(score, float(level), one) for one in sides]
    index = by_unit.index(n, groups)
    # One task needs no scale.
    is_scaled = method == "scale" and delta is None and tasks > 1
    if method == "scale" and is_self_tuned(chosen[0], delta):
        aside = np.zeros(n, dtype=bool)
        scores, values, least = _self_tuned_scores(chosen, x, z, index, ranges)
    else:
        share = TUNING_FRACTION if method == "minimax" or delta else 0.0
        take = tuning_units(chosen[0], by_unit, int(index.max()) + 1, alpha, delta, share)
        aside = choose_units(index, take, seed, case_contents(x[:, :2], z))
        scores = tuple(
            tuned_score(one, x[aside][:, :, k], z[aside, k], ranges[k], None)
            for k, one in enumerate(chosen)
        )
        values = least = _scores(scores, x[~aside], z[~aside])
    kept = ~aside
    by = None if groups is None else by_unit.groups(groups[kept])
    guarantee = Guarantee(
        alpha=alpha,
        **by_unit.record,
        delta=delta,
        n_cases=int(kept.sum()),
        n_groups=None if by is None else len(np.unique(by)),
        tasks=tasks,
    )
    units = np.unique(index[kept], return_inverse=True)[1]
    if is_scaled:
        guarantee, quantiles = _scaled_quantiles(values, least, units, guarantee, by)
    else:
        tuning = _scores(scores, x[aside], z[aside])
        scales = _make_scales(method, tuning, tasks, alpha)
        common = np.stack([scale(values[:, k]) for k, scale in enumerate(scales)], axis=1)
        guarantee, highest = guarantee.calibrated(common.max(axis=1), by)
        quantiles = tuple(scale.inverse(highest) for scale in scales)
    weights = by_unit.weights(units)
    missed = tuple(map(float, np.average(values > np.array(quantiles), axis=0, weights=weights)))
    facts = {"tuning_cases": int(aside.sum()), "cases": encode_cases(x)}
    R = arrays.acceleration
    return JointBound(scores, quantiles, guarantee, method, p, ranges, facts, names, R, missed)


def _scaled_quantiles(
    values: FloatArray,
    least: FloatArray,
    index: NDArray[np.int64],
    guarantee: Guarantee,
    group: np.ndarray | None,
) -> tuple[Guarantee, tuple[float, ...]]:
    """Return the Bonferroni quantile of each task times a common factor, which is at most 1."""
    # Scores (case, task) lie between `least` and `values`.
    tasks, units = values.shape[1], int(index.max()) + 1
    unit, each = guarantee._unit, exact_alpha(guarantee.alpha) / values.shape[1]
    if unit.fraction is not None:
        # Tasks that each miss so few cases of a group miss few enough together.
        unit = make_unit(guarantee.unit, str(1 - (1 - unit.fraction) / tasks))
    is_known = units >= unit.needed(each, None)
    level = float((1 - each) * (units + 1) / units) if is_known else 1.0
    ratios, scales = [], []
    for s, low in zip(values.T, least.T, strict=True):
        scales.append(unit.quantile(s, group, each, None) if is_known else float(s.max()))
        by_unit, number, _ = unit.entries(low, index)
        by = unit_quantile(by_unit, number, level).low[index]
        ratio = np.where(s <= by, 1.0, np.inf)
        with np.errstate(invalid="ignore", over="ignore"):
            np.divide(np.maximum(s, 0), by, out=ratio, where=(by > 0) & (by < np.inf))
        ratios.append(ratio)
    guarantee, factor = guarantee.calibrated(np.max(ratios, axis=0), group)
    if is_known:
        infinite = f"{guarantee._infinite_scores(values.max(axis=1))}: {WHOLE_RANGE}"
        guarantee = replace(guarantee, caveat=infinite if math.inf in scales else None)
        factor = min(factor, 1.0)
    return guarantee, tuple(_times(factor, scale) for scale in scales)


def _times(factor: float, scale: float) -> float:
    if factor == math.inf:
        return math.inf
    if factor == 1 or scale == math.inf or scale <= 0:
        return scale
    # The score that set the factor was divided by another scale.
    return factor * scale * (1 + 8 * float(np.finfo(float).eps))


def _self_tuned_scores(
    each: Sequence[Score],
    outputs: FloatArray,
    targets: FloatArray,
    index: NDArray[np.int64],
    ranges: Sequence[TaskRange],
) -> tuple[tuple[Score, ...], FloatArray, FloatArray]:
    """Return fitted scores, and upper and lower score values (case, task) if a unit is replaced."""
    everyone = np.ones(len(targets), dtype=bool)
    scores: list[Score] = []
    largest, least = [], []
    for k, score in enumerate(each):
        assert isinstance(score, SelfTunedScore)
        summary, z = score.summarise(outputs[:, :, k]), targets[:, k]
        fitted, corners = score.leave_one_out(summary, z, ranges[k]).fit(everyone, index)
        scores.append(fitted)
        families: list[Any] = [corner.summary_family(summary) for corner in corners]
        found = np.array([family.score(z) for family in families])
        above = np.array([z >= family.low for family in families])
        # Between centres on both sides of the target one lies at the target itself.
        is_between = above.any(axis=0) & ~above.all(axis=0)
        largest.append(found.max(axis=0))
        least.append(np.where(is_between, np.minimum(found.min(axis=0), 0), found.min(axis=0)))
    return tuple(scores), np.stack(largest, axis=1), np.stack(least, axis=1)


def _scores(scores: Sequence[Score], outputs: FloatArray, targets: FloatArray) -> FloatArray:
    if len(outputs) == 0:
        return np.empty((0, len(scores)))
    families = [interval_family(s, outputs[:, :, k]) for k, s in enumerate(scores)]
    return np.stack([f.score(targets[:, k]) for k, f in enumerate(families)], axis=1)
