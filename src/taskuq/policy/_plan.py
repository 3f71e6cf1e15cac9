"""Calibration of a policy, and the choice among candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taskuq._arrays import align_cases, as_ids, encode_cases
from taskuq.conformal._calibrate import KINDS, tuning_count
from taskuq.conformal._family import SidePerTask
from taskuq.conformal._guarantee import (
    ConditionOn,
    DeltaScope,
    Guarantee,
    parse_condition_on,
    parse_delta_scope,
    too_few_within,
)
from taskuq.conformal._units import (
    PolicyUnitName,
    SiteUnit,
    Unit,
    as_generator,
    as_unit,
    choose_units,
    nested_ids,
    table_contents,
    unit_index,
)
from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray
from taskuq.policy._goal import make_goals
from taskuq.policy._kinds import POLICIES, Given, PolicyName, PolicySpec, Statistic, parse_policy
from taskuq.policy._learned import fit_rules, round_arrays
from taskuq.policy._policy import Policy, monitor_statistics
from taskuq.policy._rules import LEAST, StoppingStatistics, joint_report, stopping_statistics
from taskuq.policy._stopping import Calibrator, costs, make_certificate, mean_cost
from taskuq.protocols import Score
from taskuq.table._table import PerTask, TableFields, TableLike, TaskOutputs, as_table

# Fraction of units on which policies are compared, and the folds it is cut into.
CHOOSING_FRACTION, FOLDS = 0.3, 5
# Columns of a table that may name classes or strata.
COLUMNS = ("label", "group", "site")


def plan(
    table: TableLike,
    *,
    alpha: float,
    max_width: PerTask = None,
    at_least: PerTask = None,
    at_most: PerTask = None,
    policy: str = "fixed-width",
    score: str | Score | None = None,
    statistic: Statistic = "spread",
    budget: float = 1.0,
    round_tolerance: float = 0.25,
    unit: PolicyUnitName | None = None,
    cases: float | str = "random",
    delta: float | None = None,
    given: Given | None = None,
    label: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    condition_on: ConditionOn | None = None,
    delta_scope: DeltaScope | None = None,
    side: SidePerTask = None,
    choose: Sequence[PolicyName] | None = None,
    task: str | Sequence[str] | None = None,
    seed: int | np.random.Generator | None = None,
    **table_kwargs: Unpack[TableFields],
) -> Policy:
    r"""Calibrate a policy that stops scans early with guaranteed coverage of the target.

    ===============  ======================================================================
    ``fixed-width``  report an interval that just meets the goal (e.g. has width ``max_width``);
                     stop when the risk that it misses the target is small
    ``adaptive``     report the calibrated interval of ``score``; stop when it meets the goal
    ``anytime``      like ``adaptive``, but the intervals of all rounds are valid jointly, under
                     any stopping rule
    ``paper``        calibrate each round separately; coverage of the interval reported when a
                     scan stops is not guaranteed
    ===============  ======================================================================

    For the first two kinds, the threshold is the conformal quantile of the scores
    :math:`\Lambda_i`: the largest threshold at which the scan of calibration case :math:`i` stops
    early and reports an interval that misses its target. For a new scan with target :math:`z` that
    ends in round :math:`T` with the reported interval :math:`\mathcal C_T`,

    .. math:: \mathbb P\{z \in \mathcal C_T \text{ and the goal is reached}\} \ge 1 - \alpha

    ``max_width``, ``at_least``, ``at_most`` and ``side`` take one value for all tasks, a list with
    one value per task, or a dictionary by task name.

    Args:
        table: Task outputs of all rounds: a table, its path, or arrays (outputs, targets).
        alpha: Error rate in (0, 1).
        max_width: Goal: largest width of the interval, or distance of a bound from the estimate.
        at_least: Goal: the lower bound exceeds this level.
        at_most: Goal: the upper bound is below this level.
        policy: Kind of policy: one of the above, or the name of a kind that you registered.
        score: Score that defines the intervals, default 'mlwr'. For 'fixed-width', use
            ``statistic`` instead.
        statistic: For 'fixed-width', the estimate of the risk: 'spread' needs no tuning targets;
            'learned' is fitted to targets of held-out units and also corrects bias.
        budget: For 'fixed-width': fraction of alpha spent on stopping early. Below 1, the rest is
            spent on intervals narrower than ``max_width``, and scans tend to stop later.
        round_tolerance: For 'fixed-width': the risk at acceleration R is multiplied by
            R ** round_tolerance, so larger values make stops at high acceleration rarer.
        unit: Exchangeable unit: 'case'; 'group', to cover a random case of a new group;
            'whole-group', to stop all cases of a group together; or 'site', to cover a random case
            of a random group of a new site. Default: 'group' if the table has groups.
        cases: With groups, the cases of a new group that are covered: 'random' for one random
            case, 'all', or a number in (0, 1] for at least this fraction of its cases.
        delta: If given, coverage is at least 1 - alpha with probability 1 - delta over calibration
            sets; without it, coverage is at least 1 - alpha on average over calibration sets.
        given: 'early' guarantees coverage among the scans that stop before the full measurement;
            'round' among the scans that stop in each round, for all rounds jointly. Both need
            ``delta``. ``Policy.certificate`` then includes the mean acceleration without ``given``.
        label: Class of each case: an array, or the name of a column of the table such as 'label'.
            The guarantee holds within each class; the class of a new case need not be known.
        strata: Stratum of each case, known before its scan: an array or the name of a column. The
            guarantee holds within each stratum; pass the stratum of a new case to
            :meth:`Policy.decide`.
        condition_on: With groups and ``label`` or ``strata``: 'case' covers a random case of a new
            group, given its class or stratum. 'group' covers a random case among those of the
            class or stratum in a new group that has such cases. Default: 'case', but 'group' if
            whole groups stop or ``cases`` is 'all' or a fraction.
        delta_scope: With ``strata``: 'each' (default) if delta holds for each stratum separately,
            'all' if it holds for all strata jointly.
        side: 'two', 'upper' or 'lower'; default: 'lower' with ``at_least``, 'upper' with
            ``at_most``, else 'two'.
        choose: Candidate policies such as 'fixed-width:learned' or 'adaptive:mlwr'. They are
            compared on three tenths of the units. The one with the largest mean acceleration is
            calibrated on the other units, so its guarantee holds.
        task: Names of the tasks whose goals must be reached; default: all tasks.
        seed: Integer or Generator for the random choice of units to hold out, if any.
        table_kwargs: If ``table`` is arrays: ``accelerations`` and other fields of a table.

    Raises:
        InputError: If the table has no targets, no goal is given, or options conflict.

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
    if score is not None and choose is None and "score" not in POLICIES[policy].options:
        message = f"{policy!r} uses a statistic, not a score; remove score="
        raise InputError(message, code="option.unused")
    score = PolicySpec.score if score is None else score
    spec = PolicySpec(policy, alpha, goal, score, statistic, budget, round_tolerance, given)
    require_targets(table)
    of = policy_unit(table, unit, cases)
    setup = Setup(table, of, delta, policy_condition(table, of, label, strata))
    setup = setup.read_as(condition_on, delta_scope)
    rng = None if seed is None else as_generator(seed)
    if choose is None:
        return _calibrate_policy(spec, setup, rng)

    def make(one: PolicySpec, part: Setup) -> Policy:
        # A comparison needs no guarantee: few units have none given the calibration set.
        part = replace(part, delta=None, delta_scope=None)
        return _calibrate_policy(replace(one, given=None), part, rng)

    best, held_out, record = _choose_policy(choose, spec, setup, make, rng)
    made = _calibrate_policy(best, setup.select(~held_out), rng)
    return replace(made, provenance={**made.provenance, "chosen": record})


