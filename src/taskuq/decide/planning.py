"""Planning: from a table of task outputs to a policy that knows its guarantee."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from taskuq.calibration.guarantee import Guarantee
from taskuq.calibration.units import PolicyUnitName, Unit, as_unit, unit_index
from taskuq.decide.certificate import make_certificate
from taskuq.decide.choosing import Named
from taskuq.decide.choosing import choose as choose_policy
from taskuq.decide.goal import make_goals
from taskuq.decide.kinds import Given, PolicyPlan, Statistic
from taskuq.decide.learning import learn, round_arrays
from taskuq.decide.outlook import outlook, with_shortage
from taskuq.decide.policy import Policy
from taskuq.decide.rules import Examination
from taskuq.decide.seen import statistics
from taskuq.decide.stopping import Calibrator, Losses, search_allowed, smallest_certified
from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray
from taskuq.outputs import TaskOutputs, as_table
from taskuq.protocols import Score


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
        >>> from taskuq.outputs.synthetic import SyntheticScanner, synthetic_outputs
        >>> table = synthetic_outputs(SyntheticScanner(volumes=30), seed=0)
        >>> policy = plan(table, alpha=0.1, max_width=0.2, unit="case")
        >>> decision = policy.decide(round=0, outputs=table.outputs[:1, 0])
        >>> round(float(decision.interval.width), 6)
        0.2
    """
    table = as_table(table, described, "plan")
    table = table if task is None else table.select(task=task)
    goal = make_goals(max_width, at_least, at_most, side, table.task_names)
    spec = PolicyPlan(policy, alpha, goal, score, statistic, budget, lateness, given)
    if not table.has_targets:
        raise InputError("the table has no targets, so no policy can be planned on it")
    whom = policy_unit(table, unit, cases)
    if choose is None:
        return planned(spec, table, whom, delta, certainty, rng)

    def make(one: PolicyPlan, part: TaskOutputs) -> Policy:
        # What is compared needs no promise: few units keep none given the calibration set.
        return planned(replace(one, given=None), part, whom, None, certainty, rng)

    choice = choose_policy(choose, spec, table, whom, make, rng)
    rest = table.select(cases=~choice.aside)
    made = planned(choice.best, rest, whom, delta, certainty, rng)
    return replace(made, provenance={**made.provenance, "chosen": choice.record})


def planned(
    spec: PolicyPlan,
    table: TaskOutputs,
    whom: Unit,
    delta: float | None,
    certainty: float,
    rng: np.random.Generator | None,
) -> Policy:
    """Return the policy that was asked for, calibrated on a table.

    Arguments:
        spec: What to plan.
        table: Task outputs of all rounds.
        whom: What is exchangeable, and which of its cases the promise covers.
        delta: For a promise given the calibration set.
        certainty: The error rate of the certificate.
        rng: Picks tuning units at random; without it they are taken at even steps.
    """
    index = whom.index(table.cases, table.group)
    learnt = learn(spec, table, whom, index, delta, rng)
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
    calibrator = OneSet(promise, whom, kept)
    thresholds = spec.thresholds(learnt.seen, calibrator, learnt.tuning)
    return Policy(
        kind=spec.kind,
        goal=spec.goal,
        accelerations=tuple(map(float, table.accelerations)),
        rules=learnt.rules,
        thresholds=tuple(map(float, thresholds)),
        guarantee=with_shortage(calibrator, thresholds, table.accelerations),
        outlook=outlook(learnt.shown, calibrator, thresholds, promise.asked),
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
            "identical_samples": identical_samples(table),
            **_made_from(table),
        },
        watch=_seen(table, index),
    )


def _seen(table: TaskOutputs, index: NDArray[np.int64]) -> dict[str, tuple[float, ...]]:
    """What was seen of all units of a table in the first round, those for tuning among them."""
    x, z = round_arrays(table)
    return statistics(x[0], index, table.task_names, z[0])


def _made_from(table: TaskOutputs) -> dict[str, Any]:
    """Name the content of the files behind a table: data, masks, networks; where it says so.

    Where a rule chose lines, that is known from the lines of the table too, if not which one did.
    """
    configuration = table.provenance.get("configuration")
    found = configuration.get("fingerprints") if isinstance(configuration, Mapping) else None
    chosen = {} if table.lines is None else {"rule": ""}
    marks = {**chosen, **(found if isinstance(found, Mapping) else {})}
    coils = _coils(configuration)
    return ({"fingerprints": marks} if marks else {}) | ({"coils": coils} if coils else {})


def _coils(configuration: Any) -> int | None:
    """How many coils saw the cases of a run, where its configuration decides that.

    Images of other readers may have coils of their own, whatever is asked for.
    """
    data = configuration.get("data") if isinstance(configuration, Mapping) else None
    is_drawn = isinstance(data, Mapping) and data.get("kind") == "atlas"
    coils = data.get("coils") if is_drawn and isinstance(data, Mapping) else None
    return coils if isinstance(coils, int) and coils > 0 else None


def identical_samples(table: TaskOutputs) -> int:
    """Return for how many cases all samples of some round and task are the same number."""
    x, _ = round_arrays(table)
    return int((x == x[:, :, :1]).all(axis=2).any(axis=(0, 2)).sum())


def _price(
    spec: PolicyPlan,
    seen: Examination,
    calibrator: Calibrator,
    accelerations: FloatArray,
    certainty: float,
) -> dict[str, float]:
    """What the same policy would do without a promise about early stops; nothing without one."""
    if not spec.given:
        return {}
    thresholds = replace(spec, given=None).thresholds(seen, calibrator)
    found = make_certificate(seen, thresholds, calibrator, accelerations, certainty)
    return {f"{name}_without_given": v for name, v in found.items() if name == "mean_acceleration"}


def policy_unit(table: TaskOutputs, unit: PolicyUnitName | None, cases: float | str) -> Unit:
    """Return what a policy for a table decides about and promises for."""
    missing = "unit {unit!r} needs a table with groups"
    return as_unit(unit, cases, has_groups=table.group is not None, whole=True, missing=missing)


@final
class OneSet(Calibrator):
    """Thresholds from one calibration set."""

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
