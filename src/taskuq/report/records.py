"""Records of a run: JSON that says what it is, how it is made, and its numbers as tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from taskuq.errors import InputError
from taskuq.files import number_from_json
from taskuq.report.figure import Figure, drawable
from taskuq.report.tables import Table
from taskuq.words import round_label

RUN = "taskuq.run/1"
EXPERIMENT = "taskuq.experiment/1"
EVALUATE = "taskuq.evaluate/1"
SIMULATE = "taskuq.simulate/1"
QUALITY = "taskuq.quality/1"
TASK = "taskuq.task/1"
SPLIT = "taskuq.split/1"
MASKS = "taskuq.masks/1"
LINES = "taskuq.lines/1"
PLAN_SIZE = "taskuq.plan-size/1"
STATUS = "taskuq.status/1"
DATA_CHECK = "taskuq.data-check/1"
POLICY = "taskuq.policy/1"
BOUND = "taskuq.bound/1"
MONITOR = "taskuq.monitor/1"

Record = Mapping[str, Any]
# What a claim comes to.
HELD, IN_PART, NOT_HELD, NOT_MEASURED = "held", "held in part", "not held", "not measured"
VERDICTS = (HELD, IN_PART, NOT_HELD, NOT_MEASURED)
SUMMARY = "summary"
# A standard error below this is that of rounding.
ROUNDING = 1e-12


def experiment_record(
    name: str,
    title: str,
    claim: str,
    finding: str,
    settings: Mapping[str, Any],
    figures: Sequence[Figure],
    tables: Sequence[Mapping[str, Any]] = (),
    *,
    verdict: str | None = None,
    number: str | None = None,
) -> dict[str, Any]:
    """Return the record of an experiment, which the report shows as one section.

    Arguments:
        name: A short name for files and links.
        title: The heading.
        claim: What the paper says, or what we say, in a sentence.
        finding: What the numbers say, in at most two sentences computed from them.
        settings: What decided the numbers; values that JSON can hold.
        figures: Figures as data.
        tables: Tables with ``name``, ``caption``, ``columns`` and ``rows``; one that is called
            ``summary`` is shown first and the others folded.
        verdict: One of :data:`VERDICTS`; what a claim that was judged comes to.
        number: The one number to remember, in a few words.

    Example:
        >>> table = {"name": "t", "caption": "Widths.", "columns": ["R", "w"], "rows": [[8, 0.2]]}
        >>> record = experiment_record("width", "Widths", "They fall.", "They do.", {}, [], [table])
        >>> record["schema"], record["tables"][0]["rows"]
        ('taskuq.experiment/1', [[8, 0.2]])
    """
    for table in tables:
        require_table(table)
    return {
        "schema": EXPERIMENT,
        "name": str(name),
        "title": str(title),
        "claim": str(claim),
        "finding": str(finding),
        "verdict": verdict,
        "number": number,
        "settings": drawable(dict(settings)),
        "figures": [figure.to_dict() for figure in figures],
        "tables": [
            {
                "name": str(t["name"]),
                "caption": str(t["caption"]),
                "columns": [str(c) for c in t["columns"]],
                "rows": drawable([list(row) for row in t["rows"]]),
            }
            for t in tables
        ],
    }


def require_table(table: Any) -> None:
    """Refuse a table whose rows do not fit its columns."""
    if not isinstance(table, Mapping) or not {"name", "caption", "columns", "rows"} <= set(table):
        raise InputError(
            f"a table needs name, caption, columns and rows, got {table!s:.60}; give all four"
        )
    columns = len(table["columns"])
    for row in table["rows"]:
        if len(row) != columns:
            raise InputError(
                f"table {table['name']!r:.40} has {columns} columns and a row of {len(row)}; give "
                "each row one value per column"
            )


def number(value: Any) -> float:
    """Read a number of a record: null where there is none, infinity as a word.

    Example:
        >>> number(0.5), number("inf"), number(None)
        (0.5, inf, nan)
    """
    return math.nan if value is None else number_from_json(value)


def round_called(record: Record, acceleration: float) -> str:
    """Return what a round of an evaluation or a simulation is called.

    Example:
        >>> round_called({"inputs": {"round_names": {"16": "12 views"}}}, 16.0)
        '12 views'
        >>> round_called({}, 16.0)
        'R = 16'
    """
    inputs = record.get("inputs")
    names = inputs.get("round_names") if isinstance(inputs, Mapping) else None
    known = names if isinstance(names, Mapping) else {}
    return round_label(acceleration, known.get(f"{acceleration:g}"))


def policy_name(row: Record) -> str:
    """Return what to call a policy: its kind, its score or statistic, its budget, its condition.

    Example:
        >>> policy_name({"policy": "paper", "score": "lwr", "statistic": None, "budget": 1.0})
        'paper lwr'
    """
    budget = "" if row["budget"] == 1 else f" {row['budget']:g}"
    given = f" given {row['given']}" if row.get("given") else ""
    return f"{row['policy']} {row['statistic'] or row['score']}{budget}{given}"


def has_several_tasks(record: Record) -> bool:
    """Whether a simulation is of several tasks, whose widths may have units of their own.

    Example:
        >>> has_several_tasks({"inputs": {"task_names": ["lesion", "area"]}})
        True
    """
    inputs, goal = record.get("inputs"), record.get("goal")
    names = inputs.get("task_names") if isinstance(inputs, Mapping) else None
    # Records of earlier revisions name tasks where each has a goal of its own.
    goals = goal.get("tasks") if isinstance(goal, Mapping) else None
    return len(names or goals or ()) > 1


def score_table(record: Record, name: str) -> Table:
    """Return coverage and width of every score of an evaluation ``taskuq.evaluate/1``."""
    rows = record["results"]
    first = rows[0]
    several = len({r.get("task") for r in rows}) > 1
    how = "all splits at once, exactly"
    how = how if first["trials"] is None else f"{first['trials']} random splits"
    caption = (
        f"Scores judged over {how}, by {first['unit']}: {first['n_calibration']} to calibrate and "
        f"{first['n_test']} to test. Coverage, of {first['coverage_of']}, is guaranteed to be at "
        f"least {1 - first['alpha']:g} on average; widths are measured, for {first['mean_over']}."
    )
    named = any(r.get("round_name") for r in rows)
    head: tuple[str, ...] = (
        "round" if named else "R", "score", "p", "coverage", "coverage sd", "coverage of cases",
        "width", "width sd", "centre error", "infinite",
    )  # fmt: skip
    body: list[tuple[Any, ...]] = [
        (
            (r.get("round_name") if named else None) or r["acceleration"],
            r["score"], r["samples"], number(r["coverage"]["mean"]),
            number(r["coverage"]["sd"]), number(r["case_coverage"]["mean"]),
            number(r["width"]["mean"]), number(r["width"]["sd"]),
            number(r["center_error"]["mean"]), r["infinite"],
        )
        for r in rows
    ]  # fmt: skip
    if several:
        head = ("task", *head)
        body = [(r["task"], *row) for r, row in zip(rows, body, strict=True)]
    return Table(name, caption, head, tuple(body))


def policy_table(record: Record, name: str) -> Table:
    """Return what each policy of a simulation ``taskuq.simulate/1`` did.

    The record also says in words ``until`` when scans go on.
    """
    first = record["results"][0]
    of = first["mean_over"]
    others = "" if of == first["coverage_of"] else f" for {of}"
    caption = (
        f"Stopping rules over {first['trials']} random splits by {first['unit']}, until "
        f"{record['until']}. Coverage {1 - first['alpha']:g} of {first['coverage_of']} is "
        f"guaranteed where it says so; all else is measured{others}, ± is one standard error."
    )
    widths: tuple[tuple[str, str], ...] = (("width", "width"), ("centre error", "center_error"))
    if has_several_tasks(record):
        # A mean over tasks, or the widest of them, would mix their units.
        widths = ()
        caption += (
            " Widths and centre errors have the units of their tasks: they stand task by task."
        )
    if record.get("choosing") and len(record["results"]) > 1:
        caption += f" {record['choosing']}"
    rates = tuple(
        "went to the end"
        if s["acceleration"] == 1
        else f"stopped at {round_called(record, s['acceleration'])}"
        for s in first["stops"]
    )
    head = (
        "policy", "promise", "p", "average R", "± R", "average R by case", "coverage",
        "± coverage", "coverage of cases", "coverage of early stops", "stopped early",
        *(column for column, _ in widths), *rates,
    )  # fmt: skip
    measured = ("case_coverage", "coverage_early", "early", *(what for _, what in widths))
    rows = tuple(
        (
            policy_name(r), "guaranteed" if r["guaranteed"] else "measured", int(r["samples"]),
            number(r["mean_acceleration"]), _error(r, "mean_acceleration"),
            number(r["mean_acceleration_of_cases"]), number(r["coverage"]), _error(r, "coverage"),
            *(number(r[what]) for what in measured), *(number(s["fraction"]) for s in r["stops"]),
        )
        for r in record["results"]
    )  # fmt: skip
    return Table(name, caption, head, rows)


def _error(row: Record, name: str) -> float:
    """A standard error; what rounding leaves of none is none."""
    found = number(row["standard_errors"][name])
    return 0.0 if abs(found) < ROUNDING else found


def quality_table(record: Record, name: str) -> Table:
    """Return the image quality of recoveries, of a record ``taskuq.quality/1``."""
    rows = tuple(
        (
            # A volume that is recovered exactly leaves its row without a mean PSNR.
            float(row["acceleration"]), str(row["method"]), number(row["psnr"]["mean"]),
            row["psnr"]["standard_error"], number(row["ssim"]["mean"]),
            row["ssim"]["standard_error"], row.get("fid"), row.get("volumes"),
        )
        for row in record["results"]
    )  # fmt: skip
    return Table(
        name,
        "Image quality of whole volumes; errors are standard errors over volumes. Measured.",
        ("R", "method", "PSNR", "± PSNR", "SSIM", "± SSIM", "FID", "volumes"),
        rows,
    )


def task_table(record: Record, name: str) -> Table:
    """Return how good a task network is, of a record ``taskuq.task/1``."""
    measures = ("auroc", "accuracy", "precision", "recall", "robust_accuracy", "error")
    rows = [(part, row) for part, of in record["parts"].items() for row in of]
    kept = [m for m in measures if any(row.get(m) is not None for _, row in rows)]
    return Table(
        name,
        "The task network on patients it did not learn from. Measured.",
        ("part", "task", "cases", "groups", *(m.replace("_", " ") for m in kept)),
        tuple(
            (part, str(row["task"]), row["cases"], row["groups"], *(row.get(m) for m in kept))
            for part, row in rows
        ),
    )
