"""taskuq plan-size, calibrate and predict: how many cases, a bound from them, its intervals."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import cycle, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from taskuq.commands.arguments import SCORE, TableFile, load_table, round_asked, share
from taskuq.commands.terminal import hand_over, say, say_about, show
from taskuq.errors import InputError

if TYPE_CHECKING:
    from taskuq.calibration.bound import Bound
    from taskuq.calibration.joint import JointBound
    from taskuq.interval import FloatArray, Interval
    from taskuq.outputs import TaskOutputs

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
    """Calibrate intervals and store them as JSON.

    Arguments:
        table: A table of task outputs.
        score: ar, lwr, cqr, mlwr or learned.
        alpha: The error rate.
        acceleration: The round to calibrate for, by its acceleration or its name; needed where
            the table has several.
        unit: Promise for a new case or a new group; for groups where the table has them.
        cases: With groups, cover a 'random' case, 'all' cases, or a share of them.
        delta: Promise coverage given the calibration set, but for this share of sets.
        side: Two-sided intervals, with one quantile or one for each end, or upper or lower bounds.
        by_label: Promise coverage within each class of the table's labels.
        within: With --by-label and groups, draw a case of a new group, given its class ('case', the
            default), or a case of the class in a new group that has some ('group').
        range: The task's range, low,high, where the table does not declare it.
        task: One task of a table of several.
        joint: Cover all tasks of a table together, by this method.
        output: Where to write the bound.
    """
    from taskuq.calibration.joint import calibrate_joint
    from taskuq.calibration.single import calibrate as calibrate_arrays
    from taskuq.calibration.units import as_unit

    loaded = load_table(table, range, task)
    if not loaded.has_targets:
        raise InputError(f"{table} has no targets, so nothing can be calibrated on it")
    k, R = _round(loaded, None if acceleration is None else round_asked(acceleration))
    group = as_unit(unit, has_groups=loaded.group is not None).groups(loaded.group)
    bound: Bound | JointBound
    if joint is not None:
        if loaded.outputs.ndim != 4:
            raise InputError("--joint needs a table of several tasks")
        if side == "each":
            raise InputError("--joint has one quantile for each task; choose another --side")
        bound = calibrate_joint(
            loaded.outputs[k], loaded.targets_at(k), alpha=alpha, score=score, method=joint,
            group=group, unit=unit, cases=share(cases), delta=delta, side=side,
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
            cases=share(cases), delta=delta, side=side, task_range=loaded.task_range,
            label=loaded.label if by_label else None, within=within, acceleration=R,
        )  # fmt: skip
    say_about(loaded)
    say(str(bound))
    show(str(bound.save(output)))


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
    """Write the interval of each case of a table as CSV.

    Arguments:
        bound: A bound that taskuq calibrate wrote.
        table: A table of task outputs; targets are not needed.
        alpha: Refuse a bound of another error rate.
        score: Refuse a bound of another score.
        acceleration: The round, by its acceleration or its name, where the bound does not say.
        task: The task that the bound is for, of a table of several.
        output: Where to write the intervals.
    """
    from taskuq.calibration.bound import Bound
    from taskuq.files import whole_file

    calibrated = _load(bound)
    _require_as_asked(calibrated, bound, alpha, score)
    loaded = load_table(table, None, task)
    if loaded.tasks > 1 and isinstance(calibrated, Bound):
        raise InputError(
            f"{bound} is for one task, and the table has {', '.join(loaded.task_names)}; choose it "
            "with --task"
        )
    remembered = calibrated.acceleration
    k, R = _round(loaded, remembered if acceleration is None else round_asked(acceleration))
    if acceleration is not None and remembered not in (None, R):
        raise InputError(
            f"{bound} was calibrated at acceleration {remembered:g}, not {acceleration}; use the "
            "bound of that acceleration"
        )
    outputs = loaded.outputs[k] if loaded.outputs.ndim == 4 else loaded.until(k)
    if calibrated.rounds == 1 and outputs.ndim == 3 and loaded.outputs.ndim == 3:
        outputs = outputs[-1]
    interval = calibrated(outputs)
    with whole_file(output) as partial, partial.open("w", newline="") as file:
        csv.writer(file).writerows(_rows(loaded, k, R, interval))
    say(str(calibrated))
    show(str(output))


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
    """Say how many calibration cases keep coverage near its target.

    Arguments:
        alpha: The error rate.
        epsilon: The deviation of coverage that is still acceptable.
        delta: The probability of a larger deviation.
        one_sided: Count only too little coverage as a deviation.
        group_size: The mean number of cases in a group, where cases come in groups.
        icc: The correlation of misses within a group.
        json: Write the record to this file, or to stdout for '-'.
    """
    from taskuq.calibration.law import calibration_size
    from taskuq.calibration.rank import cases_needed

    size = calibration_size(
        alpha, epsilon, delta, two_sided=not one_sided, group_size=group_size, icc=icc
    )
    least = cases_needed(alpha)
    if json != "-":
        sides = f"at least {1 - alpha - epsilon:g}" if one_sided else (
            f"between {1 - alpha - epsilon:g} and {min(1.0, 1 - alpha + epsilon):g}"
        )  # fmt: skip
        show(
            f"{size} calibration cases: then all but {delta:g} of calibration sets cover {sides} "
            f"of new cases ({least} give a finite interval at all)."
        )
    record = {
        "schema": "taskuq.plan-size/1", "alpha": alpha, "epsilon": epsilon, "delta": delta,
        "two_sided": not one_sided, "group_size": group_size, "icc": icc,
        "n_calibration": size, "n_finite": least,
    }  # fmt: skip
    hand_over(record, json)


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
    from taskuq.calibration import bound, joint

    readers: dict[str, bound.Reader[Bound | JointBound]] = {
        bound.SCHEMA: bound.Bound.from_dict,
        joint.SCHEMA: joint.JointBound.from_dict,
    }
    return bound.read_bound(path, readers)


def _require_as_asked(
    bound: Bound | JointBound, path: Path, alpha: float | None, score: str | None
) -> None:
    from taskuq.calibration.scores import score_name

    if alpha is not None and alpha != bound.guarantee.alpha:
        raise InputError(
            f"{path} was calibrated at alpha {bound.guarantee.alpha:g}, not {alpha:g}; calibrate "
            "again for that error rate"
        )
    name = score_name(bound.parts[0][0])
    if score is not None and score != name:
        raise InputError(f"{path} was calibrated with score {name}, not {score}; calibrate again")
