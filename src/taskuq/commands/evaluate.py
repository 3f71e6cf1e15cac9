"""taskuq evaluate: judge scores on a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from taskuq.commands.arguments import (
    SCORES,
    Seed,
    TableFile,
    counts,
    load_table,
    numbers,
    round_asked,
    share,
    words,
)
from taskuq.commands.terminal import hand_over, say, say_about, show, show_table

if TYPE_CHECKING:
    from taskuq.evaluation.result import EvaluationRecord


def evaluate(
    table: TableFile,
    /,
    *,
    score: str = SCORES,
    alpha: float = 0.05,
    acceleration: str | None = None,
    samples: str | None = None,
    trials: int = 10_000,
    exact: bool = False,
    unit: Literal["case", "group"] | None = None,
    cases: str = "random",
    delta: float | None = None,
    side: Literal["two", "upper", "lower", "each"] = "two",
    range: Annotated[str | None, Parameter(name="--range", allow_leading_hyphen=True)] = None,
    task: str | None = None,
    size_bins: str | None = None,
    seed: Seed = 0,
    json: Annotated[str | None, Parameter(name="--json", allow_leading_hyphen=True)] = None,
    figures: Path | None = None,
) -> None:
    """Judge scores over random splits, or exactly over all splits by case.

    Arguments:
        table: A table of task outputs.
        score: Scores, separated by commas: ar, lwr, cqr, mlwr, learned.
        alpha: The error rate.
        acceleration: Rounds, by acceleration or name, separated by commas; all by default.
        samples: Numbers of posterior samples, separated by commas; all by default.
        trials: The number of random splits.
        exact: Take all splits at once, in closed form.
        unit: Split by case or by group; by group where the table has groups.
        cases: With groups, cover a 'random' case, 'all' cases, or a share of them.
        delta: Promise coverage given the calibration set, but for this share of sets.
        side: Two-sided intervals, with one quantile or one for each end, or upper or lower bounds.
        range: The task's range, low,high, where the table does not declare it.
        task: One task of a table of several.
        size_bins: Edges of width ranges; the paper's by default.
        seed: The seed of the splits.
        json: Write the record to this file, or to stdout for '-'.
        figures: Draw figures into this folder, SVG and PNG.
    """
    from taskuq.evaluation.comparison import Comparison, compare

    loaded = load_table(table, range, task)
    bins = numbers(size_bins, "size-bins")
    asked = () if acceleration is None else acceleration.split(",")
    rounds = [loaded.round_at(round_asked(one)) for one in asked]
    comparison = Comparison(
        scores=words(score), alpha=alpha,
        accelerations=tuple(loaded.accelerations[rounds].tolist()) or None,
        samples=counts(samples, "samples"), trials=None if exact else trials, seed=seed,
        unit=unit, cases=share(cases), delta=delta, side=side,
        **({} if bins is None else {"size_bins": bins}),
    )  # fmt: skip
    record = compare(loaded, comparison)
    say_about(loaded)
    _print(record, to_stderr=json == "-")
    hand_over(record.to_dict(), json)
    if figures is not None:
        from taskuq.report.figures import draw_record

        show(str(draw_record(record.to_dict(), figures)))


def _print(record: EvaluationRecord, *, to_stderr: bool) -> None:
    """Print an evaluation as a table with a sentence on what it means."""
    first = record.results[0]
    how = "all splits, exactly" if first.trials is None else f"{first.trials} random splits"
    title = (
        f"{how} by {first.unit}: {first.n_calibration} to calibrate, {first.n_test} to test, "
        f"alpha {first.alpha:g}; for {first.coverage_of}"
    )
    several = len({r.task for r in record.results}) > 1
    by_one = first.width_by_one is not None
    promised = any(not math.isclose(r.coverage.mean, r.case_coverage.mean) for r in record.results)
    named = any(r.round_name for r in record.results)
    columns = (["task"] if several else []) + [
        "round" if named else "R", "score", "samples", "coverage", "sd",
        *(["case coverage"] if promised else []), "width", "sd", "centre error", "infinite",
    ] + (["by one"] if by_one else [])  # fmt: skip
    rows: list[Sequence[str]] = [
        ([str(r.task)] if several else [])
        + [
            r.round_name or ("-" if r.acceleration is None else f"{r.acceleration:g}"),
            r.score,
            str(r.samples),
            f"{r.coverage.mean:.5f}",
            _number(r.coverage.sd),
            *([_number(r.case_coverage.mean)] if promised else []),
            _number(r.width.mean),
            _number(r.width.sd),
            _number(r.center_error.mean),
            f"{r.infinite:.3g}",
        ]
        + ([] if r.width_by_one is None else [_ratio(r.width.mean, r.width_by_one.mean)])
        for r in record.results
    ]
    show_table(title, columns, rows, to_stderr=to_stderr)
    if first.coverage_of != first.mean_over:
        say(f"Coverage is for {first.coverage_of}; the other means are for {first.mean_over}.")
    if by_one:
        say(
            "Each end has a quantile of its own; 'by one' is the width over that with one quantile "
            "for both, on the same splits. A bound keeps its promise if the choice was made on "
            "other cases than those it is calibrated on."
        )
    fits = [r.histogram for r in record.results if r.histogram is not None]
    if fits:
        worst = min(fit.p_value for fit in fits)
        say(
            f"Coverage against its exact law: goodness-of-fit p-value {worst:.2g}, the smallest of "
            f"{len(fits)}. {fits[0].reading}"
        )


def _ratio(width: float, by_one: float) -> str:
    return f"{width / by_one:.3f}" if math.isfinite(width) and 0 < by_one < math.inf else "-"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.5f}"
