"""Planning a policy, choosing among policies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from taskuq.conformal._calibrate import tuning_count
from taskuq.conformal._guarantee import Guarantee
from taskuq.conformal._units import PolicyUnitName, Unit, as_unit, choose_units, unit_index
from taskuq.conformal.scores import score_name
from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray
from taskuq.policy._goal import make_goals
from taskuq.policy._kinds import POLICIES, Given, PolicySpec, Statistic
from taskuq.policy._learned import fit_rules, round_arrays
from taskuq.policy._policy import Policy, monitor_statistics
from taskuq.policy._rules import LEAST, StoppingStatistics, stopping_statistics
from taskuq.policy._stopping import (
    Calibrator,
    Losses,
    make_certificate,
    mean_cost,
    search_allowed,
    smallest_certified,
)
from taskuq.protocols import Score
from taskuq.table._table import TaskOutputs, as_table

# The share of units on which policies are compared, and into how many parts it is cut.
CHOOSING_SHARE = 0.3
FOLDS = 5

# What a policy may be named by: 'adaptive:mlwr', {'kind': 'adaptive', 'score': 'mlwr'}, or a plan.
Named: TypeAlias = str | Mapping[str, Any] | PolicySpec
# What plans a policy on a table.
Make: TypeAlias = Callable[[PolicySpec, TaskOutputs], Policy]


@dataclass(frozen=True)
class _PolicyChoice:
    """Chosen policy, its candidates and the units used."""

    best: PolicySpec
    among: Mapping[str, float]
    aside: np.ndarray
    units: int
    counted: str
    alpha: float

    @property
    def sentence(self) -> str:
        names = ", ".join(self.among)
        return (
            f"{_policy_name(self.best)} was chosen among {names} on {self.units} other "
            f"{self.counted}s, which the promise does not rest on."
        )

    @property
    def record(self) -> dict[str, Any]:
        return {
            "policy": _policy_name(self.best),
            "sentence": self.sentence,
            "mean_acceleration": dict(self.among),
            "units": self.units,
            "cases": int(self.aside.sum()),
            "alpha": self.alpha,
        }


def _policy_name(plan: PolicySpec) -> str:
    """Return the short name of a policy, e.g. fixed-width:spread."""
    first, *others = plan.policy.options
    said = [_word(getattr(plan, first))]
    for name in others:
        value = getattr(plan, name)
        if value != getattr(PolicySpec, name):
            said.append(f"{name}={_word(value)}")
    return ":".join([plan.kind, *said])


def _parse_policy(named: Named, asked: PolicySpec) -> PolicySpec:
    """Parse a policy name such as adaptive:mlwr."""
    if isinstance(named, PolicySpec):
        if (named.alpha, named.goal) != (asked.alpha, asked.goal):
            raise InputError(
                f"policies to choose among must have the alpha and the goal asked for "
                f"({asked.alpha:g}; {asked.goal.sentence}), got {named.alpha:g}; "
                f"{named.goal.sentence}"
            )
        return replace(named, given=asked.given)
    if isinstance(named, str):
        kind, *said = named.split(":")
        first = POLICIES[kind].options[0]
        pairs = [word.split("=", 1) if "=" in word else [first, word] for word in said]
        named = {"kind": kind, **dict(pairs)}
    if not isinstance(named, Mapping):
        raise InputError(f"a policy is named by a text such as 'adaptive:mlwr', got {named!r}")
    kind = named.get("kind", asked.kind)
    known = POLICIES[kind].options
    if unknown := sorted(set(named) - {"kind", *known}):
        raise InputError(f"a {kind} policy is named by {', '.join(known)}, got {unknown[0]!r}")
    values: dict[str, Any] = {
        name: _number(value, name) if name in ("budget", "lateness") else value
        for name, value in named.items()
    }
    return replace(asked, **values)


def _choose_policy(
    named: Sequence[Named],
    asked: PolicySpec,
    table: TaskOutputs,
    unit: Unit,
    make: Make,
    rng: np.random.Generator | None,
) -> _PolicyChoice:
    """Choose the policy with the largest acceleration on held-out units."""
    if isinstance(named, str | Mapping | PolicySpec) or not isinstance(named, Iterable):
        named = [named]
    plans = [_parse_policy(one, asked) for one in named]
    if not plans:
        raise InputError("choose names no policy; name some, e.g. 'fixed-width:spread'")
    if idle := [_policy_name(plan) for plan in plans if not plan.policy.is_guaranteed]:
        raise InputError(
            f"{', '.join(idle)} promises nothing for the report at the stop, so that choosing it "
            "would give the promise away; choose among the others"
        )
    if np.isnan(table.accelerations).any():
        raise InputError("policies are chosen by their acceleration, and the table has none")
    index = unit.index(table.cases, table.group)
    take = tuning_count(int(index.max()) + 1, CHOOSING_SHARE, asked.alpha)
    if take < 2:
        raise InputError(
            f"choosing needs at least 2 {unit.counted}s to compare policies on, got {take} of "
            f"{int(index.max()) + 1}; name one policy instead"
        )
    aside = choose_units(index, take, rng)
    part, level = table.select(cases=aside), asked.alpha
    costs = [_cost(replace(one, alpha=level), part, unit, make) for one in plans]
    while min(costs) == 1 and level < 0.5:
        level = min(0.5, 2 * level)
        costs = [_cost(replace(one, alpha=level), part, unit, make) for one in plans]
    among: dict[str, float] = {}
    for one, cost in zip(plans, costs, strict=True):
        name = _policy_name(one)
        # Scores of one's own may share a name.
        while name in among:
            name += "'"
        among[name] = 1 / cost
    return _PolicyChoice(plans[int(np.argmin(costs))], among, aside, take, unit.counted, level)


def _cost(plan: PolicySpec, table: TaskOutputs, unit: Unit, make: Make) -> float:
    """The mean share of measurements of cases that a policy was not calibrated on."""
    index = unit.index(table.cases, table.group)
    x, z = round_arrays(table)
    total = 0.0
    folds = min(FOLDS, int(index.max()) + 1)
    for fold in range(folds):
        held = index % folds == fold
        policy = make(plan, table.select(cases=~held))
        seen, number = (
            stopping_statistics(policy.rules, x[:, held], z[:, held]),
            unit_index(0, index[held]),
        )
        lowest, largest, weight = seen.lowest, seen.largest, unit.weights(number)
        if unit.stops_together:
            largest = seen.allowance(number)
            lowest, weight = np.full(largest.shape, -np.inf), np.ones(largest.shape[1])
        cost = mean_cost(lowest, largest, table.accelerations, np.array(policy.thresholds), weight)
        total += cost * (number.max() + 1)
    return float(total / (index.max() + 1))


def _word(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:g}" if isinstance(value, int | float) else score_name(value)


def _number(value: Any, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a number, got {value!r}") from None


GOES_ON = "every scan goes on to the end"


def _explain_no_stop(
    calibrator: Calibrator, thresholds: FloatArray, accelerations: FloatArray
) -> Guarantee:
    """Add the reason to a guarantee under which no scan may stop."""
    promise, closed = calibrator.promise, np.isposinf(thresholds)
    if not closed.any():
        return promise
    # Scores of zero, all finite: if they have no finite quantile either, the units are too few.
    least = calibrator.quantiles(np.zeros((1, len(calibrator.index))))
    if np.isposinf(least).all():
        reason = promise._too_few_units()
    elif promise.given:
        reason = (
            f"too few calibration scans stop early, or too many of those are missed, to certify "
            f"{promise._levels_text} among them"
        )
    else:
        reason = (
            f"too many calibration cases for {promise._levels_text} would be missed at any threshold "
            "(as where all samples agree and are wrong)"
        )
    rounds = ", ".join(f"{R:g}" for R in accelerations[closed])
    what = GOES_ON if closed.all() else f"no scan stops at R = {rounds}"
    return replace(promise, caveat=f"{reason}: {what}")


def _degenerate_warning(
    seen: StoppingStatistics, calibrator: Calibrator, thresholds: FloatArray, asked: str
) -> str | None:
    """Return a warning if no scan, or every scan, stops early."""
    lowest, largest = seen.lowest, seen.largest
    if calibrator.unit.stops_together:
        largest = seen.allowance(calibrator.index)
        lowest = np.full(largest.shape, -np.inf)
    level = np.asarray(thresholds)[:, None]
    stops = (lowest <= level) & (level < largest)
    if not stops.any():
        return None if np.isposinf(thresholds).all() else (
            f"No scan of the {stops.shape[1]} calibration {calibrator.unit.counted}s stops early."
        )  # fmt: skip
    if thresholds[0] > LEAST:
        return None
    easy = f"The threshold is minus infinity: no more is missed without one than {asked} allows"
    if stops[0].all():
        return f"{easy}, so every scan stops in the first round."
    return (
        f"{easy}, so every scan stops in the first round whose report can achieve the goal, "
        f"{stops[0].mean():.0%} of the calibration scans in the first of all."
    )


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
    lateness: float = 0.25,
    unit: PolicyUnitName | None = None,
    cases: float | str = "random",
    delta: float | None = None,
    given: Given | None = None,
    side: Any = None,
    choose: Sequence[Named] | None = None,
    certainty: float = 0.1,
    task: str | Sequence[str] | None = None,
    rng: np.random.Generator | None = None,
    **described: Any,
) -> Policy:
    r"""Calibrate when to stop scanning, with a guarantee at the stop.

    ===============  ======================================================================
    ``fixed-width``  report a window that achieves the goal, stop as soon as that is safe
    ``adaptive``     report the score's own interval, stop as soon as it achieves the goal
    ``anytime``      intervals that hold at all rounds at once, for any way of stopping
    ``paper``        each round calibrated by itself; no guarantee for the stopped report
    ===============  ======================================================================

    For the first two, :math:`\hat\lambda` is the conformal quantile of the stopping scores
    :math:`\Lambda_i` (:func:`~taskuq.policy._stopping.stopping_score`), so that

    .. math:: \mathbb P\{z \in \mathcal C_T \text{ and the goal is achieved}\} \ge 1 - \alpha

    Arguments:
        table: Task outputs of all rounds; or (outputs, targets) as arrays, with the accelerations
            and what else describes a table (:class:`~taskuq.TaskOutputs`) by name.
        alpha: The error rate.
        max_width: Stop when the interval is this narrow. This, the levels and the side are one
            for all tasks, or one for each, in order or by the tasks' names.
        at_least: Stop when a lower bound exceeds this level.
        at_most: Stop when an upper bound is below this level.
        policy: The kind of policy, one of these or your own.
        score: The score of the nested intervals; fixed-width policies have a statistic instead.
        statistic: 'spread' needs no tuning targets, 'learned' also corrects the sampler's bias.
        budget: For fixed-width: below 1, trade acceleration for narrower reports.
        lateness: For fixed-width: how much more tolerant later rounds are.
        unit: 'case', 'group' (a random case of a new group), or 'whole-group' (one decision for
            all its cases); the group where the table has groups.
        cases: With groups: cover a 'random' case, 'all' cases, or a share of them.
        delta: Promise given the calibration set, for all but this share of such sets.
        given: 'early' promises coverage among the scans that stop before everything is measured,
            which needs ``delta``; its price in acceleration is in the certificate.
        side: 'two', 'upper' or 'lower'; follows from ``at_least`` and ``at_most``.
        choose: Policies to choose among, such as 'fixed-width:learned' or 'adaptive:mlwr': the one
            with the largest average acceleration on three tenths of the units is planned on the
            others, and keeps its promise. What is not said in a name is as said here.
        certainty: The error rate of the certificate for the average acceleration.
        task: Which of several tasks have to be satisfied; all of them where None.
        rng: Picks tuning cases at random; without it they are taken at even steps.
        described: With arrays: ``accelerations``, ``group``, ``task_range`` and so on.

    Example:
        >>> from taskuq.table._examples import SyntheticTable, synthetic_outputs
        >>> table = synthetic_outputs(SyntheticTable(volumes=30), seed=0)
        >>> policy = plan(table, alpha=0.1, max_width=0.2, unit="case")
        >>> decision = policy.decide(round=0, outputs=table.outputs[:1, 0])
        >>> round(float(decision.interval.width), 6)
        0.2
    """
    table = as_table(table, described, "plan")
    table = table if task is None else table.select(task=task)
    goal = make_goals(max_width, at_least, at_most, side, table.task_names)
    spec = PolicySpec(policy, alpha, goal, score, statistic, budget, lateness, given)
    if not table.has_targets:
        raise InputError("the table has no targets, so no policy can be planned on it")
    whom = policy_unit(table, unit, cases)
    if choose is None:
        return _calibrate_policy(spec, table, whom, delta, certainty, rng)

    def make(one: PolicySpec, part: TaskOutputs) -> Policy:
        # What is compared needs no promise: few units keep none given the calibration set.
        return _calibrate_policy(replace(one, given=None), part, whom, None, certainty, rng)

    choice = _choose_policy(choose, spec, table, whom, make, rng)
    rest = table.select(cases=~choice.aside)
    made = _calibrate_policy(choice.best, rest, whom, delta, certainty, rng)
    return replace(made, provenance={**made.provenance, "chosen": choice.record})


def _calibrate_policy(
    spec: PolicySpec,
    table: TaskOutputs,
    whom: Unit,
    delta: float | None,
    certainty: float,
    rng: np.random.Generator | None,
) -> Policy:
    """Calibrate a policy specification on a table."""
    index = whom.index(table.cases, table.group)
    learnt = fit_rules(spec, table, whom, index, delta, rng)
    kept = unit_index(learnt.seen.cases, index[~learnt.aside])
    promise = Guarantee(
        alpha=spec.alpha,
        **whom.record,
        delta=delta,
        n_cases=len(kept),
        n_groups=int(kept.max()) + 1 if whom.is_group else None,
        tasks=table.tasks,
        given=spec.given,
    )
    calibrator = SingleSetCalibrator(promise, whom, kept)
    thresholds = spec.thresholds(learnt.seen, calibrator, learnt.tuning)
    return Policy(
        kind=spec.kind,
        goal=spec.goal,
        accelerations=tuple(map(float, table.accelerations)),
        rules=learnt.rules,
        thresholds=tuple(map(float, thresholds)),
        guarantee=_explain_no_stop(calibrator, thresholds, table.accelerations),
        outlook=_degenerate_warning(learnt.shown, calibrator, thresholds, promise._levels_text),
        samples=table.samples,
        whole_group=whom.stops_together,
        smallest_group=int(np.bincount(kept).min()) if whom.stops_together else None,
        task_ranges=table.task_ranges,
        task_names=table.task_names,
        round_names=table.round_names,
        certificate={
            **make_certificate(
                learnt.shown, thresholds, calibrator, table.accelerations, certainty, learnt.within
            ),
            **_price(spec, learnt.seen, calibrator, table.accelerations, certainty),
        },
        provenance={
            "tuning_cases": int(learnt.aside.sum()),
            "statistic": spec.statistic,
            "budget": spec.budget,
            "identical_samples": _identical_samples(table),
            **_made_from(table),
        },
        watch=_seen(table, index),
    )


def _seen(table: TaskOutputs, index: NDArray[np.int64]) -> dict[str, tuple[float, ...]]:
    x, z = round_arrays(table)
    return monitor_statistics(x[0], index, table.task_names, z[0])


def _made_from(table: TaskOutputs) -> dict[str, Any]:
    """Name the content of the files behind a table: data, masks, networks; where it says so."""
    configuration = table.provenance.get("configuration")
    found = configuration.get("fingerprints") if isinstance(configuration, Mapping) else None
    chosen = {} if table.lines is None else {"rule": ""}
    marks = {**chosen, **(found if isinstance(found, Mapping) else {})}
    coils = _coils(configuration)
    return ({"fingerprints": marks} if marks else {}) | ({"coils": coils} if coils else {})


def _coils(configuration: Any) -> int | None:
    data = configuration.get("data") if isinstance(configuration, Mapping) else None
    is_drawn = isinstance(data, Mapping) and data.get("kind") == "atlas"
    coils = data.get("coils") if is_drawn and isinstance(data, Mapping) else None
    return coils if isinstance(coils, int) and coils > 0 else None


def _identical_samples(table: TaskOutputs) -> int:
    """Return for how many cases all samples of some round and task are the same number."""
    x, _ = round_arrays(table)
    return int((x == x[:, :, :1]).all(axis=2).any(axis=(0, 2)).sum())


def _price(
    spec: PolicySpec,
    seen: StoppingStatistics,
    calibrator: Calibrator,
    accelerations: FloatArray,
    certainty: float,
) -> dict[str, float]:
    if not spec.given:
        return {}
    thresholds = replace(spec, given=None).thresholds(seen, calibrator)
    found = make_certificate(seen, thresholds, calibrator, accelerations, certainty)
    return {f"{name}_without_given": v for name, v in found.items() if name == "mean_acceleration"}


def policy_unit(table: TaskOutputs, unit: PolicyUnitName | None, cases: float | str) -> Unit:
    """Return what a policy for a table decides about and promises for."""
    return as_unit(unit, cases, has_groups=table.group is not None, whole=True)


@final
class SingleSetCalibrator(Calibrator):
    """Calibrate thresholds on one calibration set."""

    def quantiles(self, scores: FloatArray) -> FloatArray:
        """Return the quantile of each row of scores (row, case)."""
        return np.array([self.promise.quantile(row, self.index) for row in scores])

    @property
    def units(self) -> int:
        """The number of units."""
        return int(self.index.max()) + 1

    def found(self, find: Callable[[BoolArray], float]) -> FloatArray:
        """Return what is found among all units."""
        return np.asarray(find(np.ones(self.units, dtype=bool)))

    def smallest(self, thresholds: FloatArray, losses: Losses) -> FloatArray:
        """Return the smallest threshold at which the groups lose no more than is allowed."""
        if self.promise.bets is not None:
            return np.asarray(smallest_certified(thresholds, losses(thresholds), self.promise.bets))
        return search_allowed(thresholds, losses, self.promise.allowed(self.units))