@dataclass(frozen=True)
class Setup:
    table: TaskOutputs
    unit: Unit
    delta: float | None
    # 'class' or 'stratum', and that of each case.
    condition: tuple[str, np.ndarray] | None = None
    condition_on: ConditionOn | None = None
    delta_scope: DeltaScope | None = None

    @property
    def index(self) -> NDArray[np.int64]:
        ids = self.table.group if self.sites is None else self.sites
        return self.unit.index(self.table.cases, ids)

    @property
    def sites(self) -> np.ndarray | None:
        """Ids of the site and group of each case; None unless sites are the units."""
        if not isinstance(self.unit, SiteUnit) or self.table.site is None:
            return None
        return nested_ids(self.table.site, self.table.group)

    @property
    def weights(self) -> FloatArray:
        """Weight of each case in a mean that counts every unit equally."""
        return self.unit.weights(self.index if self.sites is None else self.sites)

    def calibrator(
        self, guarantee: Guarantee, index: NDArray[np.int64], cases: np.ndarray
    ) -> Calibrator:
        sites = None if self.sites is None else self.sites[cases]
        return Calibrator(guarantee, self.unit, index, sites=sites)

    @property
    def within(self) -> np.ndarray | None:
        return None if self.condition is None else self.condition[1]

    @property
    def classes(self) -> np.ndarray | None:
        """Class of each case; None unless the guarantee holds within each class."""
        return self.within if self.condition and self.condition[0] == "class" else None

    def read_as(self, condition_on: str | None, delta_scope: str | None) -> Setup:
        kind = None if self.condition is None else self.condition[0]
        return replace(
            self,
            condition_on=parse_condition_on(condition_on, self.unit, kind),
            delta_scope=parse_delta_scope(delta_scope, self.delta, kind),
        )

    def select(self, cases: BoolArray) -> Setup:
        table, condition = self.table.select(cases=cases), self.condition
        part = None if condition is None else (condition[0], condition[1][cases])
        return replace(self, table=table, condition=part)

    def guarantee(self, spec: PolicySpec, kept: NDArray[np.int64], cases: BoolArray) -> Guarantee:
        within = self.within
        return Guarantee(
            alpha=spec.alpha,
            **self.unit.record,
            delta=self.delta,
            n_cases=len(kept),
            n_groups=int(kept.max()) + 1 if self.unit.is_group else None,
            tasks=self.table.tasks,
            given=spec.given,
            condition=None if self.condition is None else f"each {self.condition[0]}",
            condition_on=self.condition_on,
            delta_scope=self.delta_scope,
            strata=None if within is None else len(np.unique(within[cases])),
        )


