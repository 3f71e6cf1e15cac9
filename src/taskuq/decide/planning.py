"""Planning: from a table of task outputs to a policy that knows its guarantee."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from taskuq.calibration.family import Side
from taskuq.calibration.groups import group_index
from taskuq.calibration.guarantee import Guarantee
from taskuq.calibration.rank import conformal_quantile, exact_level
from taskuq.calibration.scores import resolve_score
from taskuq.calibration.tuning import tuned_score, tuning_cases, tuning_count
from taskuq.calibration.units import PolicyUnitName, Unit, as_unit, take_units, unit_index
from taskuq.decide.certificate import certified_acceleration, mean_cost
from taskuq.decide.examine import Examination, examine
from taskuq.decide.goal import Goal
from taskuq.decide.opening import LEAST
from taskuq.decide.policy import KINDS, Kind, Policy
from taskuq.decide.rules import FamilyRule, Rule, WindowRule, spread_score
from taskuq.decide.stopping import stopping_score
from taskuq.decide.whole_group import group_allowance, whole_group_threshold
from taskuq.errors import InputError
from taskuq.interval import FloatArray
from taskuq.outputs import TaskOutputs
from taskuq.protocols import Score

Statistic = Literal["spread", "learned"]
NARROWING_TUNING_SHARE = 0.3


@dataclass(frozen=True)
class PolicyPlan:
    """What policy to plan; everything but the data.

    Arguments:
        kind: 'fixed-width', 'adaptive', 'anytime' or 'paper'.
        alpha: The error rate.
        goal: What the report has to achieve.
        score: For 'adaptive', 'anytime' and 'paper': the score of the nested intervals.
        statistic: For 'fixed-width': 'spread' or 'learned'.
        budget: For 'fixed-width': the share of the error rate spent on stopping early; the rest
            is spent on reports narrower than the window. 1 reports the window.
        lateness: The exponent of the acceleration in the risk statistic; larger values are more
            tolerant in later rounds.
    """

    kind: Kind
    alpha: float
    goal: Goal
    score: str | Score = "mlwr"
    statistic: Statistic = "spread"
    budget: float = 1.0
    lateness: float = 0.25

    def __post_init__(self) -> None:
        exact_level(self.alpha)
        if self.kind not in KINDS:
            raise InputError(f"unknown policy {self.kind!r}; choose one of {', '.join(KINDS)}")
        if self.statistic not in get_args(Statistic):
            raise InputError(f"statistic must be 'spread' or 'learned', got {self.statistic!r}")
        if not 0 < self.budget <= 1:
            raise InputError(f"budget must lie in (0, 1], got {self.budget}")
        if not -10 <= self.lateness <= 10:
            raise InputError(f"lateness must lie in [-10, 10], got {self.lateness}; 0.25 is usual")

    @property
    def base(self) -> Score:
        """The score behind the rules, before any tuning."""
        if self.kind != "fixed-width":
            return resolve_score(self.score, self.alpha, self.goal.side)
        if self.statistic == "learned":
            return resolve_score("learned", self.alpha, self.goal.side)
        return spread_score(self.goal.side)

    @property
    def narrows(self) -> bool:
        """Whether reports may be narrower than the window, which takes tuning with targets."""
        return self.kind == "fixed-width" and self.budget < 1


def plan(
    table: TaskOutputs,
    *,
    alpha: float,
    max_width: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    policy: Kind = "fixed-width",
    score: str | Score = "mlwr",
    statistic: Statistic = "spread",
    budget: float = 1.0,
    lateness: float = 0.25,
    unit: PolicyUnitName | None = None,
    cases: float | str = "random",
    delta: float | None = None,
    side: Side | None = None,
    certainty: float = 0.1,
    rng: np.random.Generator | None = None,
) -> Policy:
    r"""Plan when to stop scanning, with a guarantee for the interval reported at the stop.

    ===============  ======================================================================
    ``fixed-width``  report a window that achieves the goal, stop as soon as that is safe
    ``adaptive``     report the score's own interval, stop as soon as it achieves the goal
    ``anytime``      intervals that hold at all rounds at once, for any way of stopping
    ``paper``        each round calibrated by itself; no guarantee for the stopped report
    ===============  ======================================================================

    For the first two, :math:`\hat\lambda` is the conformal quantile of the stopping scores
    :math:`\Lambda_i` (:func:`~taskuq.decide.stopping.stopping_score`), so that

    .. math:: \mathbb P\{z \in \mathcal C_T \text{ and the goal is achieved}\} \ge 1 - \alpha

    Arguments:
        table: Task outputs of all rounds.
        alpha: The error rate.
        max_width: Stop when the interval is this narrow.
        at_least: Stop when a lower bound exceeds this level.
        at_most: Stop when an upper bound is below this level.
        policy: The kind of policy.
        score: The score of the nested intervals; fixed-width policies have a statistic instead.
        statistic: 'spread' needs no tuning targets, 'learned' also corrects the sampler's bias.
        budget: For fixed-width: below 1, trade acceleration for narrower reports.
        lateness: For fixed-width: how much more tolerant later rounds are.
        unit: 'case', 'group' (a random case of a new group), or 'whole-group' (one decision for
            all its cases); the group where the table has groups.
        cases: With groups: cover a 'random' case, 'all' cases, or a share of them.
        delta: Promise given the calibration set, for all but this share of such sets.
        side: 'two', 'upper' or 'lower'; follows from ``at_least`` and ``at_most``.
        certainty: The error rate of the certificate for the average acceleration.
        rng: Picks tuning cases at random; without it they are taken at even steps.

    Example:
        >>> from taskuq.outputs.synthetic import SyntheticScanner, synthetic_outputs
        >>> table = synthetic_outputs(SyntheticScanner(volumes=30), seed=0)
        >>> policy = plan(table, alpha=0.1, max_width=0.2, unit="case")
        >>> decision = policy.decide(round=0, outputs=table.outputs[:1, 0])
        >>> round(float(decision.interval.width), 6)
        0.2
    """
    goal = make_goal(max_width, at_least, at_most, side)
    spec = PolicyPlan(policy, alpha, goal, score, statistic, budget, lateness)
    if not table.has_targets:
        raise InputError("the table has no targets, so no policy can be planned on it")
    whom = policy_unit(table, unit, cases)
    group = whom.groups(table.group)
    x, z = round_arrays(table)
    aside = aside_cases(spec, x.shape[1], group, rng)
    rules = tuned_rules(spec, table, x[:, aside], z[:, aside], _take(table.group, aside))
    kept = ~aside
    seen = examine(rules, x[:, kept], z[:, kept])
    promise = Guarantee(
        alpha=alpha,
        **whom.record,
        delta=delta,
        n_cases=int(kept.sum()),
        n_groups=None if group is None else len(np.unique(group[kept])),
        tasks=table.tasks,
    )
    groups = _take(group, kept)
    whole = whom.stops_together
    if whole:
        require_whole_group(spec, seen)
    thresholds = calibrated_thresholds(spec, seen, promise, groups, whole_group=whole)
    return Policy(
        kind=policy,
        goal=goal,
        accelerations=tuple(map(float, table.accelerations)),
        rules=rules,
        thresholds=thresholds,
        guarantee=promise,
        samples=table.samples,
        whole_group=whole,
        task_range=table.task_range,
        task_names=table.task_names,
        certificate=_certificate(table, seen, thresholds, groups, certainty, whole, rules),
        provenance={"tuning_cases": int(aside.sum()), "statistic": statistic, "budget": budget},
    )


def policy_unit(table: TaskOutputs, unit: PolicyUnitName | None, cases: float | str) -> Unit:
    """Return what a policy for a table decides about and promises for."""
    missing = "unit {unit!r} needs a table with groups"
    return as_unit(unit, cases, has_groups=table.group is not None, whole=True, missing=missing)


def require_whole_group(spec: PolicyPlan, seen: Examination) -> None:
    """Refuse policies that cannot stop whole groups."""
    if spec.kind in ("anytime", "paper"):
        raise InputError(f"a {spec.kind} policy has no threshold for whole groups; use 'group'")
    if not _always_open(seen):
        raise InputError("intervals that can be empty (cqr) cannot stop whole groups; use mlwr")


def _always_open(seen: Examination) -> bool:
    """Whether no interval is empty at any threshold that can occur."""
    return bool(((seen.lowest == 0) | (seen.lowest <= LEAST)).all())


def make_goal(
    max_width: float | None, at_least: float | None, at_most: float | None, side: Side | None
) -> Goal:
    """Make the goal out of what was asked for."""
    if at_least is not None and at_most is not None:
        raise InputError("choose at_least or at_most, not both")
    if at_least is not None:
        return Goal(max_width=max_width, level=at_least, side="lower")
    if at_most is not None:
        return Goal(max_width=max_width, level=at_most, side="upper")
    return Goal(max_width=max_width, side=side or "two")


def round_arrays(table: TaskOutputs) -> tuple[FloatArray, FloatArray]:
    """Return outputs (round, case, sample, task) and targets (round, case, task) of a table."""
    x = table.outputs if table.outputs.ndim == 4 else table.outputs[..., None]
    z = table.targets if table.has_round_targets else table.targets[None]
    z = z if table.outputs.ndim == 4 else z[..., None]
    return x, np.broadcast_to(z, (x.shape[0], x.shape[1], x.shape[3]))


def aside_cases(
    spec: PolicyPlan, cases: int, group: np.ndarray | None, rng: np.random.Generator | None
) -> np.ndarray:
    """Return which cases are set aside for the rules to learn from."""
    index = unit_index(cases, group)
    aside = tuning_cases(spec.base, index, spec.alpha, rng)
    if spec.narrows and aside.mean() < NARROWING_TUNING_SHARE:
        take = tuning_count(int(index.max()) + 1, NARROWING_TUNING_SHARE, spec.alpha)
        aside = take_units(index, take, rng)
    return aside


def tuned_rules(
    spec: PolicyPlan,
    table: TaskOutputs,
    outputs: FloatArray,
    targets: FloatArray,
    group: np.ndarray | None,
) -> tuple[tuple[Rule, ...], ...]:
    """Return the rules of every round and task, tuned on the given cases.

    Arguments:
        spec: What to plan.
        table: The table the cases are from.
        outputs: Outputs of the tuning cases (round, case, sample, task).
        targets: Their targets (round, case, task).
        group: Their groups, if known.
    """
    rules = tuple(
        tuple(
            _rule(spec, table, k).with_score(
                tuned_score(
                    spec.base, outputs[: k + 1, ..., t], targets[k, :, t], table.task_range, group
                )
            )
            for t in range(outputs.shape[3])
        )
        for k in range(outputs.shape[0])
    )
    return _narrowed(spec, rules, outputs, targets) if spec.narrows else rules


def _rule(spec: PolicyPlan, table: TaskOutputs, k: int) -> Rule:
    if spec.kind != "fixed-width":
        return FamilyRule(spec.base, spec.goal, table.task_range)
    R = table.accelerations[k]
    weight = float(R**spec.lateness) if np.isfinite(R) else 1.0
    return WindowRule(spec.base, spec.goal, table.task_range, weight)


def _narrowed(
    spec: PolicyPlan,
    rules: tuple[tuple[Rule, ...], ...],
    outputs: FloatArray,
    targets: FloatArray,
) -> tuple[tuple[Rule, ...], ...]:
    """Let reports shrink: choose when to stop, and on what scale to shrink, on tuning cases."""
    seen = examine(rules, outputs, targets)
    Lambda = stopping_score(seen.lowest, seen.largest, seen.score)
    level = float(exact_level(spec.alpha)) * spec.budget
    t0 = -conformal_quantile(Lambda, level)
    if t0 == np.inf:
        # Hardly any window misses, so every risk seen is small enough.
        risks = -seen.largest[np.isfinite(seen.largest)]
        t0 = 2 * float(risks.max(initial=0.0))
    t0 = t0 if np.isfinite(t0) and t0 > 0 else float(np.median(-seen.largest[-1]))
    t0 = t0 if np.isfinite(t0) and t0 > 0 else 1.0
    # Any scale is valid; a large residual over predicted error makes the useful range about [0, 1].
    residuals = [
        e.family.score(targets[k, :, t])
        for k, of_round in enumerate(seen.rounds)
        for t, e in enumerate(of_round)
    ]
    finite = np.concatenate([r[np.isfinite(r)] for r in residuals])
    B = 2 * float(np.quantile(finite, 1 - level)) if finite.size else 1.0
    B = B if B > 0 else 1.0
    return tuple(
        tuple(replace(rule, narrowing=(t0, B)) for rule in of_round)  # type: ignore[type-var]  # a WindowRule
        for of_round in rules
    )


def calibrated_thresholds(
    spec: PolicyPlan,
    seen: Examination,
    promise: Guarantee,
    group: np.ndarray | None,
    *,
    whole_group: bool,
) -> tuple[float, ...]:
    """Return the threshold of each round."""
    rounds = len(seen.score)
    if spec.kind == "paper":
        return tuple(promise.quantile(seen.score[k], group) for k in range(rounds))
    if spec.kind == "anytime":
        return (promise.quantile(seen.score.max(axis=0), group),) * rounds
    if whole_group:
        assert group is not None
        index, _ = group_index(group)
        is_risk = spec.kind == "fixed-width" and not spec.narrows
        allowance = np.stack([group_allowance(a, index, is_risk) for a in seen.largest])
        threshold = whole_group_threshold(allowance, seen.score, group, promise)
        return (max(threshold, float(seen.lowest.max())),) * rounds
    Lambda = stopping_score(seen.lowest, seen.largest, seen.score)
    # A larger threshold keeps the promise too, and below every opening no case could stop.
    return (max(promise.quantile(Lambda, group), float(seen.lowest.min())),) * rounds


def _certificate(
    table: TaskOutputs,
    seen: Examination,
    thresholds: tuple[float, ...],
    group: np.ndarray | None,
    certainty: float,
    whole_group: bool,
    rules: tuple[tuple[Rule, ...], ...],
) -> dict[str, float]:
    exact_level(certainty, "certainty")
    if np.isnan(table.accelerations).any():
        return {}
    weight, units, lowest, largest = None, seen.largest.shape[1], seen.lowest, seen.largest
    if group is not None:
        index, sizes = group_index(group)
        weight, units = 1 / sizes[index], len(sizes)
        if whole_group:
            is_risk = isinstance(rules[0][0], WindowRule) and rules[0][0].narrowing is None
            largest = np.stack([group_allowance(a, index, is_risk) for a in seen.largest])
            lowest, weight = np.full(largest.shape, -np.inf), None
    cost = mean_cost(lowest, largest, table.accelerations, np.array(thresholds), weight)
    found = {"mean_acceleration": 1 / cost}
    # Going on is monotone in one threshold, which is what the certificate rests on.
    if len(set(thresholds)) == 1 and _always_open(seen):
        found["certified"] = certified_acceleration(
            cost, table.accelerations, units, certainty, groups=group is not None
        )
        found["delta"] = certainty
    return found


def _take(values: np.ndarray | None, kept: np.ndarray) -> np.ndarray | None:
    return None if values is None else values[kept]
