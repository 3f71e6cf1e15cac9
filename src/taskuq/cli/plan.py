"""Commands plan, simulate and export-policy."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from taskuq.cli import app
from taskuq.errors import GuaranteeWarning, InputError

if TYPE_CHECKING:
    from taskuq.policy._goal import Goal, Goals
    from taskuq.policy._kinds import PolicySpec
    from taskuq.policy._simulate import Simulation
    from taskuq.table._table import TaskOutputs


@Parameter(name="*")
@app.command("goal")
@dataclass(frozen=True)
class _Goal:
    alpha: float = 0.05
    max_width: str | None = None
    at_least: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    at_most: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    unit: Literal["case", "group", "whole-group", "site"] | None = None
    cases: str = "random"
    delta: float | None = None
    given: Literal["early", "round"] | None = None
    by_label: bool = False
    strata: Literal["label", "group", "site"] | None = None
    within: Literal["case", "group"] | None = None
    side: Literal["two", "upper", "lower"] | None = None

    @property
    def levels(self) -> dict[str, Any]:
        """Parsed --max-width, --at-least and --at-most by name: a number, or one per task."""
        return {
            name: app.parse_per_task(getattr(self, name), name.replace("_", "-"))
            for name in ("max_width", "at_least", "at_most")
        }

    @property
    def guarantee(self) -> dict[str, Any]:
        """Keyword arguments of :func:`taskuq.plan` for the unit and conditions of the guarantee."""
        return {
            "unit": self.unit,
            "cases": app.parse_number_or_name(self.cases),
            "delta": self.delta,
            "label": "label" if self.by_label else None,
            "strata": self.strata,
            "condition_on": self.within,
        }


GOAL = _Goal()


@app.command("plan")
def plan(
    table: app.TableFile,
    /,
    *,
    policy: str = "fixed-width",
    score: str | None = None,
    statistic: Literal["spread", "learned"] = "spread",
    budget: float = 1.0,
    choose: str | None = None,
    goal: _Goal = GOAL,
    range: app.Range = None,
    samples: int | None = None,
    task: str | None = None,
    change_control: Path | None = None,
    output: app.Output = Path("policy.json"),
) -> None:
    from taskuq.policy._plan import plan as plan_policy

    loaded = app.load_table(table, range, task)
    made = plan_policy(
        loaded if samples is None else loaded.select(samples=samples),
        policy=policy, score=score, statistic=statistic, budget=budget,
        choose=None if choose is None else app.parse_list(choose),
        alpha=goal.alpha, given=goal.given, side=goal.side, **goal.levels, **goal.guarantee,
    )  # fmt: skip
    app.print_table_notes(loaded)
    app.print_message(str(made))
    for name, R in made.provenance.get("chosen", {}).get("mean_acceleration", {}).items():
        app.print_message(f"{name}: mean acceleration {R:.2f} on held-out cases")
    if made.certificate:
        app.print_message(_acceleration(made.certificate))
        for kind in ("class", "site"):
            for part in made.certificate.get(f"by_{kind}", ()):
                width = "–" if (mean := part["width"]) is None else f"{mean:.3g}"
                app.print_message(
                    f"{kind} {part[kind]}: mean acceleration {part['mean_acceleration']:.2f}, "
                    f"coverage {part['coverage']:.3f}, mean width of early stops {width}, on "
                    f"{part['cases']} calibration cases"
                )
    if (without := made.certificate.get("mean_acceleration_without_given")) is not None:
        cost = 1 - made.certificate["mean_acceleration"] / without
        app.print_message(
            f"Without --given {goal.given} the mean acceleration would be {without:.2f}; the "
            f"stronger guarantee lowers it by {100 * cost:.3g} %."
        )
    app.print_result(str(made.save(output)))
    if change_control is not None:
        from taskuq._io import atomic_write

        text = CHANGE_CONTROL.format(
            policy=output, fingerprint=made.fingerprint, statement=made.statement,
            samples=made.samples, unit=made.guarantee.unit, alpha=made.alpha,
            rounds=", ".join(f"{R:g}" for R in made.accelerations),
        )  # fmt: skip
        with atomic_write(change_control) as partial:
            partial.write_text(text, encoding="utf-8")
        app.print_result(str(change_control))


CHANGE_CONTROL = """# Change control of {policy}

Policy {fingerprint}. {statement}

