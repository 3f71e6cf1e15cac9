"""From shards to arrays: a table on disk becomes a table in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from taskuq.errors import InputError
from taskuq.outputs import TaskOutputs
from taskuq.roster import read_roster
from taskuq.shards import (
    HEADER,
    Header,
    column_values,
    read_header,
    read_schema,
    read_shard,
    require_column,
    shard_paths,
)


def read_shards(folder: Path) -> TaskOutputs:
    """Read a table, shard by shard into arrays of the final size."""
    header = read_header(folder)
    shards = shard_paths(folder)
    if not shards:
        raise InputError(f"the table in {folder} has no rows yet; run it first")
    ids, position, complete = _place_rows(header, shards)
    rounds, n, tasks = len(header.accelerations), int(complete.sum()), len(header.task_names)
    if n == 0:
        raise InputError(f"no case of the table in {folder} has all {rounds} rounds yet")
    for shard in shards:
        # Before memory is set aside for as many samples as the header says.
        _require_lists(read_schema(shard), header, shard)
    outputs = np.empty((rounds, n, header.samples, tasks), dtype=np.float32)
    targets = np.empty((rounds, n, tasks))
    extras: dict[str, dict[int, Any]] = {"group": {}, "label": {}}
    for shard, (case, round) in zip(shards, position, strict=True):
        rows = read_shard(shard)
        keep = case >= 0
        for k, (target, output) in enumerate(header.columns):
            outputs[round[keep], case[keep], :, k] = _lists(rows, output, header, shard)[keep]
            targets[round[keep], case[keep], k] = _column(rows, target, shard)[keep]
        for name, known in extras.items():
            if name in rows.column_names:
                values = column_values(rows, name, shard)
                known.update({int(i): values[j] for j, i in enumerate(case) if i >= 0})
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
        case=np.asarray(ids)[complete],
        task_names=header.task_names,
        task_range=header.task_range,
        provenance=header.provenance,
        missing=[str(c) for c, whole in zip(ids, complete, strict=True) if not whole],
        **{
            name: [known[i] for i in range(n)] if len(known) == n else None
            for name, known in extras.items()
        },
    )  # fmt: skip


def _place_rows(
    header: Header, shards: list[Path]
) -> tuple[list[Any], list[tuple[np.ndarray, np.ndarray]], np.ndarray]:
    """Say for each row of each shard which case and round of the arrays it fills; -1 for none."""
    keys = [read_shard(shard, ["case", "acceleration"]) for shard in shards]
    seen: dict[Any, int] = {}
    for key, shard in zip(keys, shards, strict=True):
        for case in column_values(key, "case", shard):
            if not isinstance(case, str | int):
                raise InputError(
                    f"shard {shard.name} has a case that is neither an integer nor a string"
                )
            seen.setdefault(case, len(seen))
    ids = list(seen)
    roster = read_roster(shards[0].parent) if header.order == "roster" else None
    if roster is not None:
        # Cases that the run has not come to are missing, and said to be.
        ids = [*roster, *(case for case in ids if str(case) not in set(roster))]
    elif header.order != "written":
        ids = sorted(ids, key=lambda c: (isinstance(c, str), c))
    seen = {case: i for i, case in enumerate(ids)}
    rates = np.asarray(header.accelerations)
    there = np.zeros((len(rates), len(ids)), dtype=bool)
    placed = []
    for key, shard in zip(keys, shards, strict=True):
        case = np.array([seen[c] for c in column_values(key, "case", shard)], dtype=np.int64)
        rate = _column(key, "acceleration", shard)
        match = (rate[:, None] == rates) | (np.isnan(rate)[:, None] & np.isnan(rates))
        if not match.any(axis=1).all():
            raise InputError(f"shard {shard.name} has rows of an acceleration not in {HEADER}")
        round = match.argmax(axis=1)
        # A case computed twice, by two workers or after a kill, counts once.
        first = ~there[round, case]
        _, where = np.unique(case * len(rates) + round, return_index=True)
        alone = np.zeros(len(case), dtype=bool)
        alone[where] = True
        there[round, case] = True
        placed.append((np.where(first & alone, case, -1), round))
    complete = np.asarray(there.all(axis=0))
    number = np.where(complete, np.cumsum(complete) - 1, -1)
    return ids, [(np.where(c >= 0, number[c], -1), r) for c, r in placed], complete


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


def _lists(rows: Any, name: str, header: Header, shard: Path) -> np.ndarray:
    column = rows[name].combine_chunks()
    if column.null_count:
        raise InputError(f"shard {shard.name} has rows without {name}; delete it and run again")
    return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(-1, header.samples)


def _column(rows: Any, name: str, shard: Path) -> np.ndarray:
    require_column(rows.column_names, name, shard)
    values = np.asarray(rows[name].to_numpy())
    if values.dtype.kind not in "fiu":
        raise InputError(f"shard {shard.name} holds {rows[name].type} in {name}, not numbers")
    return values.astype(float)
