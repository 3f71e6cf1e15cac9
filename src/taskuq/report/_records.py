"""Stored records of a run, and the tables made from them."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from taskuq._io import SEAL, atomic_write, load_json, number_from_json, verify_checksum
from taskuq.conformal._exact import is_below
from taskuq.errors import InputError
from taskuq.policy._goal import goal_from_dict
from taskuq.report._explorer import Explorer, load_explorer
from taskuq.report.figures import FIGURES, Figure, plain_values
from taskuq.table._parquet import HEADER
from taskuq.table._table import TaskOutputs
from taskuq.table._terminology import round_label

RUN = "taskuq.run/1"
EXPERIMENT = "taskuq.experiment/1"
EVALUATE = "taskuq.evaluate/1"
DIAGNOSE = "taskuq.diagnose/1"
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
SUPPORTED, PARTLY_SUPPORTED = "supported", "partly supported"
NOT_SUPPORTED, NOT_TESTED = "not supported", "not tested"
VERDICTS = (SUPPORTED, PARTLY_SUPPORTED, NOT_SUPPORTED, NOT_TESTED)
SUMMARY = "summary"
ACRONYMS = ("psnr", "ssim", "roc", "ar", "lwr", "cqr", "mlwr")
ROUNDING = 1e-12  # standard errors below it


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
    criterion: str | None = None,
) -> dict[str, Any]:
    """Return the record of an experiment, one section of the report.

    Args:
        name: Short name for files and links.
        title: Heading of the section.
        claim: Claim, in one sentence.
        finding: Finding, in at most two sentences computed from the results.
        settings: Settings of the experiment as JSON values.
        figures: Figures as data.
        tables: Tables with ``name``, ``caption``, ``columns`` and ``rows``; one called ``summary``
            is shown first, the others collapsed.
        verdict: 'supported', 'partly supported', 'not supported' or 'not tested'.
        number: Key number, in a few words.
        criterion: Criterion of the verdict, in one sentence.

    Example:
        >>> table = {"name": "t", "caption": "Widths.", "columns": ["R", "w"], "rows": [[8, 0.2]]}
        >>> record = experiment_record("width", "Widths", "They fall.", "They do.", {}, [], [table])
        >>> record["schema"], record["tables"][0]["rows"]
        ('taskuq.experiment/1', [[8, 0.2]])
    """
    for table in tables:
        _require_table(table)
    return {
        "schema": EXPERIMENT,
        "name": str(name),
        "title": str(title),
        "claim": str(claim),
        "finding": str(finding),
        "verdict": verdict,
        "number": number,
        "criterion": criterion,
        "settings": plain_values(dict(settings)),
        "figures": [figure.to_dict() for figure in figures],
        "tables": [
            {"name": str(t["name"]), "caption": str(t["caption"]),
             "columns": [str(c) for c in t["columns"]],
             "rows": plain_values([list(row) for row in t["rows"]])}
            for t in tables
        ],
    }  # fmt: skip


def _require_table(table: Any) -> None:
    """Raise InputError if the rows of a table do not match its columns."""
    if not isinstance(table, Mapping) or not {"name", "caption", "columns", "rows"} <= set(table):
        text = f"a table needs name, caption, columns and rows, got {table!s:.60}"
        raise InputError(text, code="file.format")
    columns = len(table["columns"])
    if lengths := {len(row) for row in table["rows"]} - {columns}:
        text = f"table {table['name']!r:.40} has {columns} columns and a row of {min(lengths)}"
        raise InputError(text, code="shape.mismatch")


def number(value: Any) -> float:
    """Convert a JSON value to a float: None to NaN, and the text 'inf' to infinity."""
    return math.nan if value is None else number_from_json(value)


def round_called(record: Record, acceleration: float) -> str:
    inputs = record.get("inputs")
    names = inputs.get("round_names") if isinstance(inputs, Mapping) else None
    known = names if isinstance(names, Mapping) else {}
    return round_label(acceleration, known.get(f"{acceleration:g}"))


def policy_name(row: Record) -> str:
    """Return a name made of a policy's kind, score or statistic, budget and condition."""
    budget = "" if row["budget"] == 1 else f" {row['budget']:g}"
    given = f" given {row['given']}" if row.get("given") else ""
    return f"{row['policy']} {row['statistic'] or row['score']}{budget}{given}"