def policy_condition(
    table: TaskOutputs, unit: Unit, label: Any, strata: Any
) -> tuple[str, np.ndarray] | None:
    """Return 'class' or 'stratum' with the class or stratum of each case; None without either."""
    given = {
        name: value for name, value in (("label", label), ("strata", strata)) if value is not None
    }
    if not given:
        return None
    if len(given) > 1:
        raise InputError("choose one of label and strata, got both", code="option.conflict")
    ((name, value),) = given.items()
    if isinstance(value, str):
        column = value
        if column not in COLUMNS or (value := getattr(table, column)) is None:
            columns = ", ".join(c for c in COLUMNS if getattr(table, c) is not None) or "none"
            message = f"{name}={column!r} is not a column of the table, which has {columns}"
            raise InputError(message, code="groups.missing")
    value = align_cases({"table": table, name: value})[name]
    values = as_ids(value, name, table.cases).astype(str)
    if name == "strata" and unit.stops_together:
        index = unit.index(table.cases, table.group)
        first = np.unique(index, return_index=True)[1]
        if (values != values[first][index]).any():
            message = "a whole group has one decision; all its cases must have the same stratum"
            raise InputError(message, code="option.conflict")
    return KINDS[name], values


def _calibrate_policy(spec: PolicySpec, setup: Setup, rng: np.random.Generator | None) -> Policy:
    table, unit, index = setup.table, setup.unit, setup.index
    x, z = round_arrays(table)
    fit = fit_rules(spec, table, unit, index, setup.delta, rng, setup.classes)
    kept, cases = unit_index(fit.statistics.cases, index[~fit.held_out]), ~fit.held_out
    guarantee = setup.guarantee(spec, kept, cases)
    calibrator, within = setup.calibrator(guarantee, kept, cases), setup.within
    accelerations = table.accelerations
    of_kept = None if within is None else within[cases]
    of_all = None if within is None else np.append(within[cases], within[fit.held_out])
    thresholds = spec.thresholds(fit.statistics, calibrator, fit.tuning, of_all)
    by_case = case_thresholds(thresholds, of_kept)
    part = table.select(cases=cases)
    certificate = make_certificate(fit.final, by_case, calibrator, accelerations, fit.with_margin)
    if certificate:
        certificate |= _by_class_and_site(fit.final, by_case, calibrator, part)
    if spec.given and certificate:
        plain = replace(spec, given=None).thresholds(fit.statistics, calibrator, within=of_kept)
        price = make_certificate(
            fit.statistics, case_thresholds(plain, of_kept), calibrator, accelerations
        )
        certificate["mean_acceleration_without_given"] = price["mean_acceleration"]
    by_stratum = {}
    if thresholds.ndim > 1:
        names = np.unique(of_kept).tolist()  # type: ignore[arg-type]  # strata have values
        by_stratum = {s: tuple(map(float, q)) for s, q in zip(names, thresholds.T, strict=True)}
    return Policy(
        kind=spec.kind,
        goal=spec.goal,
        accelerations=tuple(map(float, accelerations)),
        _rules=fit.rules,
        thresholds=tuple(map(float, thresholds.max(axis=1) if by_stratum else thresholds)),
        strata=by_stratum,
        guarantee=_explain_no_stop(calibrator, thresholds, accelerations, of_kept),
        warning=_degenerate_warning(fit.final, calibrator, by_case, guarantee._levels_text),
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
            "cases": encode_cases(x[0]),
            "identical_samples": int((x == x[:, :, :1]).all(axis=2).any(axis=(0, 2)).sum()),
            **_origin(table),
        },
        monitor_reference=monitor_statistics(x[0], index, table.task_names, z[0]),
    )


