"""Commands calibrate, predict, sample-size and evaluate."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import cycle, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from taskuq.cli import app
from taskuq.errors import InputError

if TYPE_CHECKING:
    from taskuq.conformal._bound import Bound
    from taskuq.conformal._exact import Evaluation, EvaluationRecord
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
    unit: Literal["case", "group", "site"] | None = None,
    cases: str = "random",
    delta: float | None = None,
    side: Literal["two", "upper", "lower", "each"] = "two",
    by_label: bool = False,
    within: Literal["case", "group"] | None = None,
    range: app.Range = None,
    task: str | None = None,
    joint: Literal["scale", "minimax"] | None = None,
    output: app.Output = Path("bound.json"),
) -> None:
    from taskuq.conformal._calibrate import calibrate as calibrate_arrays
    from taskuq.conformal._joint import calibrate_joint
    from taskuq.conformal._units import as_unit

    loaded = app.load_table(table, range, task)
    if not loaded.has_targets:
        raise InputError(f"{table} has no targets f(x) of true images", code="targets.missing")
    k, R = _round(loaded, acceleration)
    has_groups, has_sites = loaded.group is not None, loaded.site is not None
    group = as_unit(unit, has_groups=has_groups, has_sites=has_sites).groups(loaded.group)
    bound: Bound | JointBound
    if joint is not None:
        if loaded.outputs.ndim != 4:
            raise InputError("--joint needs a table of several tasks", code="option.unused")
        if unit == "site":
            raise InputError("--joint excludes --unit site", code="option.conflict")
        if side == "each":
            raise InputError("--joint excludes --side each", code="option.conflict")
        bound = calibrate_joint(
            loaded.outputs[k], loaded.targets_at(k), alpha=alpha, score=score, method=joint,
            group=group, unit=unit, cases=app.parse_number_or_name(cases), delta=delta, side=side,
            task_range=loaded.task_ranges, task_names=loaded.task_names, acceleration=R,
        )  # fmt: skip
    else:
        if loaded.tasks > 1:
            names = ", ".join(loaded.task_names)
            raise InputError(f"the tasks are {names}; use --task or --joint", code="option.missing")
        if by_label and loaded.label is None:
            raise InputError("--by-label needs a table with labels", code="groups.missing")
        bound = calibrate_arrays(
            loaded.rounds_up_to(k), loaded.targets_at(k), alpha=alpha, score=score, group=group,
            site=loaded.site if unit == "site" else None, unit=unit, delta=delta, side=side,
            cases=app.parse_number_or_name(cases), task_range=loaded.task_range,
            label=loaded.label if by_label else None, condition_on=within, acceleration=R,
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
    from taskuq.conformal.scores import score_name

    calibrated = _load(bound)
    loaded = app.load_table(table, None, task)
    if loaded.tasks > 1 and isinstance(calibrated, Bound):
        names = ", ".join(loaded.task_names)
        raise InputError(
            f"{bound} is for one of the tasks {names}; use --task", code="option.missing"
        )
    stored = calibrated.acceleration
    k, R = _round(loaded, acceleration, stored)
    own = {
        "alpha": (alpha, calibrated.guarantee.alpha),
        "score": (score, score_name(calibrated._parts[0][0])),
        "acceleration": (None if acceleration is None or stored is None else R, stored),
    }
    for option, (given, known) in own.items():
        if given is not None and given != known:
            raise InputError(
                f"{bound} was calibrated with {option} {known}, got --{option} {given}",
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
            f"With {size} calibration cases, intervals cover {covered} of new cases for all but a "
            f"fraction {delta:g} of calibration sets; a finite interval needs {least} cases."
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
    """Yield the header of the CSV file, then one row per case and task."""
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


def _round(
    table: TaskOutputs, given: str | None, default: float | None = None
) -> tuple[int, float | None]:
    """Return index and acceleration of the given round; if None, of the default or only one."""
    import numpy as np

    choice = default if given is None else app.parse_number_or_name(given)

    if choice is None and table.rounds > 1:
        rates = ", ".join(f"{R:g}" for R in table.accelerations)
        names = "" if table.round_names is None else f" ({', '.join(table.round_names)})"
        message = f"the table has accelerations {rates}{names}; use --acceleration"
        raise InputError(message, code="option.missing")
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
    seed: int = 0,
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
    for name, reason in record.inputs.get("left_out", {}).items():
        app.print_message(f"{name} is skipped: {reason}")
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
        f"alpha {first.alpha:g}; coverage of {first.coverage_unit}"
    )
    several = len({r.task for r in record.results}) > 1
    by_one = first.width_single_quantile is not None
    differs = any(not math.isclose(r.coverage.mean, r.case_coverage.mean) for r in record.results)
    named = any(r.round_name for r in record.results)
    kinds = [k for k in ("class", "site") if any(r.worst(k) for r in record.results)]
    number = partial(app.format_number, digits=5)
    rows: list[app.Row] = [
        [
            *([("task", str(r.task))] if several else []),
            ("round" if named else "R", r.round_name or _rate(r.acceleration)),
            ("score", r.score),
            ("samples", str(r.samples)),
            ("coverage", f"{r.coverage.mean:.5f}"),
            ("sd", number(r.coverage.sd)),
            *([("case coverage", number(r.case_coverage.mean))] if differs else []),
            ("width", number(r.width.mean)),
            ("sd", number(r.width.sd)),
            ("centre error", number(r.center_error.mean)),
            ("infinite", f"{r.infinite:.3g}"),
            *([("by one", _ratio(r))] if by_one else []),
            *((f"worst {kind}", _worst(r, kind)) for kind in kinds),
        ]
        for r in record.results
    ]
    app.show_table(title, rows, to_stderr=to_stderr)
    if first.coverage_unit != first.mean_unit:
        app.print_message(
            f"Coverage is for {first.coverage_unit}; the other means are for {first.mean_unit}."
        )
    if kinds:
        app.print_message(app.MARKED.format(1 - first.alpha))
    _print_left_out(record, to_stderr=to_stderr)
    if by_one:
        app.print_message(
            "'by one' is the mean width divided by the mean width with one quantile for both ends. "
            "Choosing between the two kinds on the calibration cases voids the guarantee."
        )
    if fits := [r.histogram for r in record.results if r.histogram is not None]:
        worst = f"p-value {min(fit.p_value for fit in fits):.2g} of {len(fits)}"
        app.print_message(
            f"Fit of coverage over splits to its exact law: smallest {worst}. {fits[0].reading}"
        )


def _print_left_out(record: EvaluationRecord, *, to_stderr: bool) -> None:
    """Print the coverage of each site after calibration on all other sites."""
    number = partial(app.format_number, digits=3)
    rows = [
        [
            ("score", f"{r.score}{f', {r.task}' if r.task else ''}"),
            ("round", r.round_label or "-"),
            ("site", part.name),
            ("cases", f"{part.cases:g}"),
            ("coverage", number(part.coverage)),
            ("±", number(part.standard_error)),
            ("width", number(part.width)),
            ("", "!" * r._is_below(part)),
        ]
        for r in record.results
        for part in r.site_left_out
    ]
    if rows:
        title = "each site after calibration on all other sites; ± is one standard error"
        app.show_table(title, rows, to_stderr=to_stderr)


def _worst(result: Evaluation, kind: str) -> str:
    part = result.worst(kind)
    return "-" if part is None else app.mark_coverage(part, is_below=result._is_below(part))


def _ratio(result: Evaluation) -> str:
    """Format the mean width divided by the mean width with one quantile for both interval ends."""
    width, by_one = result.width.mean, getattr(result.width_single_quantile, "mean", math.nan)
    return f"{width / by_one:.3f}" if math.isfinite(width) and 0 < by_one < math.inf else "-"


def _rate(acceleration: float | None) -> str:
    return "-" if acceleration is None else f"{acceleration:g}"
