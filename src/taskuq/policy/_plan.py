"""Calibration of a policy and choice among policies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from taskuq.conformal._calibrate import tuning_count
from taskuq.conformal._guarantee import Guarantee
from taskuq.conformal._units import PolicyUnitName, Unit, as_unit, choose_units, unit_index
from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray
from taskuq.policy._goal import make_goals
from taskuq.policy._kinds import Given, PolicyName, PolicySpec, Statistic, parse_policy
from taskuq.policy._learned import fit_rules, round_arrays
from taskuq.policy._policy import Policy, monitor_statistics
from taskuq.policy._rules import LEAST, StoppingStatistics, stopping_statistics
from taskuq.policy._stopping import (
    Calibrator,
    Losses,
    make_certificate,
    mean_cost,
    search_threshold,
    smallest_certified,
)
from taskuq.protocols import Score
from taskuq.table._table import TaskOutputs, as_table

# Fraction of units on which policies are compared, and the folds it is cut into.
CHOOSING_FRACTION, FOLDS = 0.3, 5


def plan(
    table: Any,
    *,
    alpha: float,
    max_width: Any = None,
    at_least: Any = None,
    at_most: Any = None,
    policy: str = "fixed-width",
    score: str | Score = "mlwr",
    statistic: Statistic = "spread",
    budget: float = 1.0,
    round_tolerance: float = 0.25,
    unit: PolicyUnitName | None = None,
    cases: float | str = "random",
    delta: float | None = None,
    given: Given | None = None,
    side: Any = None,
    choose: Sequence[PolicyName] | None = None,
    certificate_alpha: float = 0.1,
    task: str | Sequence[str] | None = None,
    seed: int | np.random.Generator | None = None,
    **table_kwargs: Any,
) -> Policy:
    r"""Calibrate a policy that stops scans early, with a guarantee at the stop.

    ===============  ======================================================================
    ``fixed-width``  report a window that reaches the goal; stop when its risk is small
    ``adaptive``     report the interval of the score; stop as soon as it reaches the goal
    ``anytime``      report intervals valid in all rounds jointly, for any stopping rule
    ``paper``        calibrate each round separately; no guarantee for the stopped report
    ===============  ======================================================================

    For the first two, :math:`\hat\lambda` is the conformal quantile of the stopping scores
    :math:`\Lambda_i`. :math:`\Lambda_i` is the largest threshold at which case i stops with a miss,
    so that

    .. math:: \mathbb P\{z \in \mathcal C_T \text{ and the goal is reached}\} \ge 1 - \alpha

    Args:
        table: Task outputs of all rounds, or arrays (outputs, targets).
        alpha: Error rate in (0, 1).
        max_width: Stop when the interval is this narrow. Widths, levels and sides are given once
            for all tasks, or per task, in order or by name.
        at_least: Stop when a lower bound exceeds this level.
        at_most: Stop when an upper bound is below this level.
        policy: Kind of policy, one of the above or a registered one.
        score: Score of the nested intervals; fixed-width policies use ``statistic`` instead.
        statistic: 'spread', which needs no tuning targets, or 'learned', which also corrects bias.
        budget: For fixed-width: values below 1 trade acceleration for narrower reports.
        round_tolerance: For fixed-width: exponent that makes later rounds more tolerant.
        unit: 'case', 'group' (a random case of a new group), or 'whole-group' (one decision for all
            cases of a group); default: 'group' if the table has groups.
        cases: With groups, cases of a new group to cover: 'random' (one), 'all' or a fraction.
        delta: Guarantee coverage with probability 1 - delta over calibration sets.
        given: 'early' guarantees coverage among the scans that stop before the full measurement. It
            needs ``delta``; the certificate records its cost in acceleration.
        side: 'two', 'upper' or 'lower'; default: derived from ``at_least`` and ``at_most``.
        choose: Candidate policies such as 'fixed-width:learned' or 'adaptive:mlwr'. The one with
            the largest mean acceleration on three tenths of the units is calibrated on the other
            units, so its guarantee holds.
        certificate_alpha: Error rate of the certificate for the mean acceleration.
        task: Tasks whose goals must be reached; default: all.
        seed: Integer or Generator for a random choice of tuning units; default: evenly spaced.
        table_kwargs: With arrays, ``accelerations`` and other fields of a table.

    Example:
        >>> from taskuq.table._examples import SyntheticTable, synthetic_outputs
        >>> table = synthetic_outputs(SyntheticTable(volumes=30), seed=0)
        >>> policy = plan(table, alpha=0.1, max_width=0.2, unit="case")
        >>> decision = policy.decide(round=0, outputs=table.outputs[:1, 0])
        >>> round(float(decision.interval.width), 6)
        0.2
    """
    table = as_table(table, table_kwargs, "plan")
    table = table if task is None else table.select(task=task)
    goal = make_goals(max_width, at_least, at_most, side, table.task_names)
    spec = PolicySpec(policy, alpha, goal, score, statistic, budget, round_tolerance, given)
    require_targets(table)
    of = policy_unit(table, unit, cases)
    rng = None if seed is None else np.random.default_rng(seed)
    if choose is None:
        return _calibrate_policy(spec, table, of, delta, certificate_alpha, rng)

    def make(one: PolicySpec, part: TaskOutputs) -> Policy:
        # A comparison needs no guarantee: few units have none given the calibration set.
        return _calibrate_policy(replace(one, given=None), part, of, None, certificate_alpha, rng)

    best, held_out, record = _choose_policy(choose, spec, table, of, make, rng)
    table = table.select(cases=~held_out)
    made = _calibrate_policy(best, table, of, delta, certificate_alpha, rng)
    return replace(made, provenance={**made.provenance, "chosen": record})


def _calibrate_policy(
    spec: PolicySpec,
    table: TaskOutputs,
    unit: Unit,
    delta: float | None,
    certificate_alpha: float,
    rng: np.random.Generator | None,
) -> Policy:
    index, (x, z) = unit.index(table.cases, table.group), round_arrays(table)
    fit = fit_rules(spec, table, unit, index, delta, rng)
    kept = unit_index(fit.statistics.cases, index[~fit.held_out])
    guarantee = Guarantee(
        alpha=spec.alpha,
        **unit.record,
        delta=delta,
        n_cases=len(kept),
        n_groups=int(kept.max()) + 1 if unit.is_group else None,
        tasks=table.tasks,
        given=spec.given,
    )
    calibrator, accelerations = SetCalibrator(guarantee, unit, kept), table.accelerations
    thresholds = spec.thresholds(fit.statistics, calibrator, fit.tuning)
    certificate = make_certificate(
        fit.final, thresholds, calibrator, accelerations, certificate_alpha, fit.with_margin
    )
    if spec.given and certificate:
        plain = replace(spec, given=None).thresholds(fit.statistics, calibrator)
        price = make_certificate(
            fit.statistics, plain, calibrator, accelerations, certificate_alpha
        )
        certificate["mean_acceleration_without_given"] = price["mean_acceleration"]
    return Policy(
        kind=spec.kind,
        goal=spec.goal,
        accelerations=tuple(map(float, accelerations)),
        _rules=fit.rules,
        thresholds=tuple(map(float, thresholds)),
        guarantee=_explain_no_stop(calibrator, thresholds, accelerations),
        warning=_degenerate_warning(fit.final, calibrator, thresholds, guarantee._levels_text),
        samples=table.samples,
        whole_group=unit.stops_together,
        min_group_size=int(np.bincount(kept).min()) if unit.stops_together else None,
        task_ranges=table.task_ranges,
        task_names=table.task_names,
        round_names=table.round_names,
        certificate=certificate,
        provenance={
            "tuning_cases": int(fit.held_out.sum()),
            "statistic": spec.statistic,
            "budget": spec.budget,
            "identical_samples": int((x == x[:, :, :1]).all(axis=2).any(axis=(0, 2)).sum()),
            **_origin(table),
        },
        monitor_reference=monitor_statistics(x[0], index, table.task_names, z[0]),
    )


def _origin(table: TaskOutputs) -> dict[str, Any]:
    record = table.provenance.get("configuration")
    record = record if isinstance(record, Mapping) else {}
    stored, coils = record.get("fingerprints"), record.get("coils")
    # Lines that were chosen in the scan have a rule, known or not.
    fingerprints = {} if table.sampled_lines is None else {"rule": ""}
    fingerprints |= stored if isinstance(stored, Mapping) else {}
    origin: dict[str, Any] = {"fingerprints": fingerprints} if fingerprints else {}
    return origin | ({"coils": coils} if isinstance(coils, int) and coils > 0 else {})


def require_targets(table: TaskOutputs) -> None:
    if not table.has_targets:
        raise InputError("a policy needs a table with targets", code="targets.missing")


def policy_unit(table: TaskOutputs, unit: PolicyUnitName | None, cases: float | str) -> Unit:
    return as_unit(unit, cases, has_groups=table.group is not None, whole=True)


def _choose_policy(
    named: Sequence[PolicyName],
    default: PolicySpec,
    table: TaskOutputs,
    unit: Unit,
    make: Callable[[PolicySpec, TaskOutputs], Policy],
    rng: np.random.Generator | None,
) -> tuple[PolicySpec, BoolArray, dict[str, Any]]:
    """Return the policy with the largest acceleration on held-out units, and these units."""
    if isinstance(named, str | Mapping | PolicySpec) or not isinstance(named, Iterable):
        named = [named]
    specs = [parse_policy(one, default) for one in named]
    if not specs:
        raise InputError("choose is empty; pass e.g. 'fixed-width:spread'", code="option.missing")
    for spec in specs:
        if (spec.alpha, spec.goal) != (default.alpha, default.goal):
            raise InputError(
                f"{spec.name} has another alpha or goal than the plan", code="option.conflict"
            )
        if not spec.policy.is_guaranteed:
            raise InputError(
                f"{spec.name} has no guarantee; remove it from choose", code="option.conflict"
            )
    specs = [replace(spec, given=default.given) for spec in specs]
    if np.isnan(table.accelerations).any():
        raise InputError("choose needs a table with accelerations", code="rounds.invalid")
    index = unit.index(table.cases, table.group)
    units = int(index.max()) + 1
    take = tuning_count(units, CHOOSING_FRACTION, default.alpha)
    if take < 2:
        raise InputError(
            f"{units} {unit.counted}s are too few to choose on; plan one policy", code="units.few"
        )
    held_out = choose_units(index, take, rng)
    part, level = table.select(cases=held_out), default.alpha
    costs = [_cost(one, part, unit, make) for one in specs]
    while min(costs) == 1 and level < 0.5:
        level = min(0.5, 2 * level)
        costs = [_cost(replace(one, alpha=level), part, unit, make) for one in specs]
    accelerations: dict[str, float] = {}
    for name, cost in zip((spec.name for spec in specs), costs, strict=True):
        # User-defined scores may share a name.
        while name in accelerations:
            name += "'"
        accelerations[name] = 1 / cost
    best = specs[int(np.argmin(costs))]
    others = f"{take} other {unit.counted}s, which the guarantee does not use."
    record = {
        "policy": best.name,
        "sentence": f"{best.name} was chosen among {', '.join(accelerations)} on {others}",
        "mean_acceleration": accelerations,
        "units": take,
        "cases": int(held_out.sum()),
        "alpha": level,
    }
    return best, held_out, record


def _cost(
    spec: PolicySpec,
    table: TaskOutputs,
    unit: Unit,
    make: Callable[[PolicySpec, TaskOutputs], Policy],
) -> float:
    """Return the cross-validated mean sampled fraction of a policy."""
    index, (x, z) = unit.index(table.cases, table.group), round_arrays(table)
    units, total = int(index.max()) + 1, 0.0
    folds = min(FOLDS, units)
    for fold in range(folds):
        held = index % folds == fold
        policy = make(spec, table.select(cases=~held))
        statistics = stopping_statistics(policy._rules, x[:, held], z[:, held])
        number = unit_index(0, index[held])
        lowest, largest, weight = statistics.lowest, statistics.largest, unit.weights(number)
        if unit.stops_together:
            largest = statistics.allowance(number)
            lowest, weight = np.full(largest.shape, -np.inf), np.ones(largest.shape[1])
        cost = mean_cost(lowest, largest, table.accelerations, np.array(policy.thresholds), weight)
        total += cost * (number.max() + 1)
    return float(total / units)


def _explain_no_stop(
    calibrator: Calibrator, thresholds: FloatArray, accelerations: FloatArray
) -> Guarantee:
    guarantee, closed = calibrator.guarantee, np.isposinf(thresholds)
    if not closed.any():
        return guarantee
    # Scores of zero, all finite: if they have no finite quantile either, the units are too few.
    least = calibrator.quantiles(np.zeros((1, len(calibrator.index))))
    if np.isposinf(least).all():
        reason = guarantee._too_few_units()
    elif guarantee.given:
        reason = f"too few early stops, or too many missed, to certify {guarantee._levels_text}"
    else:
        reason = f"too many cases are missed at any threshold for {guarantee._levels_text}"
    rounds = ", ".join(f"{R:g}" for R in accelerations[closed])
    what = "every scan continues to the end" if closed.all() else f"no scan stops at R = {rounds}"
    return replace(guarantee, caveat=f"{reason}: {what}")


def _degenerate_warning(
    statistics: StoppingStatistics, calibrator: Calibrator, thresholds: FloatArray, allowed: str
) -> str | None:
    lowest, largest = statistics.lowest, statistics.largest
    if calibrator.unit.stops_together:
        largest = statistics.allowance(calibrator.index)
        lowest = np.full(largest.shape, -np.inf)
    level = np.asarray(thresholds)[:, None]
    stops = (lowest <= level) & (level < largest)
    if not stops.any():
        many = f"{stops.shape[1]} calibration {calibrator.unit.counted}s"
        return None if np.isposinf(thresholds).all() else f"No scan of the {many} stops early."
    if thresholds[0] > LEAST:
        return None
    return (
        f"The threshold is minus infinity: no more is missed without one than {allowed} allows, so "
        "every scan stops in the first round whose report can reach the goal "
        f"({stops[0].mean():.0%} of the calibration scans in round 0)."
    )


@final
class SetCalibrator(Calibrator):
    @property
    def units(self) -> int:
        return int(self.index.max()) + 1

    def quantiles(self, scores: FloatArray) -> FloatArray:
        return np.array([self.guarantee.quantile(row, self.index) for row in scores])

    def map_sets(self, function: Callable[[BoolArray], float]) -> FloatArray:
        return np.asarray(function(np.ones(self.units, dtype=bool)))

    def smallest(self, thresholds: FloatArray, losses: Losses) -> FloatArray:
        bets = self.guarantee.bets
        if bets is not None:
            return np.asarray(smallest_certified(thresholds, losses(thresholds), bets))
        return search_threshold(thresholds, losses, self.guarantee.allowed(self.units))
