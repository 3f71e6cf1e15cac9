"""Tables as the machine has them: what was thrown away there goes at home, too.

A table that is drawn anew has files of other names. Beside those of an earlier call, which came
home before it was whole, they would be read as one table of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from scripts.programme.packing import matching

from taskuq.files import read_json, write_json

PRESENT, SCHEMA = "present.json", "taskuq.present/1"
TABLES = "tables/"


def write_present(patterns: Sequence[str], work: Path) -> None:
    """Write down which files of tables there are.

    Arguments:
        patterns: Of files that come home.
        work: The folder of work.
    """
    files = sorted(name for name in matching(patterns, work) if name.startswith(TABLES))
    write_json(work / PRESENT, {"schema": SCHEMA, "files": files})


def remove_gone(home: Path, put: Sequence[str]) -> list[str]:
    """Remove what the machine no longer has of tables that it has changed; return the names.

    Folders that nothing new came into stay as they are: the machine may have been brought a part
    of them. What has just come stays, too: jobs write while the list is made.

    Arguments:
        home: What archives were unpacked into.
        put: Names of what was put there from the archives of one call.
    """
    if PRESENT not in put:
        return []
    present = set(read_json(home / PRESENT, SCHEMA)["files"])
    changed = {PurePosixPath(name).parent for name in put if name.startswith(TABLES)}
    # A folder of tables is no table: what lies beside new ones there may never have travelled.
    gone = [
        path.relative_to(home).as_posix()
        for folder in sorted(changed)
        for path in sorted((home / folder).glob("part-*.parquet"))
        if path.relative_to(home).as_posix() not in present.union(put)
    ]
    for name in gone:
        (home / name).unlink()
    return gone
