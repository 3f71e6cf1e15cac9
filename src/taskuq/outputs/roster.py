"""The roster of a table: which cases a run is to go through, in which order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from taskuq.errors import InputError
from taskuq.files import whole_file

# Names with an underscore are passed over by readers that take a folder of Parquet as one table.
NAME = "_cases.parquet"


def write_roster(folder: Path, case: list[str], group: Any = None, label: Any = None) -> Path:
    """Write who is to be run, with groups and classes where they are known.

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
    import pyarrow.parquet as pq

    columns = {"case": pa.array(case)}
    columns |= {
        name: pa.array(values)
        for name, values in (("group", group), ("label", label))
        if values is not None
    }
    with whole_file(folder / NAME) as partial:
        pq.write_table(pa.table(columns), partial, compression="zstd")
    return folder / NAME


def read_roster(folder: Path) -> list[str] | None:
    """Return the identities in the order of the table, or None where there is no roster."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / NAME
    if not path.exists():
        return None
    try:
        cases = pq.read_table(path, columns=["case"], partitioning=None)["case"].to_pylist()
    except (pa.ArrowException, OSError, KeyError) as error:
        raise InputError(
            f"{path} cannot be read ({str(error).splitlines()[0]}); start the run afresh"
        ) from None
    return [str(case) for case in cases]
