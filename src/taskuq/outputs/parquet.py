"""Parquet files that are as they were written, or are named: checksums of pages and of columns.

Parquet's own checksums are of pages, and leave out what says where and what they are. So each
column's content has a SHA-256 too, in the file's metadata, which is compared with what was read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from taskuq.disk import is_plain
from taskuq.errors import InputError, first_line
from taskuq.files import whole_file
from taskuq.fingerprints import SEAL, require_seal, sealed

# Rows of a group, which is what a reader holds at one time.
ROWS = 65536
# Where a file's metadata remembers its checksums and what else is told to it.
NOTE = b"taskuq"
REMEDY = "delete it and run again to compute its cases anew"


def write_parquet(
    table: Any,
    path: Path,
    remember: Mapping[str, Any] | None = None,
    *,
    exclusive: bool = False,
) -> Path:
    """Write an Arrow table whole, with checksums.

    Arguments:
        table: The table.
        path: The file.
        remember: What else its metadata is to hold, as values that JSON can hold.
        exclusive: Refuse to take the place of another file.
    """
    import pyarrow.parquet as pq

    columns = {name: digest(table[name].chunks) for name in table.column_names}
    note = sealed({**(remember or {}), "columns": columns})
    names = [n for n in table.column_names if not _is_number(table[n].type)]
    with whole_file(path, exclusive=exclusive) as partial:
        # Row groups are what a reader holds at one time; numbers hardly repeat.
        pq.write_table(
            table.replace_schema_metadata({NOTE: json.dumps(note)}), partial, compression="zstd",
            row_group_size=ROWS, use_dictionary=names, write_page_checksum=True,
        )  # fmt: skip
    return path


def read_parts(path: Path, columns: list[str]) -> Iterator[Any]:
    """Read columns of a file, some rows at a time, or say that it is damaged.

    Arguments:
        path: The file.
        columns: Their names.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = read_schema(path)
    for name in columns:
        require_column(schema.names, name, path)
    written = read_note(path, schema).get("columns", {})
    found = {name: _Digest() for name in columns if name in written}
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for rows in file.iter_batches(batch_size=ROWS, columns=columns, use_threads=False):
                for name, one in found.items():
                    one.update(rows.column(name))
                yield rows
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        raise damaged(path, first_line(error)) from None
    for name, one in found.items():
        if one.hexdigest() != written[name]:
            raise damaged(path, f"column {name} is not as it was written")


def read_columns(path: Path, columns: list[str]) -> Any:
    """Read columns of a file, or say that it is damaged."""
    import pyarrow as pa

    parts = list(read_parts(path, columns))
    if not parts:
        return read_schema(path).empty_table().select(columns)
    return pa.Table.from_batches(parts)


def read_schema(path: Path) -> Any:
    """Read which columns a file has, or say that it is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not is_plain(path):
        raise InputError(f"{path} is a link, a pipe or a folder and not a file; remove it")
    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise damaged(path, first_line(error)) from None


def read_note(path: Path, schema: Any) -> dict[str, Any]:
    """Return what a file's metadata remembers; nothing where somebody else wrote it.

    Arguments:
        path: The file.
        schema: Its columns, as :func:`read_schema` returned them.
    """
    text = (schema.metadata or {}).get(NOTE)
    if text is None:
        return {}
    try:
        note = dict(json.loads(text))
        require_seal(note, path)
        lacking = set(note["columns"]) - set(schema.names)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise damaged(path, "its checksums are") from None
    if lacking:
        raise damaged(path, f"no column {min(lacking)}")
    return {name: value for name, value in note.items() if name != SEAL}


def require_column(names: list[str], name: str, path: Path) -> None:
    """Refuse a file that lacks a column."""
    if name not in names:
        raise InputError(f"shard {path.name} has no column {name}")


def damaged(path: Path, reason: str, remedy: str = REMEDY) -> InputError:
    """Return the error that names a damaged file and says how to make it again."""
    return InputError(
        f"shard {path.name} cannot be read ({reason:.80}); it is truncated or damaged: {remedy}"
    )


def digest(arrays: Iterable[Any]) -> str:
    """Return the SHA-256 of a column, however its rows are divided into arrays.

    Arguments:
        arrays: Arrow arrays, one after the other.

    Example:
        >>> import pyarrow as pa
        >>> digest([pa.array(["a", "bc"])]) == digest([pa.array(["a"]), pa.array(["bc"])])
        True
        >>> digest([pa.array(["a", "bc"])]) == digest([pa.array(["ab", "c"])])
        False
    """
    whole = _Digest()
    for array in arrays:
        whole.update(array)
    return whole.hexdigest()


class _Digest:
    """The SHA-256 of a column while it is read: of its type, its texts or numbers, its lengths."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self.content, self.lengths = hashlib.sha256(), hashlib.sha256()

    def update(self, array: Any) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_fixed_size_list(array.type):
            self.kinds.add(f"lists of {array.type.list_size}")
            self.lengths.update(np.asarray(array.is_valid()).tobytes())
            array = array.flatten()
        self.kinds.add(str(array.type))
        if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
            texts = array.cast(pa.large_string())
            lengths = np.asarray(pc.fill_null(pc.binary_length(texts), -1), dtype=np.int64)
            self.lengths.update(lengths.tobytes())
            _, offsets, content = texts.buffers()
            if content is not None:
                ends = np.frombuffer(offsets, dtype=np.int64)[
                    [texts.offset, texts.offset + len(texts)]
                ]
                self.content.update(memoryview(content)[ends[0] : ends[1]])
        else:
            self.content.update(np.ascontiguousarray(array.to_numpy(zero_copy_only=False)).data)

    def hexdigest(self) -> str:
        parts = (*sorted(self.kinds), self.content.hexdigest(), self.lengths.hexdigest())
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_floating(kind) or pa.types.is_fixed_size_list(kind))