class Part(NamedTuple):
    """Coverage, width and acceleration within a class or a site."""

    name: str
    cases: float
    coverage: float
    error: float
    width: float
    acceleration: float

    def is_below(self, alpha: float) -> bool:
        return is_below(self.coverage, self.error, alpha)


def parts_of(row: Record, kind: str) -> list[Part]:
    """Return coverage, width and acceleration within each class or site of a result."""
    return [
        Part(
            str(part.get(kind.partition("_")[0], part.get("name"))),
            *(number(part.get(name)) for name in
              ("cases", "coverage", "standard_error", "width", "mean_acceleration")),
        )
        for part in row.get(kind if kind == "site_left_out" else f"{kind}_coverage") or ()
    ]  # fmt: skip


def _parts_table(record: Record, name: str, what: str, kinds: Mapping[str, str]) -> list[Table]:
    """Return a list with a table of coverage by class and site; empty if there are none."""
    is_stop = record["schema"] == SIMULATE
    several = any(row.get("task") is not None for row in record["results"])
    rows: list[dict[str, Any]] = []
    for row in record["results"]:
        method = {"policy": policy_name(row)} if is_stop else {
            **({"task": row["task"]} if several else {}),
            "round": row.get("round_name") or row["acceleration"], "score": str(row["score"]),
        }  # fmt: skip
        rows += [
            {
                **method, "p": row["samples"], "by": called, "name": part.name,
                "cases": part.cases, "coverage": part.coverage, "± coverage": part.error,
                **({"average R": part.acceleration} if is_stop else {}),
                "early width" if is_stop else "width": part.width,
                "below": part.is_below(number(row["alpha"])),
            }
            for kind, called in kinds.items()
            for part in parts_of(row, kind)
        ]  # fmt: skip
    target = 1 - number(record["results"][0]["alpha"])
    caption = (
        f"{what} Measured, not guaranteed; ± is one standard error over groups, or over cases "
        f"without groups. Below: coverage is less than {target:g} by more than two standard errors."
    )
    return [_table_of(name, caption, rows)] if rows else []


