"""plan, simulate, export-policy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from taskuq.cli.app import (
    SCORE,
    SCORES,
    Seed,
    TableFile,
    load_table,
    parse_coverage_mode,
    parse_floats,
    parse_ints,
    parse_list,
    parse_per_task,
    print_json,
    print_message,
    print_result,
    print_table_notes,
    show_table,
)
from taskuq.errors import InputError

if TYPE_CHECKING:
    from taskuq.policy._goal import Goal, Goals
    from taskuq.policy._kinds import PolicySpec
    from taskuq.policy._simulate import Simulation
    from taskuq.table._table import TaskOutputs


@Parameter(name="*")
@dataclass(frozen=True)
class _GuaranteeOptions:
    """Options --alpha, --max-width, --unit, ... of plan and simulate."""

    alpha: float = 0.05
    max_width: str | None = None
    at_least: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    at_most: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    unit: Literal["case", "group", "whole-group"] | None = None
    cases: str = "random"
    delta: float | None = None
    given: Literal["early"] | None = None
    side: Literal["two", "upper", "lower"] | None = None

    def asked(self) -> dict[str, Any]:
        """Return it as the functions take it."""
        return {**vars(self), **self.goals, "cases": parse_coverage_mode(self.cases)}

    @property
    def goals(self) -> dict[str, Any]:
        """Widths and levels, of all tasks or of each."""
        names = ("max_width", "at_least", "at_most")
        return {name: parse_per_task(getattr(self, name), name.replace("_", "-")) for name in names}


ASKED = _GuaranteeOptions()


def plan(
    table: TableFile,
    /,
    *,
    policy: str = "fixed-width",
    score: str = SCORE,
    statistic: Literal["spread", "learned"] = "spread",
    budget: float = 1.0,
    choose: str | None = None,
    promise: _GuaranteeOptions = ASKED,
    range: Annotated[str | None, Parameter(name="--range", allow_leading_hyphen=True)] = None,
    samples: int | None = None,
    task: str | None = None,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("policy.json"),
) -> None:
    """Plan when to stop scanning and store the policy as JSON."""
    from taskuq.policy._plan import plan as plan_policy

    loaded = load_table(table, range, task)
    made = plan_policy(
        loaded if samples is None else loaded.select(samples=samples),
        policy=policy, score=score, statistic=statistic, budget=budget,
        choose=None if choose is None else parse_list(choose), **promise.asked(),
    )  # fmt: skip
    print_table_notes(loaded)
    print_message(str(made))
    for name, R in made.provenance.get("chosen", {}).get("mean_acceleration", {}).items():
        print_message(f"{name}: average acceleration {R:.2f} on the cases to choose by")
    if made.certificate:
        print_message(_acceleration(made.certificate))
    if (without := made.certificate.get("mean_acceleration_without_given")) is not None:
        cost = 1 - made.certificate["mean_acceleration"] / without
        print_message(
            f"Without the promise about early stops the average acceleration would be "
            f"{without:.2f}: it costs {100 * cost:.3g} %."
        )
    print_result(str(made.save(output)))


def _acceleration(certificate: Mapping[str, Any]) -> str:
    mean, of_cases = (
        f"{certificate[name]:.2f}" for name in ("mean_acceleration", "mean_acceleration_of_cases")
    )
    whom = certificate["mean_over"]
    plain = "" if mean == of_cases else f" ({of_cases} if every case counts the same)"
    sentence = f"Average acceleration for {whom}: {mean} on the calibration set{plain}"
    if "certified" in certificate:
        sentence += (
            f"; certified for {whom}: at least {certificate['certified']:.2f} (but for "
            f"{certificate['delta']:g} of calibration sets)"
        )
    return f"{sentence}."


def simulate(
    table: TableFile,
    /,
    *,
    policy: str = "paper,fixed-width,adaptive,anytime",
    score: str = SCORES,
    statistic: str = "spread,learned",
    budget: str = "1",
    promise: _GuaranteeOptions = ASKED,
    samples: str | None = None,
    trials: int = 10_000,
    range: Annotated[str | None, Parameter(name="--range", allow_leading_hyphen=True)] = None,
    task: str | None = None,
    tunings: int = 10,
    seed: Seed = 0,
    json: Annotated[str | None, Parameter(name="--json", allow_leading_hyphen=True)] = None,
    figures: Path | None = None,
) -> None:
    """Replay policies on a stored table over random splits."""
    from taskuq.policy._goal import make_goals
    from taskuq.policy._simulate import CHOOSING, simulation_record
    from taskuq.policy._simulate import simulate as replay

    loaded = load_table(table, range, task)
    goal = make_goals(**promise.goals, side=promise.side, names=loaded.task_names)
    asked = {"score": score, "statistic": statistic, "budget": budget}
    plans = _plans(parse_list(policy), asked, promise, goal)
    found = [
        (p, result)
        for p in parse_ints(samples, "samples") or (loaded.samples,)
        for result in replay(
            loaded.select(samples=p), plans, splits=trials, seed=seed,
            unit=promise.unit, cases=parse_coverage_mode(promise.cases), delta=promise.delta,
            tuning_repeats=tunings,
        )
    ]  # fmt: skip
    print_table_notes(loaded)
    _print(found, goal.statement, loaded, to_stderr=json == "-")
    if len(plans) > 1:
        print_message(CHOOSING)
    inputs = {
        "seed": seed, "cases": promise.cases, "delta": promise.delta, "given": promise.given,
        "tunings": tunings,
    }  # fmt: skip
    record = simulation_record(loaded, goal, found, inputs)
    print_json(record, json)
    if figures is not None:
        from taskuq.report.figures import draw_record

        print_result(str(draw_record(record, figures)))


def _plans(
    policies: tuple[str, ...], asked: dict[str, str], promise: _GuaranteeOptions, goal: Goal | Goals
) -> list[PolicySpec]:
    """Every policy with every choice of the options that tell plans of its kind apart."""
    from taskuq.policy._kinds import POLICIES, PolicySpec

    def choices(option: str) -> tuple[Any, ...]:
        text = asked[option]
        return (parse_floats(text, option) or (1.0,)) if option == "budget" else parse_list(text)

    def given(kind: str) -> Literal["early"] | None:
        return promise.given if POLICIES[kind].supports_early else None

    plans = [
        PolicySpec(
            kind, promise.alpha, goal, given=given(kind), **dict(zip(options, chosen, strict=True))
        )
        for kind in policies
        for options in [[option for option in POLICIES[kind].options if option in asked]]
        for chosen in product(*map(choices, options))
    ]
    if not plans:
        raise InputError("no policy was asked for; give --policy, e.g. fixed-width")
    return plans


def _print(
    found: list[tuple[int, Simulation]],
    goal: str,
    table: TaskOutputs,
    *,
    to_stderr: bool,
) -> None:
    first = found[0][1]
    title = (
        f"{first.splits} random splits by {first.unit}: {first.n_calibration} to calibrate, "
        f"{first.n_test} to test, alpha {first.alpha:g}; stop when {goal}"
    )
    early = table.round_names or [f"R={s.acceleration:g}" for s in first.stops[:-1]]
    rates = [*early, f"R={first.stops[-1].acceleration:g}"]
    promised, unequal = _differing(found)
    # A mean over tasks, or the widest of them, would mix their units.
    widths = ["width", "centre error"] if table.tasks == 1 else []
    columns = [
        "policy", "score", "p", "guaranteed", "mean R", "±", *(["R by case"] if unequal else []),
        "coverage", "±", *(["case coverage"] if promised else []), "early", *widths, *rates,
    ]  # fmt: skip
    rows = [
        [
            _policy(r),
            r.statistic or r.score,
            str(p),
            "yes" if r.guaranteed else "no",
            f"{r.mean_acceleration:.3f}",
            _number(r.standard_errors["mean_acceleration"], 3),
            *([f"{r.case_mean_acceleration:.3f}"] if unequal else []),
            f"{r.coverage:.4f}",
            _number(r.standard_errors["coverage"]),
            *([f"{r.case_coverage:.4f}"] if promised else []),
            _number(r.coverage_early),
            *([_number(r.width), _number(r.center_error)] if widths else []),
            *(f"{s.fraction:.3f}" for s in r.stops),
        ]
        for p, r in found
    ]
    show_table(title, columns, rows, to_stderr=to_stderr)
    print_message(
        f"Coverage is for {first.coverage_of}; mean R and the other means are for "
        f"{first.mean_over}"
        + ("; 'R by case' lets every case count the same" if unequal else "")
        + ". ± is the standard error, as a sample of groups (or cases), calibration included."
        + ("" if widths else " Widths by task: taskuq evaluate, and the page of taskuq report.")
    )


def _policy(result: Simulation) -> str:
    """A policy as the table names it."""
    budget = "" if result.budget == 1 else f" {result.budget:g}"
    return f"{result.policy}{budget}{' given early' if result.given else ''}"


def _differing(found: list[tuple[int, Simulation]]) -> tuple[bool, bool]:
    """Return True if coverage differs from that of cases, and mean R from that where all count
    alike.
    """
    return (
        any(not math.isclose(r.coverage, r.case_coverage) for _, r in found),
        any(not math.isclose(r.mean_acceleration, r.case_mean_acceleration) for _, r in found),
    )


def _number(value: float, digits: int = 4) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def specify(
    policy: Path,
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("decide.json"),
    vectors: Path | None = None,
    cases: int = 20,
    seed: Seed = 0,
) -> None:
    """Write the specification of a policy's decisions, and cases to try an implementation on."""
    from taskuq._io import write_json
    from taskuq.policy._policy import load_policy
    from taskuq.policy._specification import export_policy, export_test_vectors

    if cases < 1:
        raise InputError(f"{cases} cases are asked for; ask for at least 1")
    loaded = load_policy(policy)
    print_result(str(write_json(output, export_policy(loaded))))
    if vectors is not None:
        print_result(str(write_json(vectors, export_test_vectors(loaded, cases=cases, seed=seed))))
