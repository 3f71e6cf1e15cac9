"""Claims about multi-round acquisition."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from taskuq.conformal._family import clipped, interval_family
from taskuq.conformal._quantiles import conformal_quantile, min_calibration_size
from taskuq.conformal._splits import center_distance
from taskuq.conformal._units import Unit
from taskuq.conformal.scores import resolve_score
from taskuq.experiments import _claims as claims
from taskuq.experiments._claims import ClaimInputs, ClaimSettings, Experiment, FindingWriter
from taskuq.interval import BoolArray, FloatArray
from taskuq.policy._goal import Goal
from taskuq.policy._kinds import PolicySpec
from taskuq.policy._simulate import Simulation, simulate_plans
from taskuq.protocols import IntervalFamily
from taskuq.report._records import SUPPORTED, experiment_record, policy_name
from taskuq.report.figures import Figure, method_label, series_from_rows
from taskuq.report.figures._policy import acceleration_against_width, accepted
from taskuq.table._table import TaskOutputs

MULTI_CLAIM = (
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
        "multi-round", "Multi-round scans", MULTI_CLAIM,
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
            short += [
                f"{name.split()[1].upper()} at α {alpha:g}, τ {width:g} by {unit.counted}"
                for (alpha, width), rules in possible.items()
                for name in PAPER
                if _is_short(rules[name])
            ]
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
            [alpha, width, name, *map(shares.get, rates)]
            for (alpha, width), rules in found.items()
            for name, r in rules.items()
            for shares in [{s.acceleration: max(0.0, s.fraction) for s in r.stops}]
        ],
    }


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
        caption="Average acceleration against the mean width of early stops, splits by "
        f"{unit.counted}, one point for each width to stop at "
        f"({', '.join(f'{w:g}' for w in settings.widths)}), error rate "
        f"{settings.alpha:g}: up and to the left is better. 0.5 is half of the error budget; "
        "the paper's rules have no guarantee.",
    )


def _possible(found: Simulated, unit: Unit, account: FindingWriter) -> Simulated:
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


def _is_short(result: Simulation) -> bool:
    """Return True if mean coverage is more than three standard errors below its target."""
    error = result.sd["coverage"] / math.sqrt(result.splits)
    return result.coverage + 3 * error < 1 - result.alpha


MULTI_ROUND = Experiment(
    _multi_round, ("samples", "rounds", "several samples"), "stopping rules of multi-round scans"
)


PROTOCOL_CLAIM = (
    "With a few whole volumes to test on and all slices of the others to calibrate, LWR and CQR "
    "reach a higher average acceleration than AR, coverage stays close to 1 - alpha, and the "
    "average maximum centre error of LWR is below that of AR."
)


@dataclass(frozen=True)
class _ProtocolDraw:
    acceleration: float
    coverage: float
    center_error: float
    stopped: FloatArray


def _paper_protocol(inputs: ClaimInputs, settings: ClaimSettings) -> dict[str, Any]:
    alpha, max_width = settings.goals[0]
    table = inputs.table
    groups = np.unique(np.asarray(table.group))
    count = min(settings.test_groups, len(groups) // 3)
    tests = list(_draws(table, count, settings))
    found = {}
    for name in settings.scores:
        source = claims.table_for_score(inputs, name)
        families = _families(source, name, alpha)
        found[name] = [_scan(source, families, is_test, alpha, max_width) for is_test in tests]
    outcome = _protocol_finding(found, alpha)
    return experiment_record(
        "paper-protocol",
        "The paper's multi-round protocol",
        PROTOCOL_CLAIM,
        str(outcome.pop("finding")),
        settings.used("goals", "scores", "test_groups", "seed")
        | {"draws": settings.draws, "alpha": alpha, "max_width": max_width,
           "table": repr(table), "point": repr(inputs.point)},
        [_protocol_stops(found, table, alpha, max_width)],
        [_protocol_table(found, alpha, max_width, count, inputs)],
        **outcome,
    )  # fmt: skip


def _draws(table: TaskOutputs, count: int, settings: ClaimSettings) -> Iterator[BoolArray]:
    group = np.asarray(table.group)
    groups = np.unique(group)
    rng = np.random.default_rng(settings.seed)
    positive = np.zeros(len(groups), dtype=bool)
    if table.label is not None and len(np.unique(table.label)) == 2:
        ill = group[table.label == np.unique(table.label)[1]]
        positive = np.isin(groups, ill)
    for _ in range(settings.draws):
        half = min(count // 2, int(positive.sum()), count)
        rest = count - half
        if half and (~positive).sum() >= rest:
            parts = (groups[positive], half), (groups[~positive], rest)
            chosen = np.concatenate([rng.choice(of, k, replace=False) for of, k in parts])
        else:
            chosen = rng.choice(groups, count, replace=False)
        yield np.isin(group, chosen)


def _families(
    table: TaskOutputs, name: str, alpha: float
) -> list[tuple[IntervalFamily, FloatArray]]:
    score = resolve_score(name, alpha)
    families = [interval_family(score, np.asarray(outputs)) for outputs in table.outputs]
    return [(family, family.score(table.targets_at(k))) for k, family in enumerate(families)]


def _scan(
    table: TaskOutputs,
    families: list[tuple[IntervalFamily, FloatArray]],
    is_test: BoolArray,
    alpha: float,
    max_width: float,
) -> _ProtocolDraw:
    test = np.flatnonzero(is_test)
    group = np.unique(np.asarray(table.group)[test], return_inverse=True)[1]
    scanning = np.ones(len(test), dtype=bool)
    covered = np.ones(len(test), dtype=bool)
    cost, worst = np.ones(len(test)), np.full(len(test), -np.inf)
    stopped = np.zeros(table.rounds + 1)
    for k, (family, scores) in enumerate(families):
        quantile = conformal_quantile(scores[~is_test], alpha)
        interval = clipped(family.select(test).interval(quantile), table.task_range)
        stops = scanning & (interval.width < max_width) & ~interval.is_empty
        targets = table.targets_at(k)[test]
        covered[stops] = interval.contains(targets)[stops]
        worst[stops] = center_distance(interval, targets, table.task_range)[stops]
        cost[stops] = 1 / table.accelerations[k]
        stopped[k] = stops.mean()
        scanning &= ~stops
    stopped[-1] = scanning.mean()
    sizes = np.bincount(group)
    largest = np.full(len(sizes), -np.inf)
    np.maximum.at(largest, group, worst)
    early = np.isfinite(largest)
    return _ProtocolDraw(
        acceleration=float(1 / cost.mean()),
        coverage=float((np.bincount(group, covered) / sizes).mean()),
        center_error=float(largest[early].mean()) if early.any() else float("nan"),
        stopped=stopped,
    )


Draws = dict[str, list[_ProtocolDraw]]


def _summary(draws: list[_ProtocolDraw], name: str) -> tuple[float, float]:
    values = np.array([getattr(one, name) for one in draws])
    known = values[~np.isnan(values)]
    return (float(known.mean()), float(known.std())) if known.size else (np.nan, np.nan)


def _protocol_table(
    found: Draws, alpha: float, width: float, count: int, inputs: ClaimInputs
) -> dict[str, Any]:
    draws, groups = len(next(iter(found.values()))), len(np.unique(np.asarray(inputs.table.group)))
    return {
        "name": "protocol",
        "caption": f"Error rate {alpha:g}, stop below width {width:g}: {groups - count} groups to "
        f"calibrate, {count} to test, mean over {draws} draws; sd is that of a single draw such as "
        f"the paper's. AR uses {claims.point_source(inputs)}. No guarantee.",
        "columns": [
            "score", "average R", "sd R", "coverage", "sd coverage", "max centre error",
            "sd max centre error",
        ],
        "rows": [
            [name, *(v for what in ("acceleration", "coverage", "center_error")
                     for v in _summary(drawn, what))]
            for name, drawn in found.items()
        ],
    }  # fmt: skip


def _protocol_stops(found: Draws, table: TaskOutputs, alpha: float, width: float) -> Figure:
    rates = (*table.accelerations, 1.0)
    stops = {
        name: [
            {"acceleration": R, "fraction": float(v)}
            for R, v in zip(rates, np.mean([one.stopped for one in drawn], axis=0), strict=True)
        ]
        for name, drawn in found.items()
    }
    return replace(
        accepted(stops),
        name="accepted",
        caption=f"Fraction of slices accepted after each acceleration, error rate {alpha:g}, width "
        f"below {width:g}; R = 1 is a full scan.",
    )


def _protocol_finding(found: Draws, alpha: float) -> dict[str, str | None]:
    mean = {
        what: {name: _summary(drawn, what) for name, drawn in found.items()}
        for what in ("acceleration", "coverage", "center_error")
    }
    if all(drawn.acceleration == 1 for of in found.values() for drawn in of):
        never = (
            f"no interval is ever narrow enough at an error rate of {alpha:g}, or there are too "
            "few cases to calibrate it, so every scan is measured in full"
        )
        return {
            "verdict": claims.verdict([]),
            "finding": claims.finding(claims.verdict([]), None, never),
        }
    # Close: within two standard deviations of a single draw, as the paper's single draw could be.
    coverage = mean["coverage"].values()
    close = f"coverage stays close to {1 - alpha:g}"
    parts = {close: all(abs(m - (1 - alpha)) <= 2 * s for m, s in coverage)}
    R, error = mean["acceleration"], mean["center_error"]
    for name in found:
        if name != "ar" and "ar" in found:
            parts[f"{claims.title(name)} is faster than AR"] = R[name][0] > R["ar"][0]
    if {"ar", "lwr"} <= {name for name in found if not np.isnan(error[name][0])}:
        parts["LWR's maximum centre error is below AR's"] = error["lwr"][0] < error["ar"][0]
    side = "above" if all(m > 1 - alpha for m, _ in coverage) else "not close to"
    measured = (
        f"coverage was {claims.format_range((m for m, _ in coverage), 3)}, {side} {1 - alpha:g}"
    )
    wrong = claims.listing(
        measured if part == close else f"that {part}" for part, right in parts.items() if not right
    )
    outcome = claims.verdict(parts.values())
    each = claims.listing(f"{R[n][0]:.2f} with {claims.title(n)}" for n in found)
    return {
        "verdict": outcome,
        "criterion": "Coverage is within two standard deviations of 1 − α, LWR and CQR are faster "
        "than AR, and LWR has a smaller maximum centre error.",
        "finding": claims.finding(
            outcome, f"the average acceleration is {each}",
            "" if outcome == SUPPORTED else f"not confirmed: {wrong}",
        ),
        "number": "R̄ " + ", ".join(f"{claims.title(n)} {R[n][0]:.2f}" for n in found),
    }  # fmt: skip


PAPER_PROTOCOL = Experiment(
    _paper_protocol,
    ("samples", "rounds", "several samples", "groups"),
    "the paper's multi-round protocol",
)
