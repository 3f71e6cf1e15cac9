"""Claim about multi-round acquisition."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from taskuq.conformal._quantiles import min_calibration_size
from taskuq.conformal._units import Unit
from taskuq.experiments import _claims as claims
from taskuq.experiments._claims import ClaimInputs, ClaimSettings, Experiment, FindingWriter
from taskuq.policy._goal import Goal
from taskuq.policy._kinds import PolicySpec
from taskuq.policy._simulate import Simulation, simulate_plans
from taskuq.report._records import policy_name
from taskuq.report.figures import Figure, method_label, series_from_rows
from taskuq.report.figures._policy import acceleration_against_width, accepted
from taskuq.table._table import TaskOutputs

CLAIM = (
    "Scanning until the interval is narrow enough gives LWR and CQR a higher average acceleration "
    "than AR. We add: fixed-width stopping accelerates more than the better of the paper's two, "
    "and keeps coverage at 1 - alpha, which the paper's rule does not guarantee."
)
# Simulations by rule; and those for each error rate and width to stop at.
Rules = dict[str, Simulation]
Pair = tuple[float, float]
Simulated = dict[Pair, Rules]
PAPER = ("paper lwr", "paper cqr")
OURS = "fixed-width spread"
COLUMNS = (
    "alpha", "max width", "policy", "guarantee", "average R", "± R", "coverage", "± coverage",
    "coverage of early stops", "early", "width", "max centre error", "ratio to the paper's better",
)  # fmt: skip


def _multi_round(inputs: ClaimInputs, settings: ClaimSettings) -> dict[str, Any]:
    account = FindingWriter(
        "multi-round", "Multi-round scans", CLAIM,
        "LWR and CQR are faster than AR; fixed-width stopping is faster than both and covers 1 − α "
        "at every setting.",
        rows_are="α, τ",
    )  # fmt: skip
    ratios: list[float] = []
    short: list[str] = []
    units = claims.units(inputs)
    for unit in units if settings.stops_by_case else units[-1:]:
        found = {goal: _replay(inputs, settings, goal, unit) for goal in settings.goals}
        account.figures.append(_overview(found, unit))
        if unit == units[-1]:
            account.figures += [_accepted(rules, unit, *goal) for goal, rules in found.items()]
        account.tables += [_table(found, unit), _stops(found, unit)]
        possible = _possible(found, unit, account)
        if possible:
            account.find(unit, *_compared(possible))
            ratios += [_ratio(rules) for rules in possible.values()]
            short += [f"{rule} by {unit.counted}" for rule in _short(possible)]
    account.figures.append(_acceleration_width_curve(inputs, settings, units[-1], found))
    times = f"{claims.format_range(ratios)} times"
    return account.record(
        settings.used("goals", "widths", "alpha", "seed")
        | {"trials": settings.replays, "table": repr(inputs.table), "point": repr(inputs.point)},
        f"fixed-width stopping reaches {times} the average acceleration of the better of the "
        "paper's LWR and CQR"
        if ratios
        else None,
        f"{times} the paper's R̄" if ratios else None,
        note="R̄ of fixed-width stopping and of the better of the paper's two rules, and coverage "
        f"of fixed-width stopping. AR uses {claims.point_source(inputs)}. The paper's rules with "
        f"coverage below 1 − α by more than the error of random splits: {claims.listing(short)}.",
    )


def _replay(inputs: ClaimInputs, settings: ClaimSettings, goal: Pair, unit: Unit) -> Rules:
    alpha, target = goal[0], Goal(max_width=goal[1])
    plans = [
        PolicySpec("paper", alpha, target, score="lwr"),
        PolicySpec("paper", alpha, target, score="cqr"),
        PolicySpec("fixed-width", alpha, target, statistic="spread"),
    ]
    if claims.has_tuning_cases(inputs, unit, [alpha]):
        plans.append(PolicySpec("fixed-width", alpha, target, statistic="learned"))
    plans += [
        PolicySpec("adaptive", alpha, target, score="mlwr"),
        PolicySpec("anytime", alpha, target, score="mlwr"),
    ]
    residual = PolicySpec("paper", alpha, target, score="ar")
    results = _simulated(claims.table_for_score(inputs, "ar"), [residual], settings, unit.name)
    # One number for one quantity: the run's own simulation, with more splits, takes precedence.
    known = {
        (r.policy, r.statistic or r.score): r
        for r in inputs.simulated
        if (r.alpha, r.unit, inputs.simulated_width) == (alpha, unit.name, goal[1])
    }
    own = [known.get((p.kind, getattr(p, p.policy.options[0]))) for p in plans]
    missing = [p for p, r in zip(plans, own, strict=True) if r is None]
    others = iter(_simulated(inputs.table, missing, settings, unit.name))
    results += [next(others) if r is None else r for r in own]
    return {policy_name(r.to_dict()): r for r in results}


def _simulated(
    table: TaskOutputs,
    plans: Sequence[PolicySpec],
    settings: ClaimSettings,
    unit: Any,
    errors: bool = True,
) -> list[Simulation]:
    # The same splits for every policy and goal.
    return simulate_plans(
        table, plans, splits=settings.replays, seed=settings.seed, unit=unit, errors=errors
    )


def _better(rules: Rules) -> float:
    return max(rules[name].mean_acceleration for name in PAPER)


def _first(found: Simulated) -> Simulation:
    return next(iter(next(iter(found.values())).values()))


def _table(found: Simulated, unit: Unit) -> dict[str, Any]:
    first = _first(found)
    return {
        "name": f"by-{unit.counted}",
        "caption": f"Stopping rules over {first.splits} random splits by {unit.counted}: "
        f"{first.n_calibration} to calibrate, {first.n_test} to test; means are for "
        f"{first.mean_over}. ± is one standard error over groups, calibration included. Policies "
        "that the run simulated itself have its numbers. Coverage is guaranteed where marked.",
        "columns": list(COLUMNS),
        "rows": [
            [
                alpha, width, name, "guaranteed" if r.guaranteed else "none",
                r.mean_acceleration, r.standard_errors["mean_acceleration"], r.coverage,
                r.standard_errors["coverage"], r.coverage_early, r.early_fraction, r.width,
                r.max_center_error, r.mean_acceleration / _better(rules),
            ]
            for (alpha, width), rules in found.items()
            for name, r in rules.items()
        ],
    }  # fmt: skip


def _stops(found: Simulated, unit: Unit) -> dict[str, Any]:
    rates = [s.acceleration for s in _first(found).stops]
    return {
        "name": f"accepted-by-{unit.counted}",
        "caption": f"Share of cases accepted after each acceleration, splits by {unit.counted}; "
        "R = 1 is a full scan.",
        "columns": ["alpha", "max width", "policy", *(f"R = {R:g}" for R in rates)],
        "rows": [
            # Point estimates may lack a round.
            [alpha, width, name, *map(_shares(r).get, rates)]
            for (alpha, width), rules in found.items()
            for name, r in rules.items()
        ],
    }


def _shares(result: Simulation) -> dict[float, float]:
    return {s.acceleration: max(0.0, s.fraction) for s in result.stops}


def _overview(found: Simulated, unit: Unit) -> Figure:
    points = [
        (name, f"α {alpha:g}\nτ {width:g}", r.mean_acceleration)
        for (alpha, width), rules in found.items()
        for name, r in rules.items()
    ]
    return Figure(
        name=f"average-acceleration-by-{unit.counted}",
        caption=f"Average acceleration of each stopping rule, splits by {unit.counted}. The "
        "paper's rules have no guarantee at the stop.",
        title=_fastest(found),
        x_label="error rate α, width to stop at τ",
        y_label="average acceleration",
        x_scale="category",
        series=series_from_rows(
            points, lambda p: p[0], lambda p: p[1], lambda p: p[2], style="points"
        ),
    )


def _fastest(found: Simulated) -> str:
    wins = Counter(max(rules, key=lambda n: rules[n].mean_acceleration) for rules in found.values())
    ((name, count),) = wins.most_common(1)
    called = method_label(name)
    return f"{called[:1].upper()}{called[1:]} is fastest at {count} of {len(found)} settings"


def _accepted(rules: Rules, unit: Unit, alpha: float, width: float) -> Figure:
    return replace(
        accepted({name: r.to_dict()["stops"] for name, r in rules.items()}),
        name=f"accepted-alpha-{alpha:g}-width-{width:g}",
        caption="Fraction of slices accepted after each acceleration, splits by "
        f"{unit.counted}, error rate {alpha:g}, width below {width:g}; R = 1 is a full scan.",
    )


def _acceleration_width_curve(
    inputs: ClaimInputs, settings: ClaimSettings, unit: Unit, simulated: Simulated
) -> Figure:
    points = []
    for width in settings.widths:
        goal = Goal(max_width=width)
        plans = {
            "paper lwr": PolicySpec("paper", settings.alpha, goal, score="lwr"),
            "paper cqr": PolicySpec("paper", settings.alpha, goal, score="cqr"),
            "adaptive mlwr": PolicySpec("adaptive", settings.alpha, goal, score="mlwr"),
            f"{OURS} 0.5": PolicySpec("fixed-width", settings.alpha, goal, budget=0.5),
            OURS: PolicySpec("fixed-width", settings.alpha, goal),
        }
        rules = dict(simulated.get((settings.alpha, width), {}))
        missing = {name: spec for name, spec in plans.items() if name not in rules}
        found = _simulated(inputs.table, list(missing.values()), settings, unit.name, errors=False)
        rules |= zip(missing, found, strict=True)
        points += [(name, rules[name].width, rules[name].mean_acceleration) for name in plans]
    return replace(
        acceleration_against_width(points, "line"),
        caption="Average acceleration against the mean width of early reports, splits by "
        f"{unit.counted}, one point for each width to stop at "
        f"({', '.join(f'{w:g}' for w in settings.widths)}), error rate "
        f"{settings.alpha:g}: up and to the left is better. 0.5 is half of the error budget; "
        "the paper's rules have no guarantee.",
    )


def _possible(found: Simulated, unit: Unit, account: FindingWriter) -> Simulated:
    """Return the settings with a feasible error rate; add a reason for each of the others."""
    n = _first(found).n_calibration
    left_out = dict.fromkeys(f"{alpha:g}" for alpha, _ in found if n < min_calibration_size(alpha))
    if left_out:
        account.lack(
            unit,
            f"an error rate of {claims.listing(left_out)} cannot be guaranteed from {n} "
            f"{unit.counted}s, so every scan is measured in full",
        )
    return {goal: rules for goal, rules in found.items() if n >= min_calibration_size(goal[0])}


def _ratio(rules: Rules) -> float:
    return rules[OURS].mean_acceleration / _better(rules)


def _compared(found: Simulated) -> tuple[dict[str, dict[str, float]], dict[str, bool]]:
    """Compare fixed-width with the paper's rules at each setting; return the claim's parts too."""
    fastest = _first(found).stops[0].acceleration
    compared, parts, adaptive = {}, {}, []
    for (alpha, width), rules in found.items():
        at, ours = f"α {alpha:g}, τ {width:g}", rules[OURS]
        compared[f"{alpha:g}, {width:g}"] = {
            "R̄": ours.mean_acceleration,
            "paper's R̄": _better(rules),
            "coverage": ours.coverage,
        }
        residual = rules["paper ar"].mean_acceleration
        adaptive += [rules[name].mean_acceleration > residual for name in PAPER]
        # No rule is faster than one that stops every scan after the first round.
        parts[f"fixed-width is faster at {at}"] = (
            _ratio(rules) > 1 or ours.mean_acceleration >= fastest - 1e-9
        )
        parts[f"fixed-width covers 1 − α at {at}"] = not _is_short(ours)
    return compared, {"LWR and CQR are faster than AR": all(adaptive)} | parts


def _short(found: Simulated) -> list[str]:
    """Return the paper's rules whose coverage is below its target."""
    return [
        f"{name.split()[1].upper()} at α {alpha:g}, τ {width:g}"
        for (alpha, width), rules in found.items()
        for name in PAPER
        if _is_short(rules[name])
    ]


def _is_short(result: Simulation) -> bool:
    """Return True if mean coverage is more than three standard errors below its target."""
    error = result.sd["coverage"] / math.sqrt(result.splits)
    return result.coverage + 3 * error < 1 - result.alpha


EXPERIMENT = Experiment(_multi_round, ("samples", "rounds", "several samples"), "when scans stop")
