"""Commands calibrate, predict, sample-size and evaluate."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from itertools import cycle, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from taskuq.cli import app
from taskuq.errors import InputError

if TYPE_CHECKING:
    from taskuq.conformal._bound import Bound
    from taskuq.conformal._exact import EvaluationRecord
    from taskuq.conformal._joint import JointBound
    from taskuq.interval import FloatArray, Interval
    from taskuq.table._table import TaskOutputs


# Cases written at a time.
CASES = 65536


@app.command("calibrate")
def calibrate(
    table: app.TableFile,
    /,
    *,
    score: str = app.SCORE,
    alpha: float = 0.05,
    acceleration: str | None = None,
    unit: Literal["case", "group"] | None = None,
    cases: str = "random",
    delta: float | None = None,
    side: Literal["two", "upper", "lower", "each"] = "two",
    by_label: bool = False,
    within: Literal["case", "group"] | None = None,
    range: app.Range = None,
    task: str | None = None,
    joint: Literal["max", "scale", "minimax", "rank"] | None = None,
    output: app.Output = Path("bound.json"),
) -> None:
    from taskuq.conformal._calibrate import calibrate as calibrate_arrays
    from taskuq.conformal._joint import calibrate_joint
    from taskuq.conformal._units import as_unit

    loaded = app.load_table(table, range, task)
    if not loaded.has_targets:
        raise InputError(
            f"{table} has no targets; calibration needs targets f(x) of the true images",
            code="targets.missing",
        )
    k, R = _round(loaded, None if acceleration is None else app.parse_number_or_name(acceleration))
    group = as_unit(unit, has_groups=loaded.group is not None).groups(loaded.group)
    bound: Bound | JointBound
    if joint is not None:
        if loaded.outputs.ndim != 4:
            raise InputError("--joint needs a table of several tasks", code="option.unused")
        if side == "each":
            raise InputError(
                "--joint excludes --side each; use another --side", code="option.conflict"
            )
        bound = calibrate_joint(
            loaded.outputs[k], loaded.targets_at(k), alpha=alpha, score=score, method=joint,
            group=group, unit=unit, cases=app.parse_number_or_name(cases), delta=delta, side=side,
            task_range=loaded.task_ranges, task_names=loaded.task_names, acceleration=R,
        )  # fmt: skip
    else:
        if loaded.tasks > 1:
            raise InputError(
                f"the table has tasks {', '.join(loaded.task_names)}; use --task or --joint",
                code="option.missing",
            )
        if by_label and loaded.label is None:
            raise InputError("--by-label needs a table with labels", code="groups.missing")
        bound = calibrate_arrays(
            loaded.rounds_up_to(k), loaded.targets_at(k), alpha=alpha, score=score, group=group,
            unit=unit, cases=app.parse_number_or_name(cases), delta=delta, side=side,
            task_range=loaded.task_range, label=loaded.label if by_label else None,
            condition_on=within, acceleration=R,
        )  # fmt: skip
    app.print_table_notes(loaded)
    app.print_message(str(bound))
    app.print_result(str(bound.save(output)))


@app.command("predict")
def predict(
    bound: Path,
    table: app.TableFile,
    /,
    *,
    alpha: float | None = None,
    score: str | None = None,
    acceleration: str | None = None,
    task: str | None = None,
    output: app.Output = Path("intervals.csv"),
) -> None:
    from taskuq._io import atomic_write
    from taskuq.conformal._bound import Bound

    calibrated = _load(bound)
    _require_match(calibrated, bound, alpha, score)
    loaded = app.load_table(table, None, task)
    if loaded.tasks > 1 and isinstance(calibrated, Bound):
        raise InputError(
            f"{bound} is for one task, the table has {', '.join(loaded.task_names)}; use --task",
            code="option.missing",
        )
    stored = calibrated.acceleration
    k, R = _round(
        loaded, stored if acceleration is None else app.parse_number_or_name(acceleration)
    )
    if acceleration is not None and stored not in (None, R):
        raise InputError(
            f"{bound} was calibrated at acceleration {stored:g}, got "
            f"--acceleration {acceleration}; use the bound of that acceleration",
            code="policy.mismatch",
        )
    outputs = loaded.outputs[k] if loaded.outputs.ndim == 4 else loaded.rounds_up_to(k)
    if calibrated.rounds == 1 and outputs.ndim == 3 and loaded.outputs.ndim == 3:
        outputs = outputs[-1]
    interval = calibrated(outputs)
    with atomic_write(output) as partial, partial.open("w", newline="") as file:
        csv.writer(file).writerows(_rows(loaded, k, R, interval))
    app.print_message(str(calibrated))
    app.print_result(str(output))


@app.command("sample-size")
def sample_size(
    *,
    alpha: float = 0.05,
    epsilon: float = 0.02,
    delta: float = 0.05,
    one_sided: bool = False,
    group_size: float = 1.0,
    icc: float = 0.0,
    json: app.Json = None,
) -> None:
    from taskuq.conformal._quantiles import calibration_size, min_calibration_size

    size = calibration_size(
        alpha, epsilon, delta, two_sided=not one_sided, group_size=group_size, icc=icc
    )
    least = min_calibration_size(alpha)
    if json != "-":
        low, high = 1 - alpha - epsilon, min(1.0, 1 - alpha + epsilon)
        covered = f"at least {low:g}" if one_sided else f"between {low:g} and {high:g}"
        app.print_result(
            f"{size} calibration cases: all but {delta:g} of calibration sets then cover {covered} "
            f"of new cases ({least} are needed for a finite interval)."
        )
    record = {
        "schema": "taskuq.plan-size/1", "alpha": alpha, "epsilon": epsilon, "delta": delta,
        "two_sided": not one_sided, "group_size": group_size, "icc": icc,
        "n_calibration": size, "n_finite": least,
    }  # fmt: skip
    app.print_json(record, json)


def _rows(
    table: TaskOutputs, k: int, acceleration: float | None, interval: Interval
) -> Iterator[Sequence[Any]]:
    """Yield the rows of the file, computed for a block of cases at a time."""
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
        truth = (_texts(z), some.contains(z).ravel().astype(int).tolist())
        yield from zip(
            map(cell, ids.repeat(tasks).tolist()),
            map(cell, groups),
            repeat("" if acceleration is None else f"{acceleration:g}"),
            cycle([cell(name) for name in table.task_names[:tasks]]),
            *map(_texts, ends),
            *(truth if has_targets else (repeat(""), repeat(""))),
        )


def _texts(values: FloatArray) -> list[str]:
    return list(map(repr, values.ravel().tolist()))


def _round(table: TaskOutputs, choice: float | str | None) -> tuple[int, float | None]:
    """Return the index and the acceleration of a round."""
    import numpy as np

    if choice is None and table.rounds > 1:
        rates = ", ".join(f"{R:g}" for R in table.accelerations)
        names = "" if table.round_names is None else f" ({', '.join(table.round_names)})"
        raise InputError(
            f"the table has accelerations {rates}{names}; use --acceleration", code="option.missing"
        )
    if not isinstance(choice, str) and np.isnan(table.accelerations).all():
        return 0, choice
    k = 0 if choice is None else table.round_index(choice)
    return k, float(table.accelerations[k])


def _load(path: Path) -> Bound | JointBound:
    from taskuq.conformal import _bound as bound
    from taskuq.conformal import _joint as joint

    readers: dict[str, bound.Reader[Bound | JointBound]] = {
        bound.SCHEMA: bound.Bound.from_dict,
        joint.SCHEMA: joint.JointBound.from_dict,
    }
    return bound.read_bound(path, readers)


def _require_match(
    bound: Bound | JointBound, path: Path, alpha: float | None, score: str | None
) -> None:
    from taskuq.conformal.scores import score_name

    if alpha is not None and alpha != bound.guarantee.alpha:
        raise InputError(
            f"{path} was calibrated at alpha {bound.guarantee.alpha:g}, got --alpha {alpha:g}; "
            "recalibrate",
            code="policy.mismatch",
        )
    name = score_name(bound._parts[0][0])
    if score is not None and score != name:
        raise InputError(
            f"{path} was calibrated with score {name}, got --score {score}; recalibrate",
            code="policy.mismatch",
        )


@app.command("evaluate")
def evaluate(
    table: app.TableFile,
    /,
    *,
    score: str = app.SCORES,
    alpha: float = 0.05,
    acceleration: str | None = None,
    samples: str | None = None,
    splits: int = 10_000,
    exact: bool = False,
    unit: Literal["case", "group"] | None = None,
    cases: str = "random",
    delta: float | None = None,
    side: Literal["two", "upper", "lower", "each"] = "two",
    range: app.Range = None,
    task: str | None = None,
    size_bins: str | None = None,
    seed: app.Seed = 0,
    json: app.Json = None,
    figures: Path | None = None,
) -> None:
    from taskuq.conformal._evaluate import EvaluationGrid, evaluate_table

    loaded = app.load_table(table, range, task)
    bins = app.parse_floats(size_bins, "size-bins")
    rounds = [
        loaded.round_index(app.parse_number_or_name(R)) for R in app.parse_list(acceleration or "")
    ]
    grid = EvaluationGrid(
        scores=app.parse_list(score), alpha=alpha,
        accelerations=tuple(loaded.accelerations[rounds].tolist()) or None,
        samples=app.parse_ints(samples, "samples"), splits=None if exact else splits, seed=seed,
        unit=unit, cases=app.parse_number_or_name(cases), delta=delta, side=side,
        **({} if bins is None else {"size_bins": bins}),
    )  # fmt: skip
    record = evaluate_table(loaded, grid)
    app.print_table_notes(loaded)
    _print(record, to_stderr=json == "-")
    app.print_json(record.to_dict(), json)
    if figures is not None:
        from taskuq.report.figures import save_figures

        app.print_result(str(save_figures(record.to_dict(), figures)))


def _print(record: EvaluationRecord, *, to_stderr: bool) -> None:
    """Print an evaluation as a table."""
    first = record.results[0]
    how = "all splits, exactly" if first.splits is None else f"{first.splits} random splits"
    title = (
        f"{how} by {first.unit}: {first.n_calibration} to calibrate, {first.n_test} to test, "
        f"alpha {first.alpha:g}; for {first.coverage_unit}"
    )
    several = len({r.task for r in record.results}) > 1
    by_one = first.width_single_quantile is not None
    differs = any(not math.isclose(r.coverage.mean, r.case_coverage.mean) for r in record.results)
    named = any(r.round_name for r in record.results)
    columns = (["task"] if several else []) + [
        "round" if named else "R", "score", "samples", "coverage", "sd",
        *(["case coverage"] if differs else []), "width", "sd", "centre error", "infinite",
    ] + (["by one"] if by_one else [])  # fmt: skip
    rows: list[Sequence[str]] = [
        ([str(r.task)] if several else [])
        + [
            r.round_name or ("-" if r.acceleration is None else f"{r.acceleration:g}"),
            r.score,
            str(r.samples),
            f"{r.coverage.mean:.5f}",
            _number(r.coverage.sd),
            *([_number(r.case_coverage.mean)] if differs else []),
            _number(r.width.mean),
            _number(r.width.sd),
            _number(r.center_error.mean),
            f"{r.infinite:.3g}",
        ]
        + ([_ratio(r.width.mean, r.width_single_quantile.mean)] if r.width_single_quantile else [])
        for r in record.results
    ]
    app.show_table(title, columns, rows, to_stderr=to_stderr)
    if first.coverage_unit != first.mean_unit:
        app.print_message(
            f"Coverage is for {first.coverage_unit}; the other means are for {first.mean_unit}."
        )
    if by_one:
        app.print_message(
            "Each end has its own quantile; 'by one' is the width relative to one quantile for "
            "both, on the same splits. Choose on other cases than the calibration cases, or the "
            "guarantee is void."
        )
    fits = [r.histogram for r in record.results if r.histogram is not None]
    if fits:
        worst = min(fit.p_value for fit in fits)
        app.print_message(
            f"Coverage and its exact law: smallest goodness-of-fit p-value {worst:.2g} of "
            f"{len(fits)}. {fits[0].reading}"
        )


def _ratio(width: float, by_one: float) -> str:
    return f"{width / by_one:.3f}" if math.isfinite(width) and 0 < by_one < math.inf else "-"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.5f}"
