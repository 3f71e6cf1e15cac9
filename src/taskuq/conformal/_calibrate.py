"""Calibration of intervals for one task."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from taskuq._arrays import (
    align_cases,
    as_ids,
    as_outputs_and_targets,
    as_real_array,
    as_task_range,
    encode_cases,
)
from taskuq.conformal._bound import (
    Bound,
    EndQuantiles,
    SingleQuantile,
    StratumQuantiles,
    Threshold,
    WeightedQuantile,
    as_weights,
)
from taskuq.conformal._family import (
    BoundSide,
    BracketedFamily,
    each_end,
    interval_family,
    parse_side,
    rounds_for_score,
    uses_earlier_rounds,
)
from taskuq.conformal._guarantee import (
    WHOLE_RANGE,
    ConditionOn,
    DeltaScope,
    Guarantee,
    parse_condition_on,
    parse_delta_scope,
    quantiles_within,
)
from taskuq.conformal._quantiles import exact_alpha
from taskuq.conformal._units import (
    Level,
    SiteUnit,
    Unit,
    UnitName,
    as_unit,
    case_contents,
    choose_units,
    nested_ids,
)
from taskuq.conformal.scores import resolve_score
from taskuq.conformal.scores._mlwr import FEWEST_TUNING_CASES
from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray, TaskRange
from taskuq.protocols import FittedScore, IntervalFamily, Score, SelfTunedScore
from taskuq.table._table import TableLike, TaskOutputs, is_stored


class RoundArrays(NamedTuple):
    outputs: Any
    targets: Any
    group: Any
    task_range: Any
    acceleration: float | None
    task_names: tuple[str, ...] | None = None
    label: Any = None
    site: Any = None
    round_name: str | None = None

    @property
    def labels(self) -> dict[str, Any]:
        """Acceleration, name of the round and task, as fields of a result."""
        task = (self.task_names or ("task",))[0]
        named = {"round_name": self.round_name, "task": None if task == "task" else task}
        return {"acceleration": self.acceleration, **named}


def aligned(outputs: Any, targets: Any, **others: Any) -> list[Any]:
    """Return outputs, targets and other arrays with cases in one order; read stored tables."""
    if targets is None and is_stored(outputs):
        outputs = TaskOutputs.load(outputs)
    return list(align_cases({"outputs": outputs, "targets": targets, **others}).values())


def as_round(
    outputs: Any,
    targets: Any,
    acceleration: float | str | None = None,
    task: Any = None,
    group: Any = None,
    task_range: Any = None,
    unit: UnitName | None = None,
    *,
    joint: bool = False,
) -> RoundArrays:
    """Return the data of one round, selected from a table or made of separate arrays."""
    if not isinstance(outputs, TaskOutputs):
        if targets is None:
            message = "targets are missing; pass outputs and targets, or a table that has both"
            raise InputError(message, code="targets.missing")
        if (task is not None and not joint) or isinstance(acceleration, str):
            message = "task= and round names need a table, got arrays; remove them"
            raise InputError(message, code="option.unused")
        R = None if acceleration is None else float(acceleration)
        names = None if task is None else tuple(task)
        return RoundArrays(outputs, targets, group, task_range, R, names)
    k = _round_index(outputs, targets, acceleration)
    table = outputs if task is None else outputs.select(task=list(task) if joint else task)
    if joint and table.outputs.ndim == 3:
        raise InputError("the table has one task; use calibrate", code="shape.axes")
    if not joint and table.tasks > 1:
        all_ = ", ".join(table.task_names)
        message = f"the table has the tasks {all_}; choose one with task=, or use calibrate_joint"
        raise InputError(message, code="option.missing")
    R = float(table.accelerations[k])
    ranges = table.task_ranges if joint else table.task_ranges[0]
    has_groups, has_sites = table.group is not None, table.site is not None
    own = as_unit(unit, has_groups=has_groups, has_sites=has_sites).groups(table.group)
    return RoundArrays(
        outputs=table.outputs[k] if joint else table.rounds_up_to(k),
        targets=table.targets_at(k),
        group=own if group is None else group,
        task_range=ranges if task_range is None else task_range,
        acceleration=None if np.isnan(R) else R,
        task_names=table.task_names,
        label=table.label,
        site=table.site,
        round_name=None if table.round_names is None else table.round_names[k],
    )


def _round_index(table: TaskOutputs, targets: Any, acceleration: float | str | None) -> int:
    require_own_targets(table, targets)
    if acceleration is not None:
        is_unknown = bool(np.isnan(table.accelerations).all())
        is_single = is_unknown and not isinstance(acceleration, str)
        return 0 if is_single else table.round_index(acceleration)
    if table.rounds > 1:
        rounds = ", ".join(table.round_labels)
        message = f"the table has the rounds {rounds}; choose one with acceleration="
        raise InputError(message, code="option.missing")
    return 0


def require_own_targets(table: TaskOutputs, targets: Any = None) -> None:
    """Raise InputError if a table has no targets, or if ``targets`` is given in addition."""
    if targets is not None:
        raise InputError("the table has its own targets; remove targets=", code="option.unused")
    if not table.has_targets:
        message = "the table has no targets; targets f(x) of the true images are needed"
        raise InputError(message, code="targets.missing")


def needs_tuning(score: Score) -> TypeGuard[FittedScore]:
    return isinstance(score, FittedScore) and score.needs_tuning


def tuning_fraction(score: Score) -> float:
    """Return the fraction of units to hold out for fitting a score to targets."""
    if needs_tuning(score) and score.tuning_needs_targets:
        return score.tuning_fraction
    return 0.0


def is_self_tuned(score: Score, delta: float | None = None) -> TypeGuard[SelfTunedScore]:
    """Return True if a score is fitted to the calibration units, with none held out."""
    return delta is None and isinstance(score, SelfTunedScore) and score.needs_tuning


def tuning_units(
    score: Score, unit: Unit, units: int, alpha: Level, delta: float | None, least: float = 0.0
) -> int:
    """Return the number of units to hold out: about the fraction ``least`` of them, or more."""
    held_out = tuning_count(units, least, alpha) if least else 0
    if not needs_tuning(score):
        return held_out
    take = tuning_count(units, score.tuning_fraction, alpha)
    if not score.tuning_needs_targets:
        take = max(0, min(take, units - unit.needed(alpha, delta)))
        # A case is one case; a group may hold many.
        take = 0 if not unit.is_group and take < FEWEST_TUNING_CASES else take
    return max(take, held_out)


def tuning_count(units: int, fraction: float, alpha: Level) -> int:
    """Return a tuning-set size close to the given fraction of the units.

    If possible, alpha (n + 1) is an integer for the n remaining units.
    """
    level = exact_alpha(alpha)
    take = math.floor(fraction * units)
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
    if not needs_tuning(score):
        return score
    return score.fit(rounds_for_score(score, outputs), targets, range_=range_, group=group)


KINDS = {"label": "class", "strata": "stratum"}


def calibrate(
    outputs: TableLike,
    targets: ArrayLike | None = None,
    *,
    alpha: float,
    score: str | Score = "mlwr",
    group: ArrayLike | None = None,
    site: ArrayLike | None = None,
    unit: UnitName | None = None,
    cases: float | str = "random",
    delta: float | None = None,
    label: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    condition_on: ConditionOn | None = None,
    delta_scope: DeltaScope | None = None,
    weights: ArrayLike | None = None,
    side: BoundSide = "two",
    task_range: TaskRange = None,
    tuning: tuple[ArrayLike, ArrayLike] | None = None,
    acceleration: float | str | None = None,
    task: str | None = None,
    seed: int | np.random.Generator | None = None,
) -> Bound:
    r"""Calibrate intervals that contain the target of a new case with probability 1 - alpha.

    With the nonconformity scores :math:`s_i = s(\hat z_i, z_i)` of the calibration cases and their
    conformal quantile :math:`\hat q`, the interval of a new case is

    .. math:: \mathcal C(\hat z) = \{ z : s(\hat z, z) \le \hat q \}

    Args:
        outputs: A table of task outputs, or task outputs on reconstructions: (case, sample),
            (case,) for point estimates, or (round, case, sample) with the current round last.
        targets: Task outputs on the true images (case,); omit with a table.
        alpha: Error rate in (0, 1).
        score: 'ar', 'lwr', 'cqr', 'mlwr', 'learned', the name of a score that you registered, or
            a score object.
        group: Group of each case (case,), e.g. its patient.
        site: Site of each case (case,), e.g. its hospital, for ``unit='site'``.
        unit: Exchangeable unit: 'case'; 'group', to cover a random case of a new group; or
            'site', to cover a random case of a random group of a new site. Default: 'group' if
            groups are given.
        cases: With groups, the cases of a new group that are covered: 'random' for one random
            case, 'all', or a number in (0, 1] for at least this fraction of its cases.
        delta: Largest probability, over calibration sets, of a coverage below 1 - alpha; default:
            coverage is at least 1 - alpha on average over calibration sets.
        label: Class of each case. The guarantee holds within each class; the class of a new case
            need not be known.
        strata: Stratum of each case, which may depend only on its inputs. The guarantee holds
            within each stratum; pass the strata of new cases to the bound.
        condition_on: With groups and ``label`` or ``strata``: 'case' covers a random case of a new
            group, given its class or stratum; 'group' covers a random case among those of the
            class or stratum, in a new group that has such cases. Default: 'group' if ``cases`` is
            'all' or a fraction, otherwise 'case'.
        delta_scope: With ``delta`` and ``strata``: 'each' (default) if delta holds for each stratum
            separately, 'all' if it holds for all strata jointly.
        weights: Ratio of the densities of new and calibration inputs at each case; pass the
            weights of new cases to the bound.
        side: 'two' for two-sided intervals, 'upper' or 'lower' for one-sided bounds, 'each' for
            two-sided intervals with a quantile per end, each at half the error rate.
        task_range: Range (low, high) of the task, to which intervals are clipped.
        tuning: Outputs and targets of other cases, to which the score is fitted. Without them,
            'learned' holds out three tenths of the units for its fit; 'mlwr' is fitted to all
            units or, with ``delta``, to a tenth that is held out.
        acceleration: Round of the table to use, by acceleration or name; stored with the bound.
        task: Task to use, if the table has several tasks.
        seed: Integer or Generator for the random choice of units to hold out, if any.

    Returns:
        The bound; call it with the outputs of new cases.

    Raises:
        InputError: If arrays do not fit together, values are not finite, or options conflict.

    Example:
        >>> truth = rng.random(500)
        >>> outputs = truth[:, None] + 0.05 * rng.standard_normal((500, 16))
        >>> bound = calibrate(outputs, truth, alpha=0.1, score="lwr", task_range=(-1, 2))
        >>> interval = bound(outputs[:2])
        >>> bool(interval.contains(truth[:2]).all())
        True
    """
    outputs, targets, group, site, label, strata, weights = aligned(
        outputs, targets, group=group, site=site, label=label, strata=strata, weights=weights
    )
    arrays = as_round(outputs, targets, acceleration, task, group, task_range, unit)
    range_ = None if arrays.task_range is None else as_task_range(arrays.task_range)
    x, z = as_outputs_and_targets(arrays.outputs, arrays.targets, range_)
    n = len(z)
    if n < 2:
        raise InputError(f"calibration needs at least 2 cases, got {n}", code="units.few")
    groups = None if arrays.group is None else as_ids(arrays.group, "group", n)
    if site is not None and unit != "site":
        raise InputError("site= needs unit='site'; pass it or remove site=", code="option.unused")
    site = arrays.site if site is None else site
    by = as_unit(unit, cases, has_groups=groups is not None, has_sites=site is not None)
    if isinstance(by, SiteUnit):
        groups = nested_ids(as_ids(site, "site", n), groups)
    conditions = {"label": label, "strata": strata, "weights": weights}
    has_condition = label is not None or strata is not None or weights is not None
    condition = _condition(by, n, conditions) if has_condition else None
    kind = None if condition is None else KINDS.get(condition[0])
    score_side, ends = parse_side(side)
    guarantee = Guarantee(
        alpha=alpha,
        unit=by.counted,
        cases=by.cases,
        delta=delta,
        n_cases=n,
        quantiles_per_interval=ends,
        condition=kind and f"each {kind}",
        condition_on=parse_condition_on(condition_on, by, kind),
        delta_scope=parse_delta_scope(delta_scope, delta, kind),
    )
    chosen = resolve_score(score, alpha, score_side)
    if tuning is not None:
        chosen = _fit_elsewhere(chosen, tuning, x, z, range_)
    fitted, family, kept = _fit(chosen, x, z, guarantee, groups, range_, seed)
    guarantee, threshold = _calibrate_threshold(family.score(z), kept, guarantee, groups, condition)
    if range_ is None and guarantee.caveat:
        infinite = guarantee.caveat.replace(WHOLE_RANGE, "the interval is infinite")
        guarantee = replace(guarantee, caveat=infinite)
    return Bound(
        score=fitted,
        threshold=threshold,
        guarantee=guarantee,
        samples=x.shape[-1],
        rounds=len(x) if x.ndim == 3 and uses_earlier_rounds(fitted) else 1,
        task_range=range_,
        acceleration=arrays.acceleration,
        provenance={
            "tuning_cases": int(n - kept.sum()),
            "cases": encode_cases(x if x.ndim == 2 else x[-1]),
        },
    )


def _fit(
    score: Score,
    outputs: FloatArray,
    targets: FloatArray,
    guarantee: Guarantee,
    group: np.ndarray | None,
    range_: TaskRange,
    seed: int | np.random.Generator | None,
) -> tuple[Score, IntervalFamily | BracketedFamily, BoolArray]:
    """Return the fitted score, the intervals of all cases, and a mask of the calibration cases."""
    unit, ends = guarantee._unit, guarantee.quantiles_per_interval
    kept = np.ones(len(targets), bool)
    if not isinstance(score, FittedScore):
        return score, interval_family(score, outputs, ends), kept
    index = unit.index(len(targets), group)
    if is_self_tuned(score, guarantee.delta):
        summary = score.summarise(rounds_for_score(score, outputs))
        fitted, corners = score.leave_one_out(summary, targets, range_).fit(kept, index)
        families = [corner.summary_family(summary) for corner in corners]
        bracketed = families if ends == 1 else map(each_end, families)
        return fitted, BracketedFamily(tuple(bracketed)), kept
    level = exact_alpha(guarantee.alpha) / ends
    take = tuning_units(score, unit, int(index.max()) + 1, level, guarantee.delta)
    first = np.moveaxis(outputs[..., :2], -2, 0)
    aside = choose_units(index, take, seed, case_contents(first, targets))
    by = None if group is None else group[aside]
    tuned = tuned_score(score, outputs[..., aside, :], targets[aside], range_, by)
    # Scoring the cases held out too is cheaper than a copy of all the others.
    return tuned, interval_family(tuned, outputs, ends), ~aside


def _condition(unit: Unit, n: int, conditions: Mapping[str, Any]) -> tuple[str, np.ndarray]:
    names = [name for name in conditions if conditions[name] is not None]
    if len(names) > 1:
        message = f"choose one of label, strata and weights, got {' and '.join(names)}"
        raise InputError(message, code="option.conflict")
    name, value = names[0], conditions[names[0]]
    if name != "weights":
        return name, as_ids(value, name, n)
    if unit.is_group:
        message = "weights need exchangeable cases; use unit='case' or remove weights="
        raise InputError(message, code="option.conflict")
    return name, as_weights(value, n)


def _fit_elsewhere(
    score: Score,
    tuning: tuple[Any, Any],
    outputs: FloatArray,
    targets: FloatArray,
    range_: TaskRange,
) -> Score:
    try:
        other_outputs, other_targets = tuning
    except (TypeError, ValueError):
        message = "tuning must be a pair (outputs, targets) of other cases"
        raise InputError(message, code="shape.axes") from None
    x = as_real_array(other_outputs, "tuning outputs", ndim=(outputs.ndim,))
    z = as_real_array(other_targets, "tuning targets", ndim=(1,)).astype(float)
    if x.shape[-1] != outputs.shape[-1] or x.shape[-2] != len(z):
        given = f"tuning outputs {x.shape} and targets {z.shape}"
        message = f"{given} must be of one set of cases with {outputs.shape[-1]} samples"
        raise InputError(message, code="shape.mismatch")
    mine, others = _rows(outputs, targets), _rows(x, z)
    distinct = set(mine)
    shared = [i for i, row in enumerate(others) if row in distinct]
    # Coarse numbers repeat by chance, within one set too; then only all of them together count.
    if shared and (len(distinct) == len(mine) or len(shared) == len(others)):
        count = f"{len(shared)} of {len(others)} tuning cases (first: {shared[0]})"
        message = f"{count} are also calibration cases; pass disjoint cases"
        raise InputError(message, code="data.leak")
    return tuned_score(score, x, z, range_, None)


def _rows(outputs: FloatArray, targets: FloatArray) -> list[bytes]:
    each = np.moveaxis(outputs.astype(float), -2, 0).reshape(len(targets), -1)
    return [row.tobytes() for row in np.column_stack([each, targets])]


def _calibrate_threshold(
    scores: FloatArray,
    kept: BoolArray,
    guarantee: Guarantee,
    group: np.ndarray | None,
    condition: tuple[str, np.ndarray] | None,
) -> tuple[Guarantee, Threshold]:
    """Return the guarantee with its caveats, and the quantiles of scores (case,) or (end, case)."""
    if not kept.all():
        scores, guarantee = scores[..., kept], replace(guarantee, n_cases=int(kept.sum()))
        group = None if group is None else group[kept]
        condition = None if condition is None else (condition[0], condition[1][kept])
    if guarantee._unit.is_group and group is not None:
        units = guarantee._unit.index(len(group), group)
        guarantee = replace(guarantee, n_groups=len(np.unique(units)))
    else:
        group = None
    if scores.ndim == 1:
        return _one_threshold(scores, guarantee, group, condition)
    (below, lower), (above, upper) = (
        _one_threshold(s, guarantee, group, condition) for s in scores
    )
    caveat = below.caveat
    if below.caveat != above.caveat:
        named = (("lower", below.caveat), ("upper", above.caveat))
        end = "the {} end is that of the task range"
        found = [text.replace(WHOLE_RANGE, end.format(name)) for name, text in named if text]
        caveat = "; ".join(found)
    return replace(below, caveat=caveat), EndQuantiles(lower, upper)


def _one_threshold(
    scores: FloatArray,
    guarantee: Guarantee,
    group: np.ndarray | None,
    condition: tuple[str, np.ndarray] | None,
) -> tuple[Guarantee, Threshold]:
    if condition is None:
        guarantee, quantile = guarantee.calibrated(scores, group)
        return guarantee, SingleQuantile(quantile)
    name, values = condition
    if name == "weights":
        if guarantee.delta is not None:
            raise InputError("weights exclude delta; remove one", code="option.conflict")
        order = np.argsort(scores, kind="stable")
        weighted = WeightedQuantile(scores[order], values[order], float(guarantee.levels[0]))
        return replace(guarantee, weighted=True, caveat=weighted.caveat(guarantee)), weighted
    guarantee, quantiles = quantiles_within(guarantee, scores, group, values)
    if name == "label":
        # The class of a new case is unknown, so the largest quantile has to serve them all.
        return guarantee, SingleQuantile(max(quantiles.values()))
    return guarantee, StratumQuantiles(quantiles)
