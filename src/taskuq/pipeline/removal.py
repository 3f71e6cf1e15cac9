"""Throwing a table away: its own files, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from taskuq.errors import InputError
from taskuq.outputs.columns import ROSTER
from taskuq.outputs.shards import HEADER, PICTURES
from taskuq.pipeline.log import NAME as LOG


def remove_table(folder: Path) -> None:
    """Remove the files of a table and its log; refuse a folder that holds anything else.

    Arguments:
        folder: The folder of the table.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder} is a file, not a table; choose another name")
    files = sorted(folder.iterdir())
    strangers = [path.name for path in files if not _is_ours(path)]
    if strangers:
        raise InputError(
            f"{folder} holds {strangers[0]}, which is not part of a table; choose another folder"
        )
    for path in files:
        path.unlink()


def _is_ours(path: Path) -> bool:
    """Whether a run has written this file, whole or in part."""
    plain = "|".join(map(re.escape, (HEADER, LOG, ROSTER, PICTURES)))
    known = rf"({plain}|part-\d+-\w+\.parquet)"
    is_name = re.fullmatch(rf"{known}|\.{known}\.\w+\.partial", path.name)
    return is_name is not None and path.is_file() and not path.is_symlink()
