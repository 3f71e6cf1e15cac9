"""What is brought home: few archives of bounded size, what matters most first, weights in half."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from scripts.programme.pieces import cut, whole
from scripts.programme.smaller import smaller

from taskuq.files import whole_file
from taskuq.training.folder import FINISHED, RESUME

# A tar's own bytes: a header for each file, blocks of 512, and the end.
HEADER, BLOCK, END = 1536, 512, 10240
MIB = 2**20

File = tuple[tarfile.TarInfo, bytes]


@dataclass(frozen=True)
class Limits:
    """What may come back.

    Arguments:
        files: How many archives.
        each: Bytes of one.
        together: Bytes of all.
    """

    files: int = 8
    each: int = 16 * MIB
    together: int = 64 * MIB


@dataclass
class Archive:
    """Files of one archive as they were when looked at, and how large it will be."""

    files: list[File] = field(default_factory=list)
    size: int = END


class Room:
    """Archives that are filled up to their limits; each file goes into the first that has room."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.archives: list[Archive] = []

    def take(self, parts: Sequence[File]) -> bool:
        """Take all parts of a file, or nothing; return whether they were taken."""
        limits, places = self.limits, list[int]()
        sizes = [archive.size for archive in self.archives]
        for info, _ in parts:
            size = in_tar(info.size)
            place = next((k for k, s in enumerate(sizes) if s + size <= limits.each), len(sizes))
            if place == len(sizes):
                sizes.append(END)
            sizes[place] += size
            places.append(place)
        if len(sizes) > limits.files or sum(sizes) > limits.together or max(sizes) > limits.each:
            return False
        self.archives += [Archive() for _ in range(len(sizes) - len(self.archives))]
        for place, part in zip(places, parts, strict=True):
            self.archives[place].files.append(part)
        for archive, size in zip(self.archives, sizes, strict=True):
            archive.size = size
        return True


def pack(
    patterns: Sequence[str],
    work: Path,
    out: Path,
    limits: Limits | None = None,
    tell: Callable[[str], None] = print,
    arrived: Collection[str] = (),
) -> tuple[list[Path], list[str]]:
    """Write archives of what matches, and return them with the names of what did not fit.

    Each file goes into the first archive that has room for it, what matters most first: what does
    not fit never keeps out what stands before it. A file that is larger than an archive is cut.

    Arguments:
        patterns: Of files in the folder of work, what matters most first.
        work: That folder.
        out: Receives part-1.tar, part-2.tar, ...; what it holds of these names is replaced.
        limits: What may come back.
        tell: Called with a sentence on each file that cannot be packed, or not in half; all others
            are.
        arrived: Fingerprints of what is at home already, and is not packed.
    """
    limits = limits or Limits()
    room, left_out = Room(limits), []
    for name in matching(patterns, work):
        try:
            info, content = _taken(smaller(work / name, work, tell), name)
        except OSError as error:  # jobs still run, and what they write may be gone again
            tell(f"{name} is not packed: {error}")
            continue
        if fingerprint(name, content) in arrived:
            continue
        if not room.take(cut(info, content, limits.each - END - 2 * HEADER)):
            left_out.append(name)
    out.mkdir(parents=True, exist_ok=True)
    written = [_write(out / f"part-{k}.tar", a) for k, a in enumerate(room.archives, 1)]
    for path in set(out.glob("part-*.tar")).difference(written):
        path.unlink()  # of an earlier time, when there was more
    return written, left_out


def matching(patterns: Sequence[str], work: Path) -> list[str]:
    """Names of files, each once, in the order of the patterns.

    What belongs to trainings that have not ended comes last: first the states that these go on
    from, the smallest first, so that as many as possible go on; then their weights so far.
    """
    found = (path for pattern in patterns for path in sorted(work.glob(pattern)))
    files = list(dict.fromkeys(path for path in found if path.is_file()))
    states = [path for path in files if path.name == RESUME]
    unfinished = {path.parent for path in states if not (path.parent / FINISHED).exists()}
    going_on = [path for path in states if path.parent in unfinished]
    is_so_far = {p: p.parent in unfinished and p.suffix == ".safetensors" for p in files}
    rest, so_far = (
        [path for path in files if path.name != RESUME and is_so_far[path] is wanted]
        for wanted in (False, True)
    )
    ordered = [*rest, *sorted(going_on, key=lambda path: path.stat().st_size), *so_far]
    return [path.relative_to(work).as_posix() for path in ordered]


def fingerprint(name: str, content: bytes) -> str:
    """What a file of a name holds, in few letters."""
    return f"{name} {sha256(content).hexdigest()}"


def contents(archives: Sequence[Path]) -> Iterator[File]:
    """All files that archives hold, those that were cut whole again."""
    yield from whole(file for archive in archives for file in _members(archive))


def _members(archive: Path) -> Iterator[File]:
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            file = tar.extractfile(member)
            if file is not None:
                yield member, file.read()


def unpack(archives: Sequence[Path], work: Path, *, newer: bool = False) -> list[str]:
    """Put what came home back where it was, and return the names of what was put.

    Arguments:
        archives: What :func:`pack` wrote.
        work: The folder of work.
        newer: Replace files that are there by newer ones, as at home after a later call; otherwise
            they are left alone.
    """
    put = []
    for info, content in contents(archives):
        path = work / tarfile.data_filter(info, str(work)).name
        if not path.exists() or (newer and info.mtime > path.stat().st_mtime):
            with whole_file(path) as partial:
                partial.write_bytes(content)
            os.utime(path, (info.mtime, info.mtime))
            put.append(info.name)
    return put


def in_tar(size: int) -> int:
    """How many bytes of an archive a file of so many takes."""
    return HEADER + -(-size // BLOCK) * BLOCK


def _taken(path: Path, name: str) -> File:
    """A file as it is now: it may grow or vanish before its archive is written."""
    info, content = tarfile.TarInfo(name), path.read_bytes()
    info.size, info.mtime = len(content), path.stat().st_mtime
    return info, content


def _write(target: Path, archive: Archive) -> Path:
    with whole_file(target) as partial, tarfile.open(partial, "w") as tar:
        for info, content in archive.files:
            tar.addfile(info, io.BytesIO(content))
    return target
