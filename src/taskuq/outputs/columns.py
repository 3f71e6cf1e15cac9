"""Who the cases are: columns of identities, and the roster that a run is to go through."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from taskuq.errors import InputError
from taskuq.outputs.parquet import read_columns, write_parquet

# Longer ones are no names, and a million of them would fill the memory.
LONGEST = 1000
# Rows that become Python objects at one time.
ROWS = 65536
# Names with an underscore are passed over by readers that take a folder of Parquet as one table.
ROSTER = "_cases.parquet"


def identities(column: Any, name: str, where: str, *, floats: bool = False) -> Any:
    """Take a column of integers or strings, or say in one sentence what it holds instead.

    Arguments:
        column: An Arrow column.
        name: Its name.
        where: The file it is from.
        floats: Whether integers may stand in a column of floats.

    Example:
        >>> import pyarrow as pa
        >>> identities(pa.array(["a", None]), "case", "part-0")
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: part-0 has a case that is neither an integer nor a string
    """
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    texts = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    whole = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    try:
        if column.null_count or not (texts or whole or (floats and pa.types.is_floating(kind))):
            raise pa.ArrowInvalid(kind)
        # A cast that would round is refused.
        found = column.cast(pa.large_string() if texts else pa.int64())
    except pa.ArrowException:
        raise InputError(f"{where} has a {name} that is neither an integer nor a string") from None
    found = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    try:
        found.validate(full=True)
    except pa.ArrowException:  # text whose bytes are no text
        raise InputError(f"{where} is damaged in column {name}: delete it and run again") from None
    return found


def as_texts(array: Any) -> Any:
    """Return identities as an Arrow array of strings."""
    import pyarrow as pa

    return array.cast(pa.large_string())


def concatenate(arrays: Sequence[Any]) -> Any:
    """Join identities; as strings where some are strings and others integers."""
    import pyarrow as pa

    if len({array.type for array in arrays}) > 1:
        arrays = [as_texts(array) for array in arrays]
    return pa.concat_arrays(arrays)


def positions(array: Any, among: Any) -> np.ndarray:
    """Say at which place of ``among`` each identity stands; -1 where it does not.

    Example:
        >>> import pyarrow as pa
        >>> positions(pa.array(["b", "c", "b"]), pa.array(["a", "b"]))
        array([ 1, -1,  1], dtype=int32)
    """
    import pyarrow.compute as pc

    if array.type != among.type:
        array, among = as_texts(array), as_texts(among)
    return np.asarray(pc.fill_null(pc.index_in(array, value_set=among), -1))


def to_numpy(array: Any, name: str) -> np.ndarray:
    """Return identities as NumPy integers or strings.

    Arguments:
        array: An Arrow array.
        name: What to call it in an error.

    Example:
        >>> import pyarrow as pa
        >>> to_numpy(pa.array(["a", "bcd"]), "case")
        array(['a', 'bcd'], dtype='<U3')
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_integer(array.type):
        return np.asarray(array)
    longest = pc.max(pc.utf8_length(array)).as_py() or 1
    if longest > LONGEST:
        raise InputError(f"{name} has an entry of {longest} characters; {LONGEST} are the most")
    texts = np.empty(len(array), dtype=f"<U{longest}")
    for start in range(0, len(array), ROWS):
        texts[start : start + ROWS] = array.slice(start, ROWS).to_pylist()
    return texts


def write_roster(folder: Path, case: list[str], group: Any = None, label: Any = None) -> Path:
    """Write who is to be run, with groups and classes where they are known; once for a table.

    Arguments:
        folder: The folder of the table.
        case: The identities, in the order of the table.
        group: One per case.
        label: One per case.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = write_roster(folder, ["b", "a"], group=["x", "y"])
        >>> read_roster(folder)
        ['b', 'a']
    """
    import pyarrow as pa

    columns = {"case": pa.array(case)}
    columns |= {
        name: pa.array(values)
        for name, values in (("group", group), ("label", label))
        if values is not None
    }
    return write_parquet(pa.table(columns), folder / ROSTER, exclusive=True)


def read_roster(folder: Path) -> list[str] | None:
    """Return the identities in the order of the table, or None where there is no roster."""
    path = folder / ROSTER
    if not path.exists():
        return None
    try:
        cases = read_columns(path, ["case"])["case"].to_pylist()
    except InputError as error:
        raise InputError(f"{path}: {error}; without it, start the run afresh") from None
    return [str(case) for case in cases]