| part | value | may change | acceptance |
|---|---|---|---|
| recovery, task network, masks | fingerprints in {policy} | no | new calibration: `taskuq plan` \
on units not used for any choice |
| samples, rounds | {samples}; R = {rounds} | no | the same |
| alpha, goal, unit | {alpha:g}; {unit} | no | risk analysis, then a new calibration |
| scanner, protocol, population | | no | `taskuq monitor`, audits with targets; then a new \
calibration |
| versions of software, hardware, threads, batch | | if stored cases are reproduced | \
`taskuq run` on the calibration table |
| layout of reports, display names | | yes | review |

Approved by: ____  Date: ____
"""


def _acceleration(certificate: Mapping[str, Any]) -> str:
    name, whom = "mean_acceleration", certificate["mean_over"]
    mean, of_cases = (f"{certificate[key]:.2f}" for key in (name, f"{name}_of_cases"))
    plain = "" if mean == of_cases else f" ({of_cases} with equal weight for every case)"
    sentence = f"Mean acceleration for {whom}: {mean} on the calibration set{plain}"
    certified = certificate.get("certified", math.nan)
    if certified >= 1.005:
        sentence += (
            f"; certified: at least {math.floor(100 * certified) / 100:.2f} with probability "
            f"{1 - certificate['delta']:g} over independent calibration sets"
        )
    elif certified >= 1:
        sentence += "; too few calibration units to certify a mean acceleration above 1"
    return f"{sentence}."


@app.command("simulate")
def simulate(
    table: app.TableFile,
    /,
    *,
    policy: str = "paper,fixed-width,adaptive,anytime",
    score: str = app.SCORES,
    statistic: str = "spread,learned",
    budget: str = "1",
    goal: _Goal = GOAL,
    samples: str | None = None,
    splits: int = 1000,
    range: app.Range = None,
    task: str | None = None,
    tuning_repeats: int = 10,
    seed: int = 0,
    json: app.Json = None,
    figures: Path | None = None,
) -> None:
    from taskuq.policy._goal import make_goals
    from taskuq.policy._simulate import CHOOSING, simulation_record
    from taskuq.policy._simulate import simulate as replay

    loaded = app.load_table(table, range, task)
    stop = make_goals(**goal.levels, side=goal.side, names=loaded.task_names)
    choices = {"score": score, "statistic": statistic, "budget": budget}
    plans = _plans(app.parse_list(policy), choices, goal, stop)
    counts = app.parse_ints(samples, "samples") or (loaded.samples,)
    warnings.filterwarnings("default", ".* is skipped", GuaranteeWarning)
    results = [
        (p, result)
        for p in counts
        for result in replay(
            loaded.select(samples=p), plans, splits=splits, seed=seed,
            tuning_repeats=tuning_repeats, **goal.guarantee,
        )
    ]  # fmt: skip
    app.print_table_notes(loaded)
    _print(results, stop.statement, loaded, to_stderr=json == "-")
    if len(results) > len(counts):
        app.print_message(CHOOSING)
    inputs = {
        "seed": seed, "cases": goal.cases, "delta": goal.delta, "given": goal.given,
        "by_label": goal.by_label, "strata": goal.strata, "within": goal.within,
        "tunings": tuning_repeats,
    }  # fmt: skip
    record = simulation_record(loaded, stop, results, inputs)
    app.print_json(record, json)
    if figures is not None:
        from taskuq.report.figures import save_figures

        app.print_result(str(save_figures(record, figures)))


def _plans(
    policies: tuple[str, ...], options: dict[str, str], goal: _Goal, stop: Goal | Goals
) -> list[PolicySpec]:
    """Return one plan for each policy and each combination of its options."""
    from taskuq.policy._kinds import POLICIES, PolicySpec

    def values(option: str) -> tuple[Any, ...]:
        if option == "budget":
            return app.parse_floats(options[option], option) or (1.0,)
        return app.parse_list(options[option])

    plans = []
    for kind in policies:
        names = [option for option in POLICIES[kind].options if option in options]
        given = goal.given if POLICIES[kind].supports_early else None
        for chosen in product(*map(values, names)):
            more = dict(zip(names, chosen, strict=True))
            plans.append(PolicySpec(kind, goal.alpha, stop, given=given, **more))
    if not plans:
        raise InputError("--policy is empty; use e.g. --policy fixed-width", code="option.missing")
    return plans


def _print(
    results: list[tuple[int, Simulation]], goal: str, table: TaskOutputs, *, to_stderr: bool
) -> None:
    first = results[0][1]
    title = (
        f"{first.splits} random splits by {first.unit}: {first.n_calibration} to calibrate, "
        f"{first.n_test} to test, alpha {first.alpha:g}; stop when {goal}"
    )
    early = table.round_names or [f"R={s.acceleration:g}" for s in first.stops[:-1]]
    rates = [*early, f"R={first.stops[-1].acceleration:g}"]
    differs = any(not math.isclose(r.coverage, r.case_coverage) for _, r in results)
    means = [(r.mean_acceleration, r.case_mean_acceleration) for _, r in results]
    unequal = any(not math.isclose(*both) for both in means)
    number = app.format_number
    kinds = [k for k in ("class", "site") if getattr(first, f"{k}_coverage", ())]
    # A mean over tasks, or the widest of them, would mix their units.
    has_widths = table.tasks == 1
    rows: list[app.Row] = [
        [
            ("policy", f"{r.policy}{'' if r.budget == 1 else f' {r.budget:g}'}"
             f"{f' given {r.given}' if r.given else ''}"),
            ("score", r.statistic or r.score),
            ("p", str(p)),
            ("guaranteed", "yes" if r.guaranteed else "no"),
            ("mean R", f"{r.mean_acceleration:.3f}"),
            ("±", number(r.standard_errors["mean_acceleration"], 3)),
            *([("R by case", f"{r.case_mean_acceleration:.3f}")] if unequal else []),
            ("coverage", f"{r.coverage:.4f}"),
            ("±", number(r.standard_errors["coverage"], 4)),
            *([("case coverage", f"{r.case_coverage:.4f}")] if differs else []),
            *((f"worst {kind}", _worst(r, kind)) for kind in kinds),
            ("early", number(r.coverage_early, 4)),
            *([("width", number(r.width, 4))] if has_widths else []),
            *([("centre error", number(r.center_error, 4))] if has_widths else []),
            *((rate, f"{s.fraction:.3f}") for rate, s in zip(rates, r.stops, strict=True)),
        ]
        for p, r in results
    ]  # fmt: skip
    app.show_table(title, rows, to_stderr=to_stderr)
    _print_parts(results, to_stderr=to_stderr)
    scope = f"All means are for {first.mean_over}"
    if first.coverage_of != first.mean_over:
        scope = f"Coverage is for {first.coverage_of}; other means are for {first.mean_over}"
    app.print_message(
        scope
        + ("; 'R by case' weights every case equally" if unequal else "")
        + ". ± is the standard error over samples of groups (or cases), calibration included."
        + ("" if has_widths else " For widths by task, use taskuq evaluate or taskuq report.")
    )
    if kinds:
        app.print_message(app.MARKED.format(1 - first.alpha))


def _worst(result: Simulation, kind: str) -> str:
    """Format the lowest coverage of any class or site, marked if it is too low."""
    from taskuq.report._records import parts_of

    known = [part for part in parts_of(result.to_dict(), kind) if part.coverage >= 0]
    low = min(known, key=lambda part: part.coverage, default=None)
    return "-" if low is None else app.mark_coverage(low, is_below=low.is_below(result.alpha))


def _print_parts(results: list[tuple[int, Simulation]], *, to_stderr: bool) -> None:
    """Print coverage, mean acceleration and width by class and by site."""
    number = app.format_number
    rows = [
        [
            ("policy", r.policy), ("score", r.statistic or r.score), ("p", str(p)),
            ("part", f"{kind} {part[kind]}"), ("cases", str(part["cases"])),
            ("coverage", number(part["coverage"], 4)), ("±", number(part["standard_error"], 4)),
            ("mean R", number(part["mean_acceleration"], 3)), ("width", number(part["width"], 4)),
        ]
        for p, r in results
        for kind, parts in (("class", r.class_coverage), ("site", r.site_coverage))
        for part in parts
    ]  # fmt: skip
    if rows:
        within = results[0][1].condition
        title = f"By class and site{f'; guaranteed in {within}' if within else ', measured'}"
        app.show_table(title, rows, to_stderr=to_stderr)


@app.command("export-policy")
def export_policy(
    policy: Path,
    /,
    *,
    output: app.Output = Path("decide.json"),
    stratum: str | None = None,
    vectors: Path | None = None,
    cases: int = 20,
    seed: int = 0,
) -> None:
    from taskuq._io import write_json
    from taskuq.policy._policy import load_policy
    from taskuq.policy._specification import export_policy, export_test_vectors

    loaded = load_policy(policy).for_stratum(stratum)
    app.print_result(str(write_json(output, export_policy(loaded))))
    if vectors is not None:
        made = export_test_vectors(loaded, cases=cases, seed=seed)
        app.print_result(str(write_json(vectors, made)))
