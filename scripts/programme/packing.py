"""What is brought home: few archives of bounded size, what matters most first, weights in half."""

from __future__ import annotations

import io
import tarfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taskuq.files import whole_file

# A tar's own bytes: a header for each file, blocks of 512, and the end.
HEADER, BLOCK, END = 1536, 512, 10240
MIB = 2**20


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

    files: list[tuple[tarfile.TarInfo, bytes]] = field(default_factory=list)
    size: int = END


def pack(
    patterns: Sequence[str],
    work: Path,
    out: Path,
    limits: Limits | None = None,
    tell: Callable[[str], None] = print,
) -> tuple[list[Path], list[str]]:
    """Write archives of what matches, and return them with the names of what did not fit.

    Each file goes into the first archive that has room for it, what matters most first: what does
    not fit never keeps out what stands before it.

    Arguments:
        patterns: Of files in the folder of work, what matters most first.
        work: That folder.
        out: Receives part-1.tar, part-2.tar, ...; what it holds of these names is replaced.
        limits: What may come back.
        tell: Called with a sentence on each file that cannot be packed, or not in half; all others
            are.
    """
    limits = limits or Limits()
    archives: list[Archive] = []
    left_out = []
    for name in matching(patterns, work):
        try:
            path = _smaller(work / name, work, tell)
            size = HEADER + -(-path.stat().st_size // BLOCK) * BLOCK
            taken = _taken(path, name) if END + size <= limits.each else None
        except OSError as error:  # jobs still run, and what they write may be gone again
            tell(f"{name} is not packed: {error}")
            continue
        size = size if taken is None else HEADER + -(-taken[0].size // BLOCK) * BLOCK
        spare = limits.together - sum(archive.size for archive in archives)
        fitting = [a for a in archives if a.size + size <= limits.each and size <= spare]
        fits_new = len(archives) < limits.files and END + size <= min(limits.each, spare)
        if taken is None or not (fitting or fits_new):
            left_out.append(name)
            continue
        if not fitting:
            archives.append(Archive())
            fitting = archives[-1:]
        fitting[0].files.append(taken)
        fitting[0].size += size
    out.mkdir(parents=True, exist_ok=True)
    written = [_write(out / f"part-{k}.tar", a) for k, a in enumerate(archives, 1)]
    for path in set(out.glob("part-*.tar")).difference(written):
        path.unlink()  # of an earlier time, when there was more
    return written, left_out


def matching(patterns: Sequence[str], work: Path) -> list[str]:
    """Names of files, each once, in the order of the patterns."""
    found = (path for pattern in patterns for path in sorted(work.glob(pattern)))
    files = (path.relative_to(work).as_posix() for path in found if path.is_file())
    return list(dict.fromkeys(files))


def unpack(archives: Sequence[Path], work: Path, *, newer: bool = False) -> list[str]:
    """Put what came home back where it was, and return the names of what was put.

    Arguments:
        archives: What :func:`pack` wrote.
        work: The folder of work.
        newer: Replace files that are there by newer ones, as at home after a later call; otherwise
            they are left alone.
    """
    put = []
    for archive in archives:
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                path = work / member.name
                if not path.exists() or (newer and member.mtime > path.stat().st_mtime):
                    tar.extract(member, work, filter="data")
                    put.append(member.name)
    return put


def halved(path: Path, work: Path) -> Path:
    """The weights of a network in float16, as the package keeps them; any other file as it is."""
    from taskuq.settings import read_toml
    from taskuq.training.networks import NETWORKS
    from taskuq.weights.files import save_weights

    beside = path.with_suffix(".toml")
    if path.suffix != ".safetensors" or not beside.exists():
        return path
    half = work / "half" / path.relative_to(work)
    if half.exists() and half.stat().st_mtime >= path.stat().st_mtime:
        return half
    card: dict[str, Any] = read_toml(beside)
    if card.get("kind") not in NETWORKS:
        return path
    net: Any = NETWORKS[card["kind"]].load(path, card["network"])
    notes = {key: card[key] for key in card if key not in ("kind", "network")}
    half.parent.mkdir(parents=True, exist_ok=True)
    return save_weights(net, half, kind=card["kind"], config=net.config, notes=notes, half=True)


def _smaller(path: Path, work: Path, tell: Callable[[str], None]) -> Path:
    """The weights in half where they can be read, and the file as it is otherwise."""
    try:
        return halved(path, work)
    except Exception as error:  # whatever is wrong with one file, the others come home
        tell(f"{path.relative_to(work)} is packed as it is: {type(error).__name__}: {error}")
        return path


def _taken(path: Path, name: str) -> tuple[tarfile.TarInfo, bytes]:
    """A file as it is now: it may grow or vanish before its archive is written."""
    info, content = tarfile.TarInfo(name), path.read_bytes()
    info.size, info.mtime = len(content), path.stat().st_mtime
    return info, content


def _write(target: Path, archive: Archive) -> Path:
    with whole_file(target) as partial, tarfile.open(partial, "w") as tar:
        for info, content in archive.files:
            tar.addfile(info, io.BytesIO(content))
    return target


class Beside:
    """Something done now and then in a thread of its own, so that no job waits for it.

    Arguments:
        do: What is done.
        seconds: It is not begun again before so many have passed.
        tell: Called with a sentence where it fails; it is tried again the next time.
    """

    def __init__(
        self, do: Callable[[], object], seconds: float, tell: Callable[[str], None] = print
    ) -> None:
        self.do, self.seconds, self.tell = do, seconds, tell
        self.begun = time.monotonic()
        self.thread = threading.Thread()

    def __call__(self) -> None:
        """Begin, unless it was begun not long ago or goes on still."""
        if self.thread.is_alive() or time.monotonic() - self.begun < self.seconds:
            return
        self.begun = time.monotonic()
        self.thread = threading.Thread(target=self._try, daemon=True)
        self.thread.start()

    def _try(self) -> None:
        try:
            self.do()
        except Exception as error:
            self.tell(f"what is done beside the jobs failed: {type(error).__name__}: {error}")

    def end(self) -> None:
        """Wait for what was begun."""
        if self.thread.is_alive():
            self.thread.join()
