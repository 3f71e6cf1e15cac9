"""From shards to arrays: a table on disk becomes a table in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from taskuq.errors import InputError
from taskuq.outputs.columns import (
    as_texts,
    concatenate,
    identities,
    positions,
    read_roster,
    to_numpy,
)
from taskuq.outputs.lines import lines_from_texts
from taskuq.outputs.parquet import read_columns, read_parts, read_schema, require_column
from taskuq.outputs.shards import (
    PICTURES,
    Header,
    numbers_of,
    read_header,
    read_places,
    shard_paths,
)
from taskuq.outputs.table import TaskOutputs

# For each row of a shard: the case and the round of the arrays that it fills; -1 for none.
Places = tuple[np.ndarray, np.ndarray]


def read_shards(folder: Path) -> TaskOutputs:
    """Read a table, some rows at a time into arrays of the final size."""
    header = read_header(folder)
    shards = shard_paths(folder)
    if not shards:
        raise InputError(f"the table in {folder} has no rows yet; run it first")
    ids, places, complete = _place_rows(header, shards)
    rounds, n, tasks = len(header.accelerations), int(complete.sum()), len(header.task_names)
    if n == 0:
        raise InputError(f"no case of the table in {folder} has all {rounds} rounds yet")
    for shard in shards:
        # Before memory is set aside for as many samples as the header says.
        _require_lists(read_schema(shard), header, shard)
    outputs = np.empty((rounds, n, header.samples, tasks), dtype=np.float32)
    targets = np.empty((rounds, n, tasks))
    for shard, place in zip(shards, places, strict=True):
        _fill(outputs, targets, header, shard, place)
    unknown = bool(np.isnan(targets).all())
    if not header.round_targets and not unknown:
        # NaN differs from itself; it is reported as what it is when the table is made.
        if ((targets != targets[:1]) & ~np.isnan(targets)).any():
            raise InputError(f"the table in {folder} has targets that differ between rounds")
        targets = targets[0]
    if tasks == 1:
        outputs, targets = outputs[..., 0], targets[..., 0]
    return TaskOutputs(
        outputs, None if unknown else targets, header.accelerations,
        case=to_numpy(_chosen(ids, complete), "case"),
        group=_extra("group", shards, places, n),
        label=_extra("label", shards, places, n),
        task_names=header.task_names,
        task_range=header.task_ranges,
        round_names=header.round_names,
        provenance=header.provenance,
        missing=as_texts(_chosen(ids, ~complete)).to_pylist(),
        lines=_lines(header, shards, places, n),
        pictures=folder / PICTURES if (folder / PICTURES).exists() else None,
    )  # fmt: skip


def _place_rows(header: Header, shards: list[Path]) -> tuple[Any, list[Places], np.ndarray]:
    """Return all identities, where each row goes, and which cases have all of their rounds."""
    import pyarrow as pa
    import pyarrow.compute as pc

    cases, rounds = zip(*read_places(shards, header), strict=True)
    names = concatenate(cases)
    ids = pc.unique(names)
    roster = read_roster(shards[0].parent) if header.order == "roster" else None
    if roster is not None:
        # Cases that the run has not come to are missing, and said to be.
        ids = pc.unique(pa.concat_arrays([pa.array(roster, pa.large_string()), as_texts(ids)]))
    elif header.order != "written":
        ids = ids.take(pc.sort_indices(ids))
    there = np.zeros((len(header.accelerations), len(ids)), dtype=bool)
    placed = []
    # All at once: the identities are put in order once, not for every shard.
    ends = np.cumsum([len(round) for round in rounds])[:-1]
    for case, round in zip(np.split(positions(names, ids), ends), rounds, strict=True):
        # A case computed twice, by two workers or after a kill, counts once.
        first = ~there[round, case]
        _, where = np.unique(case.astype(np.int64) * len(there) + round, return_index=True)
        alone = np.zeros(len(case), dtype=bool)
        alone[where] = True
        there[round, case] = True
        placed.append(np.where(first & alone, case, -1))
    complete = np.asarray(there.all(axis=0))
    number = np.where(complete, np.cumsum(complete) - 1, -1).astype(np.int32)
    places = [np.where(case >= 0, number[case], -1) for case in placed]
    return ids, list(zip(places, rounds, strict=True)), complete


def _fill(
    outputs: np.ndarray, targets: np.ndarray, header: Header, shard: Path, place: Places
) -> None:
    """Put the rows of a shard where they belong."""
    start = 0
    for rows in read_parts(shard, [name for pair in header.columns for name in pair]):
        part = slice(start, start + len(rows))
        start += len(rows)
        case, round = place[0][part], place[1][part]
        keep = case >= 0
        for k, (target, output) in enumerate(header.columns):
            outputs[round[keep], case[keep], :, k] = _samples(rows, output, header, shard)[keep]
            targets[round[keep], case[keep], k] = numbers_of(rows, target, shard)[keep]


def _extra(name: str, shards: list[Path], places: list[Places], n: int) -> np.ndarray | None:
    """Return the groups or classes of all cases, or None where some are not known."""
    import pyarrow as pa

    found, where = [], []
    for shard, (case, _) in zip(shards, places, strict=True):
        if name in read_schema(shard).names:
            column = read_columns(shard, [name])[name]
            found.append(identities(column, name, f"shard {shard.name}", floats=True))
            where.append(case)
    row = np.full(n, -1, dtype=np.int64)
    if found:
        case = np.concatenate(where)
        row[case[case >= 0]] = np.nonzero(case >= 0)[0]
    if not found or (row < 0).any():
        return None
    return to_numpy(concatenate(found).take(pa.array(row)), name)


def _lines(header: Header, shards: list[Path], places: list[Places], n: int) -> np.ndarray | None:
    """Return what was measured of each case, (round, case, line), where a rule chose it."""
    if header.lines is None:
        return None
    found = np.zeros((len(header.accelerations), n, header.lines), dtype=bool)
    for shard, (case, round) in zip(shards, places, strict=True):
        column = identities(read_columns(shard, ["lines"])["lines"], "lines", shard.name)
        keep = case >= 0
        texts = as_texts(column).to_pylist()
        read = lines_from_texts(texts, header.lines, f"shard {shard.name}")
        found[round[keep], case[keep]] = read[keep]
    return found


def _chosen(ids: Any, mask: np.ndarray) -> Any:
    import pyarrow as pa

    return ids.filter(pa.array(mask))


def _require_lists(schema: Any, header: Header, shard: Path) -> None:
    """Refuse columns of outputs that are not lists of as many numbers as the table has samples."""
    import pyarrow as pa

    for _, name in header.columns:
        require_column(schema.names, name, shard)
        kind = schema.field(name).type
        is_list = pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type)
        if not is_list or kind.list_size != header.samples:
            raise InputError(
                f"shard {shard.name} holds {kind} in {name}, but the table has {header.samples} "
                "samples"
            )


def _samples(rows: Any, name: str, header: Header, shard: Path) -> np.ndarray:
    column = rows[name]
    if column.null_count:
        raise InputError(f"shard {shard.name} has rows without {name}; delete it and run again")
    return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(-1, header.samples)