def case_thresholds(thresholds: FloatArray, within: np.ndarray | None) -> FloatArray:
    """Expand thresholds (round, stratum) to (round, case); thresholds (round,) stay unchanged."""
    if thresholds.ndim == 1 or within is None:
        return thresholds
    return np.asarray(thresholds[:, np.unique(within, return_inverse=True)[1]])


def _by_class_and_site(
    statistics: StoppingStatistics,
    thresholds: FloatArray,
    calibrator: Calibrator,
    table: TaskOutputs,
) -> dict[str, Any]:
    names = [("class", table.label), ("site", table.site)]
    if all(values is None for _, values in names):
        return {}
    n, q = statistics.cases, np.atleast_2d(thresholds.T).T
    stopped, hit = statistics.outcomes(q, calibrator.together)
    cost, weight, found = costs(table.accelerations)[stopped], calibrator.weights, {}
    # A full scan has no width; of several tasks, the widest.
    width = np.zeros(n)
    for k, level in enumerate(q):
        ends = joint_report(statistics.rounds[k], level if len(level) > 1 else level[0])
        width = np.where(stopped == k, np.reshape(ends.width, (n, -1)).max(axis=1), width)
    for kind, values in names:
        if values is None:
            continue
        found[f"by_{kind}"] = [
            {
                kind: str(name),
                "cases": int((values == name).sum()),
                "mean_acceleration": 1 / float(np.average(cost, weights=weight * (values == name))),
                "coverage": float(np.average(hit, weights=weight * (values == name))),
                "width": _mean(width, weight * (values == name) * (stopped < len(q))),
            }
            for name in np.unique(values)
        ]
    return found


def _mean(values: FloatArray, weights: FloatArray) -> float | None:
    used = weights > 0
    mean = float(np.average(values[used], weights=weights[used])) if used.any() else np.inf
    return mean if np.isfinite(mean) else None


def _origin(table: TaskOutputs) -> dict[str, Any]:
    record = table.provenance.get("configuration")
    record = record if isinstance(record, Mapping) else {}
    stored, geometry = record.get("fingerprints"), record.get("geometry")
    # Lines that were chosen in the scan have a rule, known or not.
    fingerprints = {} if table.sampled_lines is None else {"rule": ""}
    fingerprints |= stored if isinstance(stored, Mapping) else {}
    origin: dict[str, Any] = {"fingerprints": fingerprints} if fingerprints else {}
    return origin | ({"geometry": dict(geometry)} if isinstance(geometry, Mapping) else {})


def require_targets(table: TaskOutputs) -> None:
    if not table.has_targets:
        raise InputError("a policy needs a table with targets", code="targets.missing")


def policy_unit(table: TaskOutputs, unit: PolicyUnitName | None, cases: float | str) -> Unit:
    has_groups, has_sites = table.group is not None, table.site is not None
    return as_unit(unit, cases, has_groups=has_groups, whole=True, has_sites=has_sites)


