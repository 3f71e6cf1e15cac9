"""calibrate, predict, sample-size, evaluate."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from itertools import cycle, repeat
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
    parse_round,
    print_json,
    print_message,
    print_result,
    print_table_notes,
    show_table,
)
from taskuq.errors import InputError

if TYPE_CHECKING:
    from taskuq.conformal._bound import Bound
    from taskuq.conformal._exact import EvaluationRecord
    from taskuq.conformal._joint import JointBound
    from taskuq.interval import FloatArray, Interval
    from taskuq.table._table import TaskOutputs


# Cases that become lines of text at one time.
CASES = 65536


def calibrate(
    table: TableFile,
    /,
    *,
    score: str = SCORE,
    alpha: float = 0.05,
    acceleration: str | None = None,
    unit: Literal["case", "group"] | None = None,
    cases: str = "random",
    delta: float | None = None,
    side: Literal["two", "upper", "lower", "each"] = "two",
    by_label: bool = False,
    within: Literal["case", "group"] | None = None,
    range: Annotated[str | None, Parameter(name="--range", allow_leading_hyphen=True)] = None,
    task: str | None = None,
    joint: Literal["max", "scale", "minimax", "rank"] | None = None,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("bound.json"),
) -> None:
    """Calibrate intervals and store them as JSON."""
    from taskuq.conformal._calibrate import calibrate as calibrate_arrays
    from taskuq.conformal._joint import calibrate_joint
    from taskuq.conformal._units import as_unit

    loaded = load_table(table, range, task)
    if not loaded.has_targets:
        raise InputError(f"{table} has no targets, so nothing can be calibrated on it")
    k, R = _round(loaded, None if acceleration is None else parse_round(acceleration))
    group = as_unit(unit, has_groups=loaded.group is not None).groups(loaded.group)
    bound: Bound | JointBound
    if joint is not None:
        if loaded.outputs.ndim != 4:
            raise InputError("--joint needs a table of several tasks")
        if side == "each":
            raise InputError("--joint has one quantile for each task; choose another --side")
        bound = calibrate_joint(
            loaded.outputs[k], loaded.targets_at(k), alpha=alpha, score=score, method=joint,
            group=group, unit=unit, cases=parse_coverage_mode(cases), delta=delta, side=side,
            task_range=loaded.task_ranges, task_names=loaded.task_names, acceleration=R,
        )  # fmt: skip
    else:
        if loaded.tasks > 1:
            raise InputError(
                f"the table has tasks {', '.join(loaded.task_names)}; choose one with --task or "
                "cover all with --joint"
            )
        if by_label and loaded.label is None:
            raise InputError("--by-label needs a table with labels")
        bound = calibrate_arrays(
            loaded.until(k), loaded.targets_at(k), alpha=alpha, score=score, group=group, unit=unit,
            cases=parse_coverage_mode(cases), delta=delta, side=side, task_range=loaded.task_range,
            label=loaded.label if by_label else None, condition_on=within, acceleration=R,
        )  # fmt: skip
    print_table_notes(loaded)
    print_message(str(bound))
    print_result(str(bound.save(output)))


def predict(
    bound: Path,
    table: TableFile,
    /,
    *,
    alpha: float | None = None,
    score: str | None = None,
    acceleration: str | None = None,
    task: str | None = None,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("intervals.csv"),
) -> None:
    """Write the interval of each case of a table as CSV."""
    from taskuq._io import atomic_write
    from taskuq.conformal._bound import Bound

    calibrated = _load(bound)
    _require_as_asked(calibrated, bound, alpha, score)
    loaded = load_table(table, None, task)
    if loaded.tasks > 1 and isinstance(calibrated, Bound):
        raise InputError(
            f"{bound} is for one task, and the table has {', '.join(loaded.task_names)}; choose it "
            "with --task"
        )
    remembered = calibrated.acceleration
    k, R = _round(loaded, remembered if acceleration is None else parse_round(acceleration))
    if acceleration is not None and remembered not in (None, R):
        raise InputError(
            f"{bound} was calibrated at acceleration {remembered:g}, not {acceleration}; use the "
            "bound of that acceleration"
        )
    outputs = loaded.outputs[k] if loaded.outputs.ndim == 4 else loaded.until(k)
    if calibrated.rounds == 1 and outputs.ndim == 3 and loaded.outputs.ndim == 3:
        outputs = outputs[-1]
    interval = calibrated(outputs)
    with atomic_write(output) as partial, partial.open("w", newline="") as file:
        csv.writer(file).writerows(_rows(loaded, k, R, interval))
    print_message(str(calibrated))
    print_result(str(output))


def plan_size(
    *,
    alpha: float = 0.05,
    epsilon: float = 0.02,
    delta: float = 0.05,
    one_sided: bool = False,
    group_size: float = 1.0,
    icc: float = 0.0,
    json: Annotated[str | None, Parameter(name="--json", allow_leading_hyphen=True)] = None,
) -> None:
    from taskuq.conformal._quantiles import calibration_size, min_calibration_size

    size = calibration_size(
        alpha, epsilon, delta, two_sided=not one_sided, group_size=group_size, icc=icc
    )
    least = min_calibration_size(alpha)
    if json != "-":
        sides = f"at least {1 - alpha - epsilon:g}" if one_sided else (
            f"between {1 - alpha - epsilon:g} and {min(1.0, 1 - alpha + epsilon):g}"
        )  # fmt: skip
        print_result(
            f"{size} calibration cases: then all but {delta:g} of calibration sets cover {sides} "
            f"of new cases ({least} give a finite interval at all)."
        )
    record = {
        "schema": "taskuq.plan-size/1", "alpha": alpha, "epsilon": epsilon, "delta": delta,
        "two_sided": not one_sided, "group_size": group_size, "icc": icc,
        "n_calibration": size, "n_finite": least,
    }  # fmt: skip
    print_json(record, json)


def _rows(
    table: TaskOutputs, k: int, acceleration: float | None, interval: Interval
) -> Iterator[Sequence[Any]]:
    """Yield the lines of the file, some cases at a time: each property is asked once for all."""
    yield ["case", "group", "acceleration", "task", "lower", "upper", "width", "center",
           "target", "covered"]  # fmt: skip
    import numpy as np

    from taskuq.report._records import cell

    targets, has_targets = table.targets_at(k), table.has_targets
    tasks = interval.lower[0].size
    for start in range(0, len(interval), CASES):
        block = slice(start, start + CASES)
        some, z = interval[block], targets[block]
        n = len(some)
        ids = np.arange(start, start + n) if table.case is None else table.case[block]
        groups = repeat("") if table.group is None else table.group[block].repeat(tasks).tolist()
        ends = (some.lower, some.upper, some.width, some.center)
        known = (_texts(z), some.contains(z).ravel().astype(int).tolist())
        yield from zip(
            map(cell, ids.repeat(tasks).tolist()),
            map(cell, groups),
            repeat("" if acceleration is None else f"{acceleration:g}"),
            cycle([cell(name) for name in table.task_names[:tasks]]),
            *map(_texts, ends),
            *(known if has_targets else (repeat(""), repeat(""))),
        )


def _texts(values: FloatArray) -> list[str]:
    return list(map(repr, values.ravel().tolist()))


def _round(table: TaskOutputs, asked: float | str | None) -> tuple[int, float | None]:
    """The number and the acceleration of the round that is meant."""
    import numpy as np

    if asked is None and table.rounds > 1:
        rates = ", ".join(f"{R:g}" for R in table.accelerations)
        called = "" if table.round_names is None else f" ({', '.join(table.round_names)})"
        raise InputError(
            f"the table has accelerations {rates}{called}; choose one with --acceleration"
        )
    if not isinstance(asked, str) and np.isnan(table.accelerations).all():
        return 0, asked
    k = 0 if asked is None else table.round_at(asked)
    return k, float(table.accelerations[k])


def _load(path: Path) -> Bound | JointBound:
    from taskuq.conformal import _bound as bound
    from taskuq.conformal import _joint as joint

    readers: dict[str, bound.Reader[Bound | JointBound]] = {
        bound.SCHEMA: bound.Bound.from_dict,
        joint.SCHEMA: joint.JointBound.from_dict,
    }
    return bound.read_bound(path, readers)


def _require_as_asked(
    bound: Bound | JointBound, path: Path, alpha: float | None, score: str | None
) -> None:
    from taskuq.conformal.scores import score_name

    if alpha is not None and alpha != bound.guarantee.alpha:
        raise InputError(
            f"{path} was calibrated at alpha {bound.guarantee.alpha:g}, not {alpha:g}; calibrate "
            "again for that error rate"
        )
    name = score_name(bound._parts[0][0])
    if score is not None and score != name:
        raise InputError(f"{path} was calibrated with score {name}, not {score}; calibrate again")


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
    """Judge scores over random splits, or exactly over all splits by case."""
    from taskuq.conformal._evaluate import EvaluationGrid, evaluate_table

    loaded = load_table(table, range, task)
    bins = parse_floats(size_bins, "size-bins")
    asked = () if acceleration is None else acceleration.split(",")
    rounds = [loaded.round_at(parse_round(one)) for one in asked]
    comparison = EvaluationGrid(
        scores=parse_list(score), alpha=alpha,
        accelerations=tuple(loaded.accelerations[rounds].tolist()) or None,
        samples=parse_ints(samples, "samples"), splits=None if exact else trials, seed=seed,
        unit=unit, cases=parse_coverage_mode(cases), delta=delta, side=side,
        **({} if bins is None else {"size_bins": bins}),
    )  # fmt: skip
    record = evaluate_table(loaded, comparison)
    print_table_notes(loaded)
    _print(record, to_stderr=json == "-")
    print_json(record.to_dict(), json)
    if figures is not None:
        from taskuq.report.figures import draw_record

        print_result(str(draw_record(record.to_dict(), figures)))


def _print(record: EvaluationRecord, *, to_stderr: bool) -> None:
    """Print an evaluation as a table with a sentence on what it means."""
    first = record.results[0]
    how = "all splits, exactly" if first.splits is None else f"{first.splits} random splits"
    title = (
        f"{how} by {first.unit}: {first.n_calibration} to calibrate, {first.n_test} to test, "
        f"alpha {first.alpha:g}; for {first.coverage_unit}"
    )
    several = len({r.task for r in record.results}) > 1
    by_one = first.width_single_quantile is not None
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
        + (
            []
            if r.width_single_quantile is None
            else [_ratio(r.width.mean, r.width_single_quantile.mean)]
        )
        for r in record.results
    ]
    show_table(title, columns, rows, to_stderr=to_stderr)
    if first.coverage_unit != first.mean_unit:
        print_message(
            f"Coverage is for {first.coverage_unit}; the other means are for {first.mean_unit}."
        )
    if by_one:
        print_message(
            "Each end has a quantile of its own; 'by one' is the width over that with one quantile "
            "for both, on the same splits. A bound keeps its promise if the choice was made on "
            "other cases than those it is calibrated on."
        )
    fits = [r.histogram for r in record.results if r.histogram is not None]
    if fits:
        worst = min(fit.p_value for fit in fits)
        print_message(
            f"Coverage against its exact law: goodness-of-fit p-value {worst:.2g}, the smallest of "
            f"{len(fits)}. {fits[0].reading}"
        )


def _ratio(width: float, by_one: float) -> str:
    return f"{width / by_one:.3f}" if math.isfinite(width) and 0 < by_one < math.inf else "-"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.5f}"
