"""Records of a run: JSON that says what it is, made here and read back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from taskuq.decide.simulation import Simulation, Stop
from taskuq.errors import InputError
from taskuq.evaluation.exact import Moments
from taskuq.evaluation.result import Evaluation, EvaluationRecord, Histogram, Stratum
from taskuq.files import number_from_json
from taskuq.report.figure import Figure

EXPERIMENT = "taskuq.experiment/1"
RUN = "taskuq.run/1"


def experiment_record(
    name: str,
    title: str,
    claim: str,
    finding: str,
    settings: Mapping[str, Any],
    figures: Sequence[Figure],
    tables: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the record of an experiment, which the report shows as one section.

    Arguments:
        name: A short name for files and links.
        title: The heading.
        claim: What the paper says, or what we say, in a sentence.
        finding: What the numbers say, in a sentence computed from them.
        settings: What decided the numbers; values that JSON can hold.
        figures: Figures as data.
        tables: Tables with ``name``, ``caption``, ``columns`` and ``rows``.

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
        "settings": plain(dict(settings)),
        "figures": [figure.to_dict() for figure in figures],
        "tables": [
            {
                "name": str(t["name"]),
                "caption": str(t["caption"]),
                "columns": [str(c) for c in t["columns"]],
                "rows": plain([list(row) for row in t["rows"]]),
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


def read_evaluation(record: Mapping[str, Any]) -> EvaluationRecord:
    """Read a record ``taskuq.evaluate/1`` back.

    Arguments:
        record: The JSON record.

    Example:
        >>> from taskuq.experiments.comparison import Comparison, compare
        >>> from taskuq.outputs.synthetic import SyntheticScanner, synthetic_outputs
        >>> table = synthetic_outputs(SyntheticScanner(volumes=8), seed=0)
        >>> found = compare(table, Comparison(trials=20, unit="case"))
        >>> read_evaluation(found.to_dict()).to_dict() == found.to_dict()
        True
    """
    return EvaluationRecord(
        tuple(_evaluation(one) for one in record["results"]), record.get("inputs", {})
    )


def _evaluation(one: Mapping[str, Any]) -> Evaluation:
    fields = dict(one)
    for name in ("coverage", "width", "center_error"):
        moments = {key: _number(value) for key, value in one[name].items()}
        fields[name] = Moments(**moments)
    for name in ("class_coverage", "size_coverage"):
        fields[name] = tuple(
            Stratum(str(s["name"]), _number(s["coverage"]), _number(s["cases"]), int(s["trials"]))
            for s in one.get(name, ())
        )
    histogram = one.get("histogram")
    if histogram is not None:
        fields["histogram"] = Histogram(
            covered=tuple(histogram["covered"]),
            trials=tuple(histogram["trials"]),
            expected=tuple(_number(v) for v in histogram["expected"]),
            p_value=_number(histogram["p_value"]),
            reading=str(histogram["reading"]),
        )
    return Evaluation(**fields)


def read_simulations(record: Mapping[str, Any]) -> list[tuple[int, Simulation]]:
    """Read a record ``taskuq.simulate/1`` back: numbers of samples, and what each policy did.

    Arguments:
        record: The JSON record.
    """
    found = []
    for one in record["results"]:
        fields = {key: value for key, value in one.items() if key != "samples"}
        for name, value in fields.items():
            if value is None and name != "statistic":
                fields[name] = math.nan
        fields["stops"] = tuple(
            Stop(_number(s["acceleration"]), _number(s["fraction"]), _number(s["coverage"]))
            for s in one["stops"]
        )
        for name in ("standard_errors", "sd"):
            fields[name] = {key: _number(value) for key, value in one[name].items()}
        found.append((int(one["samples"]), Simulation(**fields)))
    return found


def plain(value: Any) -> Any:
    """Return values that JSON can hold: arrays as lists, what is not finite as null.

    Example:
        >>> plain({"R": np.array([16.0, np.nan]), "n": np.int64(3)})
        {'R': [16.0, None], 'n': 3}
    """
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple | set):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | None) else str(value)


def _number(value: Any) -> float:
    return math.nan if value is None else number_from_json(value)
