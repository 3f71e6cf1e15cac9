"""Files that are larger than an archive: cut into pieces, and put together again."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterable, Iterator

File = tuple[tarfile.TarInfo, bytes]
NAMED = re.compile(r"(.+)\.piece-(\d+)-of-(\d+)")


def cut(info: tarfile.TarInfo, content: bytes, most: int) -> list[File]:
    """The file as it is, or in pieces of at most so many bytes, which say where they belong."""
    count = max(1, -(-len(content) // most))
    if count == 1:
        return [(info, content)]
    pieces = []
    for k in range(count):
        part = content[k * most : (k + 1) * most]
        piece = tarfile.TarInfo(f"{info.name}.piece-{k + 1}-of-{count}")
        piece.size, piece.mtime = len(part), info.mtime
        pieces.append((piece, part))
    return pieces


def whole(files: Iterable[File]) -> Iterator[File]:
    """Files as they were before they were cut; one that lacks a piece is left out.

    Pieces of several times, where an earlier call's are there too, do not mix: they are of one
    time each.
    """
    found: dict[tuple[str, int, float], dict[int, bytes]] = {}
    for info, content in files:
        match = NAMED.fullmatch(info.name)
        if match is None:
            yield info, content
            continue
        name, count = match[1], int(match[3])
        pieces = found.setdefault((name, count, float(info.mtime)), {})
        pieces[int(match[2])] = content
        if len(pieces) == count:
            whole_info = tarfile.TarInfo(name)
            joined = b"".join(pieces[k] for k in range(1, count + 1))
            whole_info.size, whole_info.mtime = len(joined), info.mtime
            yield whole_info, joined
