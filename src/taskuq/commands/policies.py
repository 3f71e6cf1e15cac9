"""taskuq plan and taskuq simulate: make a stopping policy, and judge policies on a table."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from taskuq.commands.arguments import counts, load_table, numbers, share, words
from taskuq.commands.terminal import hand_over, say, show, show_table
from taskuq.errors import InputError

if TYPE_CHECKING:
    from taskuq.decide.simulation import Simulation

Kind = Literal["fixed-width", "adaptive", "anytime", "paper"]
Unit = Literal["case", "group", "whole-group"]


def plan(
    table: Path,
    /,
    *,
    policy: Kind = "fixed-width",
    alpha: float = 0.05,
    max_width: float | None = None,
    at_least: Annotated[float | None, Parameter(allow_leading_hyphen=True)] = None,
    at_most: Annotated[float | None, Parameter(allow_leading_hyphen=True)] = None,
    score: str = "mlwr",
    statistic: Literal["spread", "learned"] = "spread",
    budget: float = 1.0,
    unit: Unit | None = None,
    cases: str = "random",
    delta: float | None = None,
    side: Literal["two", "upper", "lower"] | None = None,
    range: Annotated[str | None, Parameter(name="--range", allow_leading_hyphen=True)] = None,
    samples: int | None = None,
    task: str | None = None,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("policy.json"),
) -> None:
    """Plan when to stop scanning and store the policy as JSON.

    Args:
        table: A table of task outputs with all rounds, .npz or folder.
        policy: fixed-width, adaptive, anytime, or paper (no guarantee).
        alpha: The error rate.
        max_width: Stop when the interval is this narrow.
        at_least: Stop when a lower bound exceeds this level.
        at_most: Stop when an upper bound is below this level.
        score: The score of adaptive, anytime and paper policies.
        statistic: The risk statistic of fixed-width policies.
        budget: For fixed-width: below 1, trade acceleration for narrower reports.
        unit: case, group (a random case of a new group) or whole-group (one decision for all).
        cases: With groups, cover a 'random' case, 'all' cases, or a share of them.
        delta: Promise given the calibration set, but for this share of sets.
        side: Two-sided, or a bound on one side.
        range: The task's range, low,high, where the table does not declare it.
        samples: Use the first so many posterior samples.
        task: One task of a table of several; without it all have to be satisfied.
        output: Where to write the policy.
    """
    from taskuq.decide.planning import plan as plan_policy

    loaded = load_table(table, range, task)
    made = plan_policy(
        loaded if samples is None else loaded.select(samples=samples),
        alpha=alpha, max_width=max_width, at_least=at_least, at_most=at_most, policy=policy,
        score=score, statistic=statistic, budget=budget, unit=unit, cases=share(cases), delta=delta,
        side=side,
    )  # fmt: skip
    say(str(made))
    if not math.isfinite(max(made.thresholds)):
        say(f"But {made.guarantee.shortage}, so every scan goes on to the end.")
    if "certified" in made.certificate:
        certificate = made.certificate
        say(
            f"Average acceleration {certificate['mean_acceleration']:.2f} on the calibration "
            f"cases; certified for new ones: at least {certificate['certified']:.2f} (but for "
            f"{certificate['delta']:g} of calibration sets)."
        )
    show(str(made.save(output)))


def simulate(
    table: Path,
    /,
    *,
    policy: str = "paper,fixed-width,adaptive,anytime",
    score: str = "lwr,cqr",
    statistic: str = "spread,learned",
    budget: str = "1",
    alpha: float = 0.05,
    max_width: float | None = None,
    at_least: Annotated[float | None, Parameter(allow_leading_hyphen=True)] = None,
    at_most: Annotated[float | None, Parameter(allow_leading_hyphen=True)] = None,
    samples: str | None = None,
    trials: int = 10_000,
    unit: Unit | None = None,
    cases: str = "random",
    delta: float | None = None,
    side: Literal["two", "upper", "lower"] | None = None,
    range: Annotated[str | None, Parameter(name="--range", allow_leading_hyphen=True)] = None,
    task: str | None = None,
    tunings: int = 10,
    seed: int = 0,
    json: Annotated[str | None, Parameter(name="--json", allow_leading_hyphen=True)] = None,
    figures: Path | None = None,
) -> None:
    """Replay policies on a stored table over random splits.

    Args:
        table: A table of task outputs with all rounds, .npz or folder.
        policy: Policies, separated by commas: paper, fixed-width, adaptive, anytime.
        score: Scores of paper, adaptive and anytime policies, separated by commas.
        statistic: Statistics of fixed-width policies, separated by commas: spread, learned.
        budget: Budgets of fixed-width policies, separated by commas; below 1 reports shrink.
        alpha: The error rate.
        max_width: Stop when the interval is this narrow.
        at_least: Stop when a lower bound exceeds this level.
        at_most: Stop when an upper bound is below this level.
        samples: Numbers of posterior samples, separated by commas; all by default.
        trials: The number of random splits.
        unit: Split and promise by case, group or whole-group.
        cases: With groups, cover a 'random' case, 'all' cases, or a share of them.
        delta: Promise given the calibration set, but for this share of sets.
        side: Two-sided, or a bound on one side.
        range: The task's range, low,high, where the table does not declare it.
        task: One task of a table of several; without it all have to be satisfied.
        tunings: Tuning folds to average over, for policies that learn from targets.
        seed: The seed of the splits.
        json: Write the record to this file, or to stdout for '-'.
        figures: Draw figures into this folder, SVG and PNG.
    """
    import numpy as np

    from taskuq.decide.planning import make_goal
    from taskuq.decide.simulation import simulate as replay
    from taskuq.files import range_to_json

    loaded = load_table(table, range, task)
    goal = make_goal(max_width, at_least, at_most, side)
    plans = _plans(policy, score, statistic, budget, alpha, goal)
    found = [
        (p, result)
        for p in counts(samples, "samples") or (loaded.samples,)
        for result in replay(
            loaded.select(samples=p), plans, trials=trials, rng=np.random.default_rng(seed),
            unit=unit, cases=share(cases), delta=delta, tunings=tunings,
        )
    ]  # fmt: skip
    _print(found, goal.sentence, to_stderr=json == "-")
    record = {
        "schema": "taskuq.simulate/1",
        "alpha": alpha,
        "goal": goal.to_dict(),
        "unit": found[0][1].unit,
        "trials": trials,
        "n": found[0][1].n,
        "n_calibration": found[0][1].n_calibration,
        "n_test": found[0][1].n_test,
        "inputs": {
            "table": repr(loaded),
            "task_range": range_to_json(loaded.task_range),
            "provenance": dict(loaded.provenance),
            "missing_cases": list(loaded.missing),
            "seed": seed,
            "cases": cases,
            "delta": delta,
            "tunings": tunings,
        },
        "results": [{"samples": p, **result.to_dict()} for p, result in found],
    }
    hand_over(record, json)
    if figures is not None:
        from taskuq.report.ink import draw_record

        show(str(draw_record(record, figures)))


def _plans(
    policies: str, scores: str, statistics: str, budgets: str, alpha: float, goal: Any
) -> list[Any]:
    from taskuq.decide.planning import PolicyPlan

    plans = []
    for kind in words(policies):
        if kind == "fixed-width":
            plans += [
                PolicyPlan(kind, alpha, goal, statistic=s, budget=b)  # type: ignore[arg-type]  # checked there
                for s in words(statistics)
                for b in numbers(budgets, "budget") or (1.0,)
            ]
        else:
            plans += [PolicyPlan(kind, alpha, goal, score=s) for s in words(scores)]  # type: ignore[arg-type]  # checked there
    if not plans:
        raise InputError("no policy was asked for; give --policy, e.g. fixed-width")
    return plans


def _print(found: list[tuple[int, Simulation]], goal: str, *, to_stderr: bool) -> None:
    first = found[0][1]
    title = (
        f"{first.trials} random splits by {first.unit}: {first.n_calibration} to calibrate, "
        f"{first.n_test} to test, alpha {first.alpha:g}; stop when {goal}"
    )
    rates = [f"R={s.acceleration:g}" for s in first.stops]
    columns = [
        "policy", "score", "p", "guaranteed", "mean R", "coverage", "early", "width",
        "centre error", *rates,
    ]  # fmt: skip
    rows = [
        [
            r.policy if r.budget == 1 else f"{r.policy} {r.budget:g}",
            r.statistic or r.score,
            str(p),
            "yes" if r.guaranteed else "no",
            f"{r.mean_acceleration:.3f}",
            f"{r.coverage:.4f}",
            _number(r.coverage_early),
            _number(r.width),
            _number(r.center_error),
            *(f"{s.fraction:.3f}" for s in r.stops),
        ]
        for p, r in found
    ]
    show_table(title, columns, rows, to_stderr=to_stderr)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}"
