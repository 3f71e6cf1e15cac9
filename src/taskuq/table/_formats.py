"""Tables as npz files, as CSV or Parquet rows, and as data frames."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from taskuq._arrays import ranges_to_json
from taskuq._io import atomic_write, open_npz, parse_json
from taskuq.errors import InputError, first_line, import_extra
from taskuq.interval import FloatArray
from taskuq.table._parquet import identities, index_of, to_numpy
from taskuq.table._table import IDS, TaskOutputs, replace_arrays

# Names in an .npz file, and fields of the table.
ARRAYS = {
    "outputs": "outputs", "targets": "targets", "accelerations": "accelerations",
    **{name: name for name in IDS}, "round_names": "round_names", "lines": "sampled_lines",
}  # fmt: skip
ATTRIBUTES = "attributes"


def _join_tasks(tables: Mapping[str, TaskOutputs]) -> TaskOutputs:
    names, first = list(tables), next(iter(tables.values()))
    for name, table in tables.items():
        shapes = [(t.rounds, t.samples, t.round_labels) for t in (first, table)]
        if table.tasks > 1 or shapes[0] != shapes[1]:
            message = f"tasks {names[0]} and {name} differ in rounds or samples"
            raise InputError(message, code="samples.mismatch")
        if first.has_targets != table.has_targets:
            message = f"only one of {names[0]} and {name} has targets"
            raise InputError(message, code="targets.missing")
    places = [{case: k for k, case in enumerate(_ids(table).tolist())} for table in tables.values()]
    shared = [case for case in places[0] if all(case in place for place in places)]
    if not shared:
        message = f"no case has all tasks {', '.join(names)}; check the column case"
        raise InputError(message, code="table.incomplete")
    parts = [
        table.select(cases=[place[case] for case in shared])
        for table, place in zip(tables.values(), places, strict=True)
    ]
    for kind in ("group", "site", "label"):
        for part, name in zip(parts, names, strict=True):
            # array_equal(None, None) is True.
            if not np.array_equal(getattr(parts[0], kind), getattr(part, kind)):
                message = f"tasks {names[0]} and {name} differ in the {kind} of a case"
                raise InputError(message, code="table.duplicate")
    by_round = any(part.has_round_targets for part in parts)
    targets = [
        np.stack([part.targets_at(k) for k in range(part.rounds)]) if by_round else part.targets
        for part in parts
    ]
    missing = {str(case) for place in places for case in place.keys() - set(shared)}
    return TaskOutputs(
        np.stack([part.outputs for part in parts], axis=-1),
        np.stack(targets, axis=-1) if first.has_targets else None,
        first.accelerations,
        **{name: getattr(parts[0], name) for name in IDS}, task_names=names,
        task_range=tuple(part.task_range for part in parts), round_names=first.round_names,
        provenance=first.provenance, sampled_lines=parts[0].sampled_lines,
        missing_cases=sorted(missing.union(*(part.missing_cases for part in parts))),
    )  # fmt: skip


def _ids(table: TaskOutputs) -> np.ndarray:
    return np.arange(table.cases) if table.case is None else table.case


def read_rows_file(path: Path) -> TaskOutputs:
    try:
        if path.suffix == ".csv":
            # "007" is a name, not a number.
            kinds = dict.fromkeys(("case", "group", "site", "task", "round"), pa.string())
            convert = pa.csv.ConvertOptions(column_types=kinds)
            rows = pa.csv.read_csv(path, convert_options=convert)
        else:
            rows = pq.read_table(path, partitioning=None)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        message = f"{path} cannot be read as a table ({first_line(error):.120})"
        raise InputError(message, code="file.format") from None
    return _read_rows(rows, path.name)


def read_frame(frame: Any) -> TaskOutputs:
    # Trees of xarray have variables of their own, which are none here.
    if len(getattr(frame, "data_vars", ())):
        return _read_dataset(frame)
    if any(name in getattr(frame, "children", ()) or hasattr(frame, name) for name in SAMPLED):
        return _read_inference_data(frame)
    try:
        rows = pa.table(frame)
    except (pa.ArrowException, ValueError, TypeError, AttributeError) as error:
        message = f"{type(frame).__name__} is not a data frame ({first_line(error):.80})"
        raise InputError(message, code="dtype.invalid") from None
    return _read_rows(rows, "the data frame")


def _read_rows(rows: Any, source: str) -> TaskOutputs:
    columns = rows.column_names
    if rows.num_rows == 0:
        raise InputError(f"{source} has no rows; check the file", code="table.incomplete")
    if len(set(columns)) != len(columns):
        raise InputError(f"{source} has two columns with the same name", code="table.duplicate")
    if "case" not in columns:
        message = f"{source} has no column case, only {', '.join(columns)[:120]}; rename or add it"
        raise InputError(message, code="table.column")
    if "task" not in columns:
        return _Rows(rows, source).table(source)
    task = identities(rows["task"], "task", source)
    tables = {}
    for name in task.unique():
        if name.as_py() == "":
            raise InputError(f"{source} has rows without a task; name each", code="table.column")
        some = _Rows(rows.filter(pc.equal(task, name)), f"{source} of task {name}")
        tables[str(name)] = some.table(source)
    return _join_tasks(tables)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of a file or data frame with one task, before they are pivoted into arrays."""

    rows: Any
    source: str

    def __contains__(self, name: str) -> bool:
        return name in self.rows.column_names

    def numbers(self, name: str) -> FloatArray:
        return _numbers(self.rows[name].combine_chunks(), name, self.source)

    def ids(self, name: str) -> np.ndarray:
        return to_numpy(identities(self.rows[name], name, self.source, floats=True), name)

    def table(self, source: str) -> TaskOutputs:
        cases = identities(self.rows["case"], "case", self.source)
        unique = cases.unique()
        case, names = index_of(cases, unique).astype(np.int64), to_numpy(unique, "case")
        rates, round = np.full(1, np.nan), np.zeros(len(case), dtype=np.int64)
        if "acceleration" in self:
            rates, round = np.unique(-self.numbers("acceleration"), return_inverse=True)
            rates, round = -rates, round.ravel()
        n, rounds = len(names), len(rates)
        place, x = self._outputs(case * rounds + round)
        filled = np.zeros((rounds, n, x.shape[1]), dtype=x.dtype)
        filled[place % rounds, place // rounds] = x
        there = np.zeros(n * rounds, dtype=bool)
        there[place] = True
        complete = there.reshape(n, rounds).all(axis=1)
        if not complete.any():
            raise InputError(f"{self.source} has no complete case", code="table.incomplete")
        targets = self._entries("target", round * n + case, rounds * n)
        if targets is not None:
            targets = targets.reshape(rounds, n)[:, complete]
            targets = targets[0] if (targets == targets[0]).all() else targets
        ids: dict[str, Any] = {
            name: self._entries(name, case, n) for name in ("group", "site", "label")
        }
        round_names = self._entries("round", round, rounds)
        return TaskOutputs(
            filled[:, complete], targets, rates, case=names[complete],
            **{name: v if v is None else v[complete] for name, v in ids.items()},
            round_names=None if round_names is None else tuple(map(str, round_names)),
            provenance={"source": source}, missing_cases=[str(name) for name in names[~complete]],
        )  # fmt: skip

    def _entries(self, name: str, index: np.ndarray, count: int) -> np.ndarray | None:
        """Return the value of a column for each index; raise InputError if two rows disagree."""
        if name not in self:
            return None
        values = self.numbers(name) if name == "target" else self.ids(name)
        entries = np.zeros(count, dtype=values.dtype)
        entries[index] = values
        if (entries[index] != values).any():
            of = "acceleration" if name == "round" else "case"
            message = f"{self.source} has two values of {name} for one {of}"
            raise InputError(message, code="table.duplicate")
        return entries

    def _outputs(self, place: np.ndarray) -> tuple[np.ndarray, FloatArray]:
        """Return the distinct case-and-round indices in ``place``, and outputs (index, sample)."""
        if "sample" in self:
            return self._sampled_outputs(place)
        if len(np.unique(place)) != len(place):
            if "round" in self and "acceleration" not in self:
                message = f"{self.source} has rounds without a column acceleration; add it"
                raise InputError(message, code="rounds.invalid")
            message = f"{self.source} repeats a case and round; keep one row, or add a column task"
            raise InputError(message, code="table.duplicate")
        if "outputs" in self:
            return place, self._lists()
        matches = (re.fullmatch(r"output_(\d{1,9})", name) for name in self.rows.column_names)
        numbered = {int(m[1]): m[0] for m in matches if m}
        if "output" in self and not numbered:
            return place, self.numbers("output")[:, None]
        if not numbered or "output" in self:
            text = f"{self.source} needs columns output_0, output_1, ..., or sample and output"
            raise InputError(text, code="table.column")
        return place, np.stack([self.numbers(numbered[k]) for k in sorted(numbered)], axis=1)

    def _sampled_outputs(self, place: np.ndarray) -> tuple[np.ndarray, FloatArray]:
        if "output" not in self:
            raise InputError(f"{self.source} has no column output; add it", code="table.column")
        sample, outputs = self.numbers("sample"), self.numbers("output")
        order = np.lexsort((sample, place))
        places, count = np.unique(place, return_counts=True)
        if len(np.unique(count)) != 1:
            text = f"{self.source} has {count.min()} to {count.max()} samples per case and round"
            raise InputError(text, code="samples.mismatch")
        if (np.diff(sample[order].reshape(len(places), -1), axis=1) == 0).any():
            raise InputError(f"{self.source} has a sample twice; keep one", code="table.duplicate")
        return places, outputs[order].reshape(len(places), -1)

    def _lists(self) -> FloatArray:
        lists = self.rows["outputs"].combine_chunks()
        kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        if lists.null_count or not any(is_kind(lists.type) for is_kind in kinds):
            raise InputError(f"{self.source} has outputs that are not lists", code="table.column")
        lengths = np.unique(np.asarray(lists.value_lengths()))
        if len(lengths) != 1:
            message = f"{self.source} has lists of {lengths.min()} to {lengths.max()} outputs"
            raise InputError(message, code="samples.mismatch")
        return _numbers(lists.flatten(), "outputs", self.source).reshape(len(lists), -1)


def _numbers(column: Any, name: str, source: str) -> FloatArray:
    is_number = pa.types.is_floating(column.type) or pa.types.is_integer(column.type)
    values = np.asarray(column.to_numpy(zero_copy_only=False)) if is_number else None
    if values is None or column.null_count or not np.isfinite(values).all():
        text = f"column {name} of {source} has a value that is not a finite number; correct it"
        raise InputError(text, code="table.column")
    return values.astype(float)


def to_dataset(table: TaskOutputs) -> Any:
    xarray = import_extra("xarray", "xarray")
    tasks = ("task",) * (table.outputs.ndim == 4)
    data: dict[str, Any] = {"outputs": (("round", "case", "sample", *tasks), table.outputs)}
    if table.has_targets:
        rounds = ("round",) * table.has_round_targets
        data["targets"] = ((*rounds, "case", *tasks), table.targets)
    ids = {name: getattr(table, name) for name in IDS}
    coords = {name: ("case", values) for name, values in ids.items() if values is not None}
    if table.round_names is not None:
        coords["round"] = ("round", list(table.round_names))
    if tasks:
        coords["task"] = ("task", list(table.task_names))
    if not np.isnan(table.accelerations).any():
        coords["acceleration"] = ("round", table.accelerations)
    if table.sampled_lines is not None:
        data["sampled_lines"] = (("round", "case", "line"), table.sampled_lines)
    return xarray.Dataset(data, coords, {ATTRIBUTES: _attributes(table)})


def _read_dataset(dataset: Any) -> TaskOutputs:
    if "outputs" not in dataset:
        message = f"the dataset has no variable outputs, only {', '.join(map(str, dataset))[:120]}"
        raise InputError(message, code="table.column")
    values = {name: dataset[name].to_numpy() for name in IDS if name in dataset.variables}
    named = {"accelerations": "acceleration", "round_names": "round", "task_names": "task"}
    values |= {n: dataset[of].to_numpy() for n, of in named.items() if of in dataset.variables}
    lines = dataset.get("sampled_lines")
    if lines is not None:
        lines = lines.transpose("round", "case", "line").to_numpy().astype(bool)
    values = _attributes_from(dataset.attrs.get(ATTRIBUTES, "{}"), "the dataset") | values
    arrays = [dataset.get(name, None) for name in ("outputs", "targets")]
    return TaskOutputs(*arrays, **values, sampled_lines=lines)


# Groups of ArviZ with samples, each with the group of its truth.
SAMPLED = {"posterior_predictive": "observed_data", "posterior": "constant_data"}


def to_inference_data(table: TaskOutputs) -> Any:
    arviz, dataset = import_extra("arviz", "arviz"), to_dataset(table)
    several = table.outputs.ndim == 4
    groups = {}
    for group, name in (("posterior_predictive", "outputs"), ("observed_data", "targets")):
        if name in dataset:
            array = dataset[name].to_dataset("task") if several else dataset[[name]]
            array = array if several else array.rename({name: table.task_names[0]})
            if group == "posterior_predictive":
                array = array.rename(sample="draw").expand_dims("chain")
                array = array.assign_coords(chain=[0], draw=range(table.samples))
                array = array.transpose("chain", "draw", ...)
            groups[group] = array.assign_attrs(dataset.attrs)
    if hasattr(arviz, "InferenceData"):
        return arviz.InferenceData(**groups)
    return import_extra("xarray", "xarray").DataTree.from_dict(groups)


def _read_inference_data(data: Any) -> TaskOutputs:
    group = next(name for name in SAMPLED if name in data)
    samples, truth = (data.get(n, None) for n in (group, SAMPLED[group]))
    tables = {}
    for name, array in samples.data_vars.items():
        extra = [d for d in array.dims if d not in ("chain", "draw", "round", "case")]
        if not {"chain", "draw"} <= set(array.dims) or len(extra) + ("case" in array.dims) != 1:
            message = f"{name} has dimensions {array.dims}; pass chain, draw and one for cases"
            raise InputError(message, code="shape.axes")
        axes = [d for d in ("round", *extra, "case") if d in array.dims]
        joined = array.transpose(*axes, "chain", "draw").to_numpy()
        case = {"case": array[axes[-1]].to_numpy()} if axes[-1] in array.coords else {}
        ids = {n: array[n].to_numpy() for n in IDS[1:] if n in array.coords}
        named = {"accelerations": "acceleration", "round_names": "round"}
        ids |= {n: array[of].to_numpy() for n, of in named.items() if of in array.coords}
        target = None if truth is None or name not in truth else truth[name]
        if target is not None:
            if case and axes[-1] in target.coords:  # what lacks is NaN, which a table refuses
                target = target.reindex({axes[-1]: case["case"]})
            target = target.transpose(*(d for d in axes if d in target.dims)).to_numpy()
        joined = joined.reshape(*joined.shape[:-2], -1)
        tables[str(name)] = TaskOutputs(joined, target, task_names=[str(name)], **case, **ids)
    table = next(iter(tables.values())) if len(tables) == 1 else _join_tasks(tables)
    attributes = _attributes_from(samples.attrs.get(ATTRIBUTES, "{}"), group)
    return replace_arrays(table, task_range=attributes["task_range"])


def _attributes(table: TaskOutputs) -> str:
    return json.dumps({
        "task_names": table.task_names,
        **ranges_to_json(table.task_ranges),
        "provenance": table.provenance,
        "missing": table.missing_cases,
    })  # fmt: skip


def _attributes_from(text: str, source: Any) -> dict[str, Any]:
    """Parse the text written by :func:`_attributes` into arguments of a table."""
    found = parse_json(text, constants=True)
    if not isinstance(found, dict):
        raise InputError(f"{source} does not have a table's attributes", code="file.format")
    return {
        "task_names": found.get("task_names"),
        "task_range": found.get("task_ranges") or found.get("task_range"),
        "provenance": found.get("provenance"),
        "missing_cases": found.get("missing", ()),
    }


def write_npz(table: TaskOutputs, path: Path) -> Path:
    arrays = {name: getattr(table, field) for name, field in ARRAYS.items()}
    arrays = {name: values for name, values in arrays.items() if values is not None}
    for name in ("accelerations", "targets"):
        if np.isnan(arrays[name]).any():  # unknown
            del arrays[name]
    with atomic_write(path) as partial, partial.open("wb") as file:
        np.savez_compressed(
            file, allow_pickle=False, **arrays, **{ATTRIBUTES: np.array(_attributes(table))}
        )
    return path


def read_npz(path: Path) -> TaskOutputs:
    """Read a table from an npz file, which must have at least the array ``outputs``."""
    with open_npz(path, "a table") as archive:
        if "outputs" not in archive:
            message = f"{path} has no array outputs, only {', '.join(sorted(archive))}"
            raise InputError(message, code="table.column")
        arrays: dict[str, Any] = {ARRAYS[name]: archive[name] for name in ARRAYS if name in archive}
        text = str(archive[ATTRIBUTES]) if ATTRIBUTES in archive else "{}"
    return TaskOutputs(**arrays, **_attributes_from(text, path))


def write_rows(table: TaskOutputs, path: Path) -> Path:
    rounds, n, tasks = table.rounds, table.cases, table.tasks
    x = table.outputs if table.outputs.ndim == 4 else table.outputs[..., None]
    ids = {name: getattr(table, name) for name in IDS} | {"case": _ids(table)}
    columns = {
        name: np.tile(np.repeat(values, tasks), rounds)
        for name, values in ids.items()
        if values is not None
    }
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
    for name, values in columns.items() if path.suffix == ".csv" else ():
        texts = np.unique(values).tolist() if values.dtype.kind in "US" else ()
        bad = [text for text in map(str, texts) if text.startswith(("=", "+", "-", "@", "\t"))]
        if bad:
            message = f"{name} {bad[0]!r:.40} is a spreadsheet formula; save a .parquet file"
            raise InputError(message, code="value.invalid")
    rows = pa.table({name: pa.array(values) for name, values in columns.items()})
    with atomic_write(path) as partial:
        (pa.csv.write_csv if path.suffix == ".csv" else pq.write_table)(rows, partial)
    return path