def _table_of(name: str, caption: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table from rows, each a mapping from column names to values."""
    columns = tuple(rows[0]) if rows else ()
    return Table(name, caption, columns, tuple(tuple(row.values()) for row in rows))


PARTS = {"class": "class", "site": "site"}


def has_several_tasks(record: Record) -> bool:
    inputs, goal = record.get("inputs"), record.get("goal")
    names = inputs.get("task_names") if isinstance(inputs, Mapping) else None
    # Records of earlier revisions name tasks only if each has its own goal.
    goals = goal.get("tasks") if isinstance(goal, Mapping) else None
    return len(names or goals or ()) > 1


def _score_tables(record: Record, name: str) -> tuple[Table, ...]:
    left_out = "Coverage of each site after calibration on all other sites."
    return (
        _score_table(record, name),
        *_parts_table(record, f"{name}-parts", "Coverage and width by class and site.", PARTS),
        *_parts_table(record, f"{name}-left-out", left_out, {"site_left_out": "site left out"}),
    )


def _score_table(record: Record, name: str) -> Table:
    rows = record["results"]
    first = rows[0]
    several = len({r.get("task") for r in rows}) > 1
    splits = first["trials"]
    how = "all splits at once, exactly" if splits is None else f"{splits} random splits"
    caption = (
        f"Scores over {how} by {first['unit']}: {first['n_calibration']} to calibrate, "
        f"{first['n_test']} to test. Coverage of {first['coverage_of']} is guaranteed to be at "
        f"least {1 - first['alpha']:g} on average; widths are measured, for {first['mean_over']}. "
        "± is one standard deviation over splits."
    )
    named = any(r.get("round_name") for r in rows)
    body = [
        {
            **({"task": r["task"]} if several else {}),
            "round" if named else "R": r.get("round_name") or r["acceleration"],
            "score": r["score"], "p": r["samples"], "coverage": number(r["coverage"]["mean"]),
            "± coverage": number(r["coverage"]["sd"]),
            "coverage of cases": number(r["case_coverage"]["mean"]),
            "width": number(r["width"]["mean"]), "± width": number(r["width"]["sd"]),
            "centre error": number(r["center_error"]["mean"]), "infinite": r["infinite"],
        }
        for r in rows
    ]  # fmt: skip
    return _table_of(name, caption, body)


def _policy_tables(record: Record, name: str) -> tuple[Table, ...]:
    """Return tables of policies: coverage and acceleration, and the rounds in which scans stop."""
    first = record["results"][0]
    of = first["mean_over"]
    others = "" if of == first["coverage_of"] else f" for {of}"
    goal = goal_from_dict(record["goal"]).statement
    caption = (
        f"Stopping rules over {first['trials']} random splits by {first['unit']}, until {goal}. "
        f"Coverage {1 - first['alpha']:g} of {first['coverage_of']} is guaranteed where marked; "
        f"everything else is measured{others}, ± one standard error."
    )
    widths: tuple[tuple[str, str], ...] = (("width", "width"), ("centre error", "center_error"))
    if has_several_tasks(record):
        # A mean over tasks, or the widest of them, would mix their units.
        widths = ()
        caption += (
            " Widths and centre errors have the units of their tasks: see the table task by task."
        )
    if record.get("choosing") and len(record["results"]) > 1:
        caption += f" {record['choosing']}"
    rows = [
        {
            "policy": policy_name(r), "guarantee": "guaranteed" if r["guaranteed"] else "measured",
            "p": int(r["samples"]), "average R": number(r["mean_acceleration"]),
            "± R": _error(r, "mean_acceleration"), "coverage": number(r["coverage"]),
            "± coverage": _error(r, "coverage"),
            "coverage of early stops": number(r["coverage_early"]),
            "stopped early": number(r["early"]),
            **{column: number(r[what]) for column, what in widths},
        }
        for r in record["results"]
    ]  # fmt: skip
    shares = [
        {
            "policy": policy_name(r), "p": int(r["samples"]),
            **{
                "measured in full" if s["acceleration"] == 1
                else f"stopped at {round_called(record, s['acceleration'])}": number(s["fraction"])
                for s in r["stops"]
            },
            "average R by case": number(r["mean_acceleration_of_cases"]),
            "coverage of cases": number(r["case_coverage"]),
        }
        for r in record["results"]
    ]  # fmt: skip
    what = "Fraction of cases that stop in each round, and means over cases."
    return (
        _table_of(name, caption, rows),
        _table_of(f"{name}-stops", what, shares),
        *_parts_table(record, f"{name}-parts", "Scans by class and site.", PARTS),
    )


def _error(row: Record, name: str) -> float:
    """Return the standard error of a quantity, or 0 if only rounding makes it non-zero."""
    found = number(row["standard_errors"][name])
    return 0.0 if abs(found) < ROUNDING else found


def _sample_table(record: Record, name: str) -> Table:
    results, p = record["results"], int(record["samples"])
    has_tasks, has_classes = (any(r[of] is not None for r in results) for of in ("task", "label"))

    def estimate(column: str, of: Record) -> dict[str, float]:
        return {column: number(of["value"]), f"± {column.split()[0]}": number(of["se"])}

    rows = [
        {
            **({"task": r["task"]} if has_tasks else {}), "round": str(r["round"] or "–"),
            **({"class": r["label"] or "all"} if has_classes else {}), "cases": int(r["n"]),
            **estimate("CRPS", r["crps"]), **estimate("outside all samples", r["outside"]),
            "outside if calibrated": number(r["outside"]["expected"]),
            **estimate("spread over error", r["spread_over_error"]), **estimate("bias", r["bias"]),
            "samples are": r["verdict"],
        }
        for r in results
    ]  # fmt: skip
    caption = (
        f"Posterior samples compared with the truth, ± one standard error over {record['unit']}s. "
        f"Calibrated samples leave {2 / (p + 1):.3g} of the truths outside all {p} samples, their "
        "spread over error is 1 and their bias 0. Measured."
    )
    return _table_of(name, caption, rows)


def _quality_table(record: Record, name: str) -> Table:
    rows = [
        {
            # A volume that is reconstructed exactly has no finite PSNR.
            "R": float(row["acceleration"]), "method": str(row["method"]),
            "PSNR": number(row["psnr"]["mean"]), "± PSNR": row["psnr"]["standard_error"],
            "SSIM": number(row["ssim"]["mean"]), "± SSIM": row["ssim"]["standard_error"],
            "FID": row.get("fid"), "volumes": row.get("volumes"),
        }
        for row in record["results"]
    ]  # fmt: skip
    caption = "Image quality of whole volumes; errors are standard errors over volumes. Measured."
    return _table_of(name, caption, rows)


def _network_table(record: Record, name: str) -> Table:
    measures = ("auroc", "accuracy", "precision", "recall", "robust_accuracy", "error")
    rows = [(part, row) for part, of in record["parts"].items() for row in of]
    kept = [m for m in measures if any(row.get(m) is not None for _, row in rows)]
    body = [
        {
            "part": part, "task": str(row["task"]), "cases": row["cases"], "groups": row["groups"],
            **{m.replace("_", " "): row.get(m) for m in kept},
        }
        for part, row in rows
    ]  # fmt: skip
    return _table_of(name, "The task network on groups it was not trained on. Measured.", body)


# A spreadsheet runs a cell that starts with one of these as a formula.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "∞": r"$\infty$", "±": r"$\pm$", "–": "--",
    "−": "$-$", "α": r"$\alpha$", "τ": r"$\tau$", "\n": " ", "\r": " ",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Table of unformatted values, with a caption."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def shown(value: Any) -> str:
    """Format a value with three significant digits; only an exact 1 is printed as 1."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if math.isinf(value):
            return "∞" if value > 0 else "-∞"
        text = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        return text if text != "1" or value >= 1 else f"{value:.4g}"
    return str(value)


def two_digits(value: float) -> str:
    """Format an uncertainty with two significant digits."""
    return f"{float(f'{value:.2g}'):g}"


def figure_table(figure: Figure) -> Table:
    if figure.is_strip:
        marks = tuple((s.name, sum(map(bool, s.y)), len(s.y)) for s in figure.series)
        return Table(figure.name, figure.caption, ("series", "marked", "of"), marks)
    has_error = any(series.error for series in figure.series)
    columns = ("series", figure.x_label, figure.y_label, *(("±",) if has_error else ()))
    points = tuple(
        (series.name, x, series.y[i], *((series.error and series.error[i],) if has_error else ()))
        for series in figure.series
        for i, x in enumerate(series.x)
    )
    return Table(figure.name, figure.caption, columns, points)


def cell(value: Any) -> str:
    """Format a CSV cell with all digits; prevent text from being read as a formula."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return repr(value)
    text = str(value)
    return f"'{text}" if text.lstrip(" ").startswith(FORMULA) else text


def csv_text(table: Table) -> str:
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow([cell(str(column)) for column in table.columns])
    writer.writerows([cell(value) for value in row] for row in table.rows)
    return file.getvalue()


def write_csv(path: Path, table: Table) -> Path:
    with atomic_write(path) as partial:
        partial.write_text(csv_text(table), encoding="utf-8-sig", newline="")
    return path


def _escaped(text: str) -> str:
    """Escape text for LaTeX."""
    return "".join(SPECIAL.get(c, c) for c in text)


def latex_table(table: Table) -> str:
    """Return a table as LaTeX (package booktabs)."""
    count = len(table.columns)
    words = [k == 0 or any(isinstance(row[k], str) for row in table.rows) for k in range(count)]
    kinds = "".join("l" if word else "r" for word in words)
    head = " & ".join(map(_escaped, table.columns))
    body = [" & ".join(_escaped(shown(v)) for v in row) + r" \\" for row in table.rows]
    return "\n".join([
        rf"\begin{{table}}\caption{{{_escaped(table.caption)}}}\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{kinds}}}\toprule", rf"{head} \\\midrule", *body,
        r"\bottomrule\end{tabular}", r"\end{table}",
    ])  # fmt: skip


# Records of the report without figures; unknown ones are listed by name.
SHOWN = (EXPERIMENT, STATUS, DATA_CHECK, POLICY, BOUND)
# Written by the report itself.
NOT_RESULTS = ("figures", "exports", "report.html")
LARGEST_RECORD = 200_000_000
T = TypeVar("T")


@dataclass(frozen=True)
class StoredRecord:
    path: str
    schema: str
    record: dict[str, Any]


@dataclass(frozen=True)
class RunFolder:
    """Results in the folder of a run."""

    path: Path
    run: dict[str, Any] = field(default_factory=dict)
    records: tuple[StoredRecord, ...] = ()
    others: tuple[tuple[str, str], ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()
    unchecked: tuple[str, ...] = ()
    table: TaskOutputs | None = None
    table_path: str | None = None
    explorer: Explorer | None = None

    def of(self, schema: str) -> list[StoredRecord]:
        return [found for found in self.records if found.schema == schema]


def read_folder(path: Path) -> RunFolder:
    """Read the folder of a run; unreadable files are listed and raise no error."""
    if not path.is_dir():
        text = f"there is no folder {path}; pass the folder of a run"
        raise InputError(text, code="file.missing")
    unreadable: list[tuple[str, str]] = []
    run: dict[str, Any] = {}
    records, others, unchecked = [], [], []
    shown = {*SHOWN, *(FIGURES[name].schema for name in FIGURES)}
    for file in _json_files(path):
        record, name = _tried(_read, file, path, unreadable), file.relative_to(path).as_posix()
        if record is None:
            continue
        schema = str(record.get("schema") or "no schema")
        if record.pop(SEAL, None) is None:
            unchecked.append(name)
        if schema == RUN:
            run = run or record
        elif schema in shown:
            records.append(StoredRecord(name, schema, record))
        else:
            others.append((name, schema))
    table, table_path = _table(path, unreadable)
    explorer = path / "explorer.npz"
    found = _tried(load_explorer, explorer, path, unreadable) if explorer.exists() else None
    return RunFolder(
        path, run, tuple(records), tuple(others), tuple(unreadable), tuple(unchecked), table,
        table_path, found,
    )  # fmt: skip


def _tried(
    read: Callable[[Path], T], file: Path, path: Path, unreadable: list[tuple[str, str]]
) -> T | None:
    """Read a file, or record the reason why it is unreadable."""
    try:
        return read(file)
    except InputError as error:
        name, reason = file.relative_to(path).as_posix(), str(error).replace(str(path), ".")
        unreadable.append((name, reason))
        return None


def _json_files(path: Path) -> list[Path]:
    tables = {header.parent for header in path.rglob(HEADER)}
    return [
        file
        for file in sorted(path.rglob("*.json"))
        if file.relative_to(path).parts[0] not in NOT_RESULTS and tables.isdisjoint(file.parents)
    ]


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise InputError("is not a regular file; remove it", code="file.format")
    try:
        if file.stat().st_size > LARGEST_RECORD:
            raise InputError("is too large; remove it from the folder", code="file.format")
        record = load_json(file)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", code="file.format") from None
    except (ValueError, RecursionError):
        raise InputError("is not JSON, or it is truncated", code="file.format") from None
    if not isinstance(record, dict):
        raise InputError("holds no record; write it again", code="file.format")
    if SEAL in record:
        verify_checksum(record, file)
    return record


def _table(path: Path, unreadable: list[tuple[str, str]]) -> tuple[TaskOutputs | None, str | None]:
    """Return the table of task outputs found in a run's folder, and its relative path."""
    candidates = [path / "table", path / "table.npz"]
    candidates += sorted(header.parent for header in path.glob(f"*/{HEADER}"))
    candidates += sorted(p for p in path.glob("*.npz") if p.name != "explorer.npz")
    for candidate in dict.fromkeys(candidates):
        if candidate.exists() and candidate.name not in NOT_RESULTS:
            table = _tried(TaskOutputs.load, candidate, path, unreadable)
            if table is not None:
                return table, candidate.relative_to(path).as_posix()
    return None, None


def slug(text: str) -> str:
    """Return a text as a file or link name of letters, digits and hyphens only."""
    plain = "".join(c if c.isascii() else f"x{ord(c):x}" for c in text.lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:80] or "unnamed"


def title_of(name: str) -> str:
    words = name.replace("_", "-").split("-")
    words = [word.upper() if word in ACRONYMS else word for word in words]
    words = [re.sub(r"^R(\d+(\.\d+)?)$", r"R = \1", word) for word in words]
    text = " ".join(words).replace(" R = ", ", R = ")
    text = re.sub(r"(R = [\d.]+) ", r"\1, ", text)
    return text[:1].upper() + text[1:]
