"""Choosing a policy on units of its own, so that the promise of the chosen one holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from taskuq.calibration.scores import score_name
from taskuq.calibration.tuning import tuning_count
from taskuq.calibration.units import Unit, take_units, unit_index
from taskuq.decide.certificate import mean_cost
from taskuq.decide.kinds import POLICIES, PolicyPlan
from taskuq.decide.learning import round_arrays
from taskuq.decide.policy import Policy
from taskuq.decide.rules import examine
from taskuq.errors import InputError
from taskuq.outputs import TaskOutputs

# The share of units on which policies are compared, and into how many parts it is cut.
CHOOSING_SHARE = 0.3
FOLDS = 5

# What a policy may be named by: 'adaptive:mlwr', {'kind': 'adaptive', 'score': 'mlwr'}, or a plan.
Named: TypeAlias = str | Mapping[str, Any] | PolicyPlan
# What plans a policy on a table.
Make: TypeAlias = Callable[[PolicyPlan, TaskOutputs], Policy]


@dataclass(frozen=True)
class Choice:
    """The policy that was chosen, among what and on what.

    Arguments:
        best: What was chosen.
        among: The average acceleration of each policy by its name, the chosen one included.
        aside: The cases that the choice looked at (case,).
        units: The number of their units.
        counted: What these are: cases or groups.
        alpha: The error rate at which they were compared.
    """

    best: PolicyPlan
    among: Mapping[str, float]
    aside: np.ndarray
    units: int
    counted: str
    alpha: float

    @property
    def sentence(self) -> str:
        """What was chosen among what."""
        names = ", ".join(self.among)
        return (
            f"{plan_name(self.best)} was chosen among {names} on {self.units} other "
            f"{self.counted}s, which the promise does not rest on."
        )

    @property
    def record(self) -> dict[str, Any]:
        """What the policy's provenance says about it."""
        return {
            "policy": plan_name(self.best),
            "sentence": self.sentence,
            "mean_acceleration": dict(self.among),
            "units": self.units,
            "cases": int(self.aside.sum()),
            "alpha": self.alpha,
        }


def plan_name(plan: PolicyPlan) -> str:
    """Return the short name of a plan: its kind, and how it differs from others of its kind.

    Example:
        >>> from taskuq.decide.goal import Goal
        >>> plan_name(PolicyPlan("adaptive", 0.1, Goal(max_width=0.1), score="lwr"))
        'adaptive:lwr'
        >>> plan_name(PolicyPlan("fixed-width", 0.1, Goal(max_width=0.1), lateness=1.0))
        'fixed-width:spread:lateness=1'
    """
    first, *others = plan.policy.options
    said = [_word(getattr(plan, first))]
    for name in others:
        value = getattr(plan, name)
        if value != getattr(PolicyPlan, name):
            said.append(f"{name}={_word(value)}")
    return ":".join([plan.kind, *said])


def as_plan(named: Named, asked: PolicyPlan) -> PolicyPlan:
    """Return the plan that a name stands for; what it does not say is as asked.

    Arguments:
        named: A name such as 'fixed-width:learned:budget=0.5', some fields of a plan, or a plan.
        asked: What is asked of all of them: the error rate, the goal, and so on.

    Example:
        >>> from taskuq.decide.goal import Goal
        >>> asked = PolicyPlan("fixed-width", 0.1, Goal(max_width=0.1))
        >>> as_plan("fixed-width:learned:budget=0.5", asked).budget
        0.5
    """
    if isinstance(named, PolicyPlan):
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


def choose(
    named: Sequence[Named],
    asked: PolicyPlan,
    table: TaskOutputs,
    unit: Unit,
    make: Make,
    rng: np.random.Generator | None,
) -> Choice:
    """Set units aside and choose there the policy with the largest average acceleration.

    The units set aside are cut into parts; each policy is calibrated on all but one part and
    judged on that part, for every part. Where they are too few for the error rate, all are
    compared at a larger one: the choice needs no promise, only the chosen policy does, and that is
    calibrated on the other units.

    Arguments:
        named: The policies to choose among.
        asked: What is asked of all of them.
        table: All cases.
        unit: What is exchangeable, and so what is set aside.
        make: What calibrates a policy on some cases.
        rng: Picks the units at random; without it they are taken at even steps.
    """
    if isinstance(named, str | Mapping | PolicyPlan) or not isinstance(named, Iterable):
        named = [named]
    plans = [as_plan(one, asked) for one in named]
    if not plans:
        raise InputError("choose names no policy; name some, e.g. 'fixed-width:spread'")
    if idle := [plan_name(plan) for plan in plans if not plan.policy.is_guaranteed]:
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
    aside = take_units(index, take, rng)
    part, level = table.select(cases=aside), asked.alpha
    costs = [_cost(replace(one, alpha=level), part, unit, make) for one in plans]
    while min(costs) == 1 and level < 0.5:
        level = min(0.5, 2 * level)
        costs = [_cost(replace(one, alpha=level), part, unit, make) for one in plans]
    among: dict[str, float] = {}
    for one, cost in zip(plans, costs, strict=True):
        name = plan_name(one)
        # Scores of one's own may share a name.
        while name in among:
            name += "'"
        among[name] = 1 / cost
    return Choice(plans[int(np.argmin(costs))], among, aside, take, unit.counted, level)


def _cost(plan: PolicyPlan, table: TaskOutputs, unit: Unit, make: Make) -> float:
    """The mean share of measurements of cases that a policy was not calibrated on."""
    index = unit.index(table.cases, table.group)
    x, z = round_arrays(table)
    total = 0.0
    folds = min(FOLDS, int(index.max()) + 1)
    for fold in range(folds):
        held = index % folds == fold
        policy = make(plan, table.select(cases=~held))
        seen, number = examine(policy.rules, x[:, held], z[:, held]), unit_index(0, index[held])
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