def _choose_policy(
    named: Sequence[PolicyName],
    default: PolicySpec,
    setup: Setup,
    make: Callable[[PolicySpec, Setup], Policy],
    rng: np.random.Generator | None,
) -> tuple[PolicySpec, BoolArray, dict[str, Any]]:
    """Return the specification with the largest mean acceleration on held-out units.

    Also return a mask of the held-out cases and the results of the comparison.
    """
    if isinstance(named, str | Mapping | PolicySpec) or not isinstance(named, Iterable):
        named = [named]
    specs = [parse_policy(one, default) for one in named]
    if not specs:
        raise InputError("choose is empty; pass e.g. 'fixed-width:spread'", code="option.missing")
    for spec in specs:
        if (spec.alpha, spec.goal) != (default.alpha, default.goal):
            raise InputError(
                f"{spec.name} has a different alpha or goal from the plan", code="option.conflict"
            )
        if not spec.policy.is_guaranteed:
            raise InputError(
                f"{spec.name} has no guarantee; remove it from choose", code="option.conflict"
            )
    specs = [replace(spec, given=default.given) for spec in specs]
    table, unit, index = setup.table, setup.unit, setup.index
    if np.isnan(table.accelerations).any():
        raise InputError("choose needs a table with accelerations", code="rounds.invalid")
    units = int(index.max()) + 1
    take = tuning_count(units, CHOOSING_FRACTION, default.alpha)
    if take < 2:
        raise InputError(
            f"{units} {unit.counted}s are too few to choose on; plan one policy", code="units.few"
        )
    held_out = choose_units(index, take, rng, table_contents(table))
    part, level = setup.select(held_out), default.alpha
    each = [_cost(one, part, make) for one in specs]
    while min(each) == 1 and level < 0.5:
        level = min(0.5, 2 * level)
        each = [_cost(replace(one, alpha=level), part, make) for one in specs]
    accelerations: dict[str, float] = {}
    for name, cost in zip((spec.name for spec in specs), each, strict=True):
        # User-defined scores may share a name.
        while name in accelerations:
            name += "'"
        accelerations[name] = 1 / cost
    best = specs[int(np.argmin(each))]
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


def _cost(spec: PolicySpec, setup: Setup, make: Callable[[PolicySpec, Setup], Policy]) -> float:
    table, unit, index, (x, z) = setup.table, setup.unit, setup.index, round_arrays(setup.table)
    units, total = int(index.max()) + 1, 0.0
    folds = min(FOLDS, units)
    for fold in range(folds):
        held = index % folds == fold
        policy = make(spec, setup.select(~held))
        statistics = stopping_statistics(policy._rules, x[:, held], z[:, held])
        number, weight = unit_index(0, index[held]), setup.weights[held]
        together = number if unit.stops_together else None
        thresholds = np.array(policy.thresholds)
        if policy.strata and setup.within is not None:
            # No scan of a stratum that the other folds lack stops.
            never = (np.inf,) * len(thresholds)
            of_case = [policy.strata.get(s, never) for s in setup.within[held].tolist()]
            thresholds = np.array(of_case).T
        stops = statistics.stops(thresholds, together)
        cost = mean_cost(stops, table.accelerations, weight if together is None else None)
        total += cost * (number.max() + 1)
    return float(total / units)


def _explain_no_stop(
    calibrator: Calibrator,
    thresholds: FloatArray,
    accelerations: FloatArray,
    within: np.ndarray | None,
) -> Guarantee:
    guarantee, closed = calibrator.guarantee, np.isposinf(thresholds)
    if not closed.any():
        return guarantee
    if within is not None:
        group = calibrator.index if calibrator.unit.is_group else None
        reason = too_few_within(guarantee, group, within)
    else:
        # Scores of zero, all finite: if they have no finite quantile either, units are too few.
        least = calibrator.quantiles(np.zeros((1, len(calibrator.index))))
        reason = guarantee._too_few_units() if np.isposinf(least).all() else ""
    if not reason and guarantee.given:
        reason = f"too few early stops, or too many missed, to certify {guarantee._levels_text}"
    elif not reason:
        reason = f"too many cases are missed at every threshold for {guarantee._levels_text}"
    rounds = ", ".join(f"{R:g}" for R in accelerations[closed.reshape(len(closed), -1).any(axis=1)])
    what = "every scan continues to the end" if closed.all() else f"no scan stops at R = {rounds}"
    if closed.ndim > 1 and within is not None and not closed.all():
        names = ", ".join(np.unique(within)[closed.any(axis=0)])
        what = f"every scan of stratum {names} continues to the end"
    return replace(guarantee, caveat=f"{reason}: {what}")


def _degenerate_warning(
    statistics: StoppingStatistics, calibrator: Calibrator, thresholds: FloatArray, allowed: str
) -> str | None:
    stops = statistics.stops(thresholds, calibrator.together)
    if not stops.any():
        many = f"{stops.shape[1]} calibration {calibrator.unit.counted}s"
        return None if np.isposinf(thresholds).all() else f"No scan of the {many} stops early."
    if np.max(thresholds[0]) > LEAST:
        return None
    return (
        f"Misses stay within {allowed} even at a threshold of minus infinity: "
        "every scan stops in the first round whose interval can meet the goal "
        f"({stops[0].mean():.0%} of the calibration scans in round 0)."
    )
