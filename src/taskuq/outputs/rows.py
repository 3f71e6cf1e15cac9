"""A table as rows for other programs: one for each case, round and task."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from taskuq.errors import InputError
from taskuq.files import whole_file
from taskuq.outputs.table import TaskOutputs


def write_rows(table: TaskOutputs, path: Path) -> Path:
    """Write a table as a CSV or Parquet file, as :func:`taskuq.outputs.foreign.read_foreign` reads.

    Columns are ``case, group, label, acceleration, round, task, target, output_0`` and so on, as
    far as the table has them.

    Arguments:
        table: The table.
        path: The file, ending in .csv or .parquet.

    Example:
        >>> import tempfile
        >>> table = TaskOutputs(rng.random((2, 3, 1)), rng.random(3), (8, 4), case=list("abc"))
        >>> path = write_rows(table, Path(tempfile.mkdtemp()) / "table.csv")
        >>> path.read_text().splitlines()[0].replace('"', "")
        'case,acceleration,target,output_0'
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    rounds, n, tasks = table.rounds, table.cases, table.tasks
    x = table.outputs if table.outputs.ndim == 4 else table.outputs[..., None]

    def of_case(values: np.ndarray) -> np.ndarray:
        return np.tile(np.repeat(values, tasks), rounds)

    columns = {"case": of_case(np.arange(n) if table.case is None else table.case)}
    for name in ("group", "label"):
        if getattr(table, name) is not None:
            columns[name] = of_case(getattr(table, name))
    if not np.isnan(table.accelerations).any():
        columns["acceleration"] = np.repeat(table.accelerations, n * tasks)
    if table.round_names is not None:
        columns["round"] = np.repeat(np.array(table.round_names), n * tasks)
    if table.task_names != ("task",):
        columns["task"] = np.tile(np.array(table.task_names), rounds * n)
    if table.has_targets:
        columns["target"] = np.stack([table.targets_at(k) for k in range(rounds)]).ravel()
    for p in range(table.samples):
        columns[f"output_{p}"] = x[:, :, p].ravel()
    if path.suffix == ".csv":
        _require_plain(columns)
    rows = pa.table({name: pa.array(values) for name, values in columns.items()})
    with whole_file(path) as partial:
        (pa.csv.write_csv if path.suffix == ".csv" else pq.write_table)(rows, partial)
    return path


def _require_plain(columns: dict[str, np.ndarray]) -> None:
    """Refuse names that a spreadsheet would run as a formula."""
    for name, values in columns.items():
        texts = np.unique(values) if values.dtype.kind in "US" else ()
        bad = [str(text) for text in texts if str(text).startswith(("=", "+", "-", "@", "\t"))]
        if bad:
            raise InputError(
                f"{name} {bad[0]!r:.40} would be run as a formula where a spreadsheet opens the "
                "file; save the table as .parquet"
            )
