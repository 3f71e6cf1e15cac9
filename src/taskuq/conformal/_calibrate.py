"""Calibration of one task; units set aside for tuning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from taskuq._arrays import as_ids, as_outputs_and_targets, as_real_array, as_task_range
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
)
from taskuq.conformal._guarantee import (
    WHOLE_RANGE,
    DeltaFor,
    Guarantee,
    Within,
    as_delta_for,
    parse_within,
    quantiles_within,
)
from taskuq.conformal._quantiles import exact_alpha
from taskuq.conformal._units import Unit, UnitName, as_unit, choose_units
from taskuq.conformal.scores import resolve_score
from taskuq.conformal.scores._mlwr import FEWEST_TUNING_CASES
from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray, TaskRange
from taskuq.protocols import FittedScore, IntervalFamily, Score, SelfTunedScore
from taskuq.table._table import TaskOutputs, is_stored


class RoundArrays(NamedTuple):
    """Validated arrays of one round."""

    outputs: Any
    targets: Any
    group: Any
    task_range: Any
    acceleration: float | None
    task_names: tuple[str, ...] | None = None
    label: Any = None
    round_name: str | None = None

    @property
    def where(self) -> dict[str, Any]:
        """Round and task by name, as a result remembers them."""
        return {
            "acceleration": self.acceleration,
            "round_name": self.round_name,
            "task": self.task_name,
        }

    @property
    def task_name(self) -> str | None:
        """The name of the only task, where it has one that means something."""
        names = self.task_names or ("task",)
        return None if names == ("task",) else names[0]


def as_round(
    outputs: Any,
    targets: Any,
    acceleration: float | str | None = None,
    task: str | None = None,
    group: Any = None,
    task_range: Any = None,
    unit: UnitName | None = None,
) -> RoundArrays:
    """Return the validated arrays of one task and round."""
    outputs = _opened(outputs, targets)
    if not isinstance(outputs, TaskOutputs):
        if task is not None:
            raise InputError("task chooses one of a table's tasks, got arrays; leave it out")
        return _arrays(outputs, targets, acceleration, group, task_range)
    table, k = _round(outputs, targets, acceleration)
    if task is None and table.tasks > 1:
        raise InputError(
            f"the table has the tasks {', '.join(table.task_names)}; choose one with task=, or "
            "cover all of them with calibrate_joint"
        )
    table = table if task is None else table.select(task=task)
    return _of_table(table, k, table.rounds_up_to(k), group, task_range, unit)


def as_joint_round(
    outputs: Any,
    targets: Any,
    acceleration: float | str | None = None,
    task_names: Sequence[str] | None = None,
    group: Any = None,
    task_range: Any = None,
    unit: UnitName | None = None,
) -> RoundArrays:
    """Return the validated arrays of several tasks."""
    outputs = _opened(outputs, targets)
    if not isinstance(outputs, TaskOutputs):
        given = _arrays(outputs, targets, acceleration, group, task_range)
        return given._replace(task_names=None if task_names is None else tuple(task_names))
    table, k = _round(outputs, targets, acceleration)
    table = table if task_names is None else table.select(task=list(task_names))
    if table.outputs.ndim == 3:
        raise InputError("the table has one task; use calibrate, or bring a table of several")
    return _of_table(table, k, table.outputs[k], group, task_range, unit)


def _opened(outputs: Any, targets: Any) -> Any:
    """A table where its path or a data frame stands for one; a frame with targets is an array."""
    return TaskOutputs.load(outputs) if targets is None and is_stored(outputs) else outputs


def _arrays(
    outputs: Any, targets: Any, acceleration: float | str | None, group: Any, task_range: Any
) -> RoundArrays:
    if targets is None:
        raise InputError("targets are missing; give outputs and targets, or a table that has both")
    if isinstance(acceleration, str):
        raise InputError(
            f"{acceleration!r:.40} names a round of a table; with arrays give a number"
        )
    rate = None if acceleration is None else float(acceleration)
    return RoundArrays(outputs, targets, group, task_range, rate)


def _round(
    table: TaskOutputs, targets: Any, acceleration: float | str | None
) -> tuple[TaskOutputs, int]:
    """The table and the number of the round that is meant."""
    if targets is not None:
        raise InputError("a table brings its own targets; leave targets out")
    if not table.has_targets:
        raise InputError("the table has no targets, so nothing can be learnt from it")
    if acceleration is not None:
        unknown = bool(np.isnan(table.accelerations).all())
        return table, 0 if unknown and not isinstance(acceleration, str) else table.round_index(
            acceleration
        )
    if table.rounds > 1:
        raise InputError(
            f"the table has the rounds {', '.join(table.round_labels)}; choose one with "
            "acceleration="
        )
    return table, 0


def _of_table(
    table: TaskOutputs, k: int, outputs: Any, group: Any, task_range: Any, unit: UnitName | None
) -> RoundArrays:
    R = float(table.accelerations[k])
    ranges = table.task_ranges[0] if table.outputs.ndim == 3 else table.task_ranges
    own = as_unit(unit, has_groups=table.group is not None).groups(table.group)
    return RoundArrays(
        outputs, table.targets_at(k), own if group is None else group,
        ranges if task_range is None else task_range, None if np.isnan(R) else R,
        table.task_names, table.label, None if table.round_names is None else table.round_names[k],
    )  # fmt: skip


def needs_tuning(score: Score) -> TypeGuard[FittedScore]:
    """Return True if a score has still to learn from cases set aside before it can be calibrated."""
    return isinstance(score, FittedScore) and score.needs_tuning


def tuning_fraction(score: Score) -> float:
    """Return the fraction of units held out for tuning."""
    if needs_tuning(score) and score.tuning_needs_targets:
        return score.tuning_share
    return 0.0


def is_self_tuned(score: Score, delta: float | None = None) -> TypeGuard[SelfTunedScore]:
    """Return True if a score needs no held-out units."""
    return delta is None and isinstance(score, SelfTunedScore) and score.needs_tuning


def tuning_units(
    score: Score,
    unit: Unit,
    units: int,
    alpha: float | Fraction,
    delta: float | None,
    least: float = 0.0,
) -> int:
    """Return how many units are set aside for the score, or something beside it, to learn from."""
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
    """Return how many units to set aside: about a share, and none that calibration could use."""
    level = exact_alpha(alpha)
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
    """Return the score after learning from the given cases; one that does not learn as it is."""
    if not needs_tuning(score):
        return score
    return score.tuned(rounds_for_score(score, outputs), targets, range_=range_, group=group)


# What a promise is conditional on, in words.
KINDS = {"label": "class", "strata": "stratum"}


def calibrate(
    outputs: Any,
    targets: Any = None,
    *,
    alpha: float,
    score: str | Score = "mlwr",
    group: Any = None,
    unit: UnitName | None = None,
    cases: float | str = "random",
    delta: float | None = None,
    label: Any = None,
    strata: Any = None,
    within: Within | None = None,
    delta_for: DeltaFor | None = None,
    weights: Any = None,
    side: BoundSide = "two",
    task_range: TaskRange = None,
    tuning: tuple[Any, Any] | None = None,
    acceleration: float | str | None = None,
    task: str | None = None,
    rng: np.random.Generator | None = None,
) -> Bound:
    r"""Calibrate intervals that contain the target of a new case with probability 1 - alpha.

    The scores :math:`s_i = s(\hat z_i, z_i)` of the calibration cases are computed, and the
    interval of a new case is the set of targets that would score at most their conformal
    quantile :math:`\hat q`:

    .. math:: \mathcal C(\hat z) = \{ z : s(\hat z, z) \le \hat q \}

    Arguments:
        outputs: Task outputs on recovered images (case, sample), or (case,) for point estimates;
            or of all rounds so far (round, case, sample), the current one last, for scores that
            read the earlier ones. Or a table, which brings targets, groups and range.
        targets: Task outputs on the true images (case,); left out with a table.
        alpha: The error rate, strictly between 0 and 1.
        score: ar, lwr, cqr, mlwr, learned, the name of one of your own, or an object with methods
            ``score`` and ``interval``.
        group: What cases come in, e.g. the patient of each case (case,).
        unit: What is exchangeable: 'case' or 'group'; the group if groups are given.
        cases: With groups: which cases of a new group are covered: a 'random' one, 'all', or a
            share such as 0.9.
        delta: Promise coverage given the calibration set, for all but this share of such sets.
        label: A class per case; the promise then holds within each class, whichever it is.
        strata: A stratum per case, any function of the inputs; the promise then holds within each
            stratum, and calls need the new case's stratum.
        within: With groups and strata or labels, what is drawn: 'case', a random case of a new
            group, which falls in the stratum (the default), or 'group', a group that has cases of
            the stratum, and one of those (the default where ``cases`` is 'all' or a share).
        delta_for: With delta and strata, whether delta is for 'each' stratum by itself (the
            default) or for 'all' at once. Classes always share it.
        weights: Likelihood ratios of the new inputs against these; calls need the new weight.
        side: 'two', or 'upper' or 'lower' for a bound on one side; 'each' for two-sided intervals
            with a quantile for each end, both at half the error rate.
        task_range: The range of the task; intervals are clipped to it.
        tuning: Outputs and targets of other cases, e.g. of the training set, for scores that
            learn. Without it `learned` sets three tenths of the units aside; `mlwr` learns from
            the outputs of all of them, and with ``delta`` from a tenth set aside.
        acceleration: Of a table with several rounds: which one, by acceleration or name.
            Remembered with the bound.
        task: Of a table with several tasks: which one.
        rng: Picks the tuning cases at random; without it they are taken at even steps.

    Example:
        >>> truth = rng.random(500)
        >>> outputs = truth[:, None] + 0.05 * rng.standard_normal((500, 16))
        >>> bound = calibrate(outputs, truth, alpha=0.1, score="lwr", task_range=(-1, 2))
        >>> interval = bound(outputs[:2])
        >>> bool(interval.contains(truth[:2]).all())
        True
    """
    given = as_round(outputs, targets, acceleration, task, group, task_range, unit)
    range_, group = as_task_range(given.task_range), given.group
    x, z = as_outputs_and_targets(given.outputs, given.targets, range_)
    n = len(z)
    if n < 2:
        raise InputError(f"calibration needs at least 2 cases, got {n}; collect more")
    groups = None if group is None else as_ids(group, "group", n)
    whom = as_unit(unit, cases, has_groups=groups is not None)
    condition = _condition(whom, n, label=label, strata=strata, weights=weights)
    score_side, ends = parse_side(side)
    promise = Guarantee(alpha=alpha, **whom.record, delta=delta, n_cases=n, ends=ends)
    promise = _read(promise, condition, within, delta_for)
    chosen = resolve_score(score, alpha, score_side)
    if tuning is not None:
        chosen = _tuned_elsewhere(chosen, tuning, x, z, range_)
    chosen, judged, kept = _learnt(chosen, x, z, promise, groups, range_, rng)
    guarantee, threshold = _threshold(judged.score(z), kept, promise, groups, condition)
    read = rounds_for_score(chosen, x)
    return Bound(
        score=chosen,
        threshold=threshold,
        guarantee=guarantee,
        samples=x.shape[-1],
        rounds=len(read) if read.ndim == 3 else 1,
        task_range=range_,
        acceleration=given.acceleration,
        provenance={"tuning_cases": int(n - kept.sum())},
    )


def _learnt(
    score: Score,
    outputs: FloatArray,
    targets: FloatArray,
    promise: Guarantee,
    group: np.ndarray | None,
    range_: TaskRange,
    rng: np.random.Generator | None,
) -> tuple[Score, IntervalFamily | BracketedFamily, BoolArray]:
    """A score that has learnt, what calibration cases are scored by, and which of them are kept."""
    whom, n = promise.whom, len(targets)
    index, kept = whom.index(n, group), np.ones(n, dtype=bool)
    if is_self_tuned(score, promise.delta):
        read = score.read(rounds_for_score(score, outputs))
        learnt, *ends = score.learner(read, range_).learn(kept, index)
        grown = [end.grown(read) for end in ends]
        return (
            learnt,
            BracketedFamily(*(grown if promise.ends == 1 else map(each_end, grown))),
            kept,
        )
    level = exact_alpha(promise.alpha) / promise.ends
    take = tuning_units(score, whom, int(index.max()) + 1, level, promise.delta)
    aside = choose_units(index, take, rng)
    by = None if group is None else group[aside]
    tuned = tuned_score(score, outputs[..., aside, :], targets[aside], range_, by)
    # Scoring the cases set aside too is cheaper than a copy of all the others.
    return tuned, interval_family(tuned, outputs, promise.ends), ~aside


def _condition(whom: Unit, n: int, **asked: Any) -> tuple[str, np.ndarray] | None:
    given = {name: value for name, value in asked.items() if value is not None}
    if len(given) > 1:
        raise InputError(f"choose one of label, strata and weights, got {' and '.join(given)}")
    if not given:
        return None
    ((name, value),) = given.items()
    if name != "weights":
        return name, as_ids(value, name, n)
    if whom.is_group:
        raise InputError("weights are for exchangeable cases; use unit='case' or leave them out")
    return name, as_weights(value, n)


def _read(
    promise: Guarantee,
    condition: tuple[str, np.ndarray] | None,
    within: Within | None,
    delta_for: DeltaFor | None,
) -> Guarantee:
    """Complete a promise by how strata or classes, where there are some, are to be read."""
    kind = None if condition is None else KINDS.get(condition[0])
    return replace(
        promise,
        condition=kind and f"each {kind}",
        within=parse_within(within, promise.whom, kind),
        delta_for=as_delta_for(delta_for, promise.delta, kind),
    )


def _tuned_elsewhere(
    score: Score,
    tuning: tuple[Any, Any],
    outputs: FloatArray,
    targets: FloatArray,
    range_: TaskRange,
) -> Score:
    try:
        other_outputs, other_targets = tuning
    except (TypeError, ValueError):
        raise InputError("tuning must be a pair (outputs, targets) of other cases") from None
    x = as_real_array(other_outputs, "tuning outputs", ndim=(outputs.ndim,))
    z = as_real_array(other_targets, "tuning targets", ndim=(1,)).astype(float)
    if x.shape[-1] != outputs.shape[-1] or x.shape[-2] != len(z):
        raise InputError(
            f"tuning outputs {x.shape} and targets {z.shape} must be of one set of cases with "
            f"{outputs.shape[-1]} samples, as the calibration outputs have"
        )
    mine, others = _rows(outputs, targets), _rows(x, z)
    known = set(mine)
    shared = [i for i, row in enumerate(others) if row in known]
    # Coarse numbers repeat by chance, within one set too; then only all of them together tell.
    if shared and (len(known) == len(mine) or len(shared) == len(others)):
        raise InputError(
            f"{len(shared)} of {len(others)} tuning cases are calibration cases, e.g. tuning case "
            f"{shared[0]}: the promise needs a score that has not seen those; give other cases"
        )
    return tuned_score(score, x, z, range_, None)


def _rows(outputs: FloatArray, targets: FloatArray) -> list[bytes]:
    """All numbers of each case, to find it again."""
    each = np.moveaxis(outputs.astype(float), -2, 0).reshape(len(targets), -1)
    return [row.tobytes() for row in np.column_stack([each, targets])]


def _threshold(
    scores: FloatArray,
    kept: BoolArray,
    promise: Guarantee,
    group: np.ndarray | None,
    condition: tuple[str, np.ndarray] | None,
) -> tuple[Guarantee, Threshold]:
    """Turn the scores kept, (case,) or (end, case), into a threshold; complete the promise."""
    scores, promise = scores[..., kept], replace(promise, n_cases=int(kept.sum()))
    group = None if group is None else group[kept]
    condition = None if condition is None else (condition[0], condition[1][kept])
    if scores.ndim == 1:
        return _one_threshold(scores, promise, group, condition)
    (below, lower), (above, upper) = (_one_threshold(s, promise, group, condition) for s in scores)
    return replace(below, shortage=_of_ends(below, above)), EndQuantiles(lower, upper)


def _of_ends(below: Guarantee, above: Guarantee) -> str | None:
    if below.shortage == above.shortage:
        return below.shortage
    said = [
        end.shortage.replace(WHOLE_RANGE, f"the {name} end is that of the task range")
        for name, end in (("lower", below), ("upper", above))
        if end.shortage
    ]
    return "; ".join(said)


def _one_threshold(
    scores: FloatArray,
    promise: Guarantee,
    group: np.ndarray | None,
    condition: tuple[str, np.ndarray] | None,
) -> tuple[Guarantee, Threshold]:
    """Turn scores into a threshold, and complete the promise with what it rests on."""
    group = promise.whom.groups(group)
    if group is not None:
        promise = replace(promise, n_groups=len(np.unique(group)))
    if condition is None:
        promise, quantile = promise.calibrated(scores, group)
        return promise, SingleQuantile(quantile)
    name, split = condition
    if name == "weights":
        if promise.delta is not None:
            raise InputError("weights and delta cannot be combined; leave one out")
        order = np.argsort(scores, kind="stable")
        weighted = WeightedQuantile(scores[order], split[order], float(promise.levels[0]))
        return replace(promise, shifted=True, shortage=weighted.shortage(promise)), weighted
    promise, quantiles = quantiles_within(promise, scores, group, split)
    if name == "label":
        # The class of a new case is unknown, so the largest quantile has to serve them all.
        return promise, SingleQuantile(max(quantiles.values()))
    return promise, StratumQuantiles(quantiles)
