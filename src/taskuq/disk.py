"""The disk: what was written is there after a power cut, and what it refuses is one sentence."""

from __future__ import annotations

import errno
import os
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from taskuq.errors import InputError, MachineError, TakenError, first_line

# What is wrong with the machine and not with what was asked of it, and what to do about it.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
IN_THE_WAY = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY)
ADVICE = {
    **dict.fromkeys(FULL, "the disk is full; make room and start again"),
    **dict.fromkeys(REFUSED, "ask for the permission, or choose another place"),
    **dict.fromkeys(IN_THE_WAY, "something of that name is in the way; choose another name"),
}
BROKEN = (*REFUSED, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ESTALE)
# What a file may unpack to whatever its size, in bytes, and how many times its size beyond that.
ROOM, MOST_PACKED = 2**29, 50
# File systems without hard links say one of these.
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what the disk refuses while a file is written into one sentence that names it."""
    try:
        yield
    except MachineError:
        raise
    except OSError as error:
        reason = error.strerror or first_line(error)
        advice = ADVICE.get(error.errno or 0, "see to the disk and start again")
        raise MachineError(f"cannot write {path} ({reason:.120}); {advice}") from None


@contextmanager
def reading(path: str | os.PathLike[str], what: str, advice: str = "") -> Iterator[None]:
    """Turn whatever goes wrong while a file is read into one sentence that names it.

    Every library has its own errors for damaged bytes. What is wrong with the file is the user's to
    mend; a failing disk and memory that runs out are the machine's.
    """
    tail = f"; {advice}" if advice else ""
    try:
        yield
    except (InputError, MachineError):
        raise
    except MemoryError:
        raise MachineError(
            f"memory ran out while {path} was read as {what}; free some, or give a smaller file"
        ) from None
    except Exception as error:
        reason = (getattr(error, "strerror", None) or first_line(error)).strip()
        sentence = f"{path} cannot be read as {what} ({' '.join(reason.split()):.120}){tail}"
        if isinstance(error, OSError) and error.errno in BROKEN:
            raise MachineError(sentence) from None
        missing = isinstance(error, FileNotFoundError)
        raise InputError(sentence, code="file.missing" if missing else "file.format") from None


def require_room(path: str | os.PathLike[str], claimed: int) -> None:
    """Refuse a file that claims to unpack to more than a file of its size can be believed to hold.

    Images and outputs shrink a few times when they are packed. What claims half a gibibyte and
    fifty times its size is damaged, or made to fill the memory.
    """
    size = Path(path).stat().st_size
    if claimed > max(ROOM, MOST_PACKED * size):
        raise InputError(
            f"{path} claims to unpack to {claimed / 1e9:.4g} GB from {size / 1e3:.4g} kB; it is "
            "damaged or forged, or has to be stored unpacked",
            code="file.damaged",
        )


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk and not in memory alone."""
    if os.name != "posix" and path.is_dir():  # pragma: no cover
        return
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        # Some network file systems know no such thing for folders.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(file)


def make_folder(folder: Path) -> None:
    """Make a folder with those above it, to stay."""
    if folder.is_dir():
        return
    with writing(folder):
        new = [place for place in (folder, *folder.parents) if not place.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for place in new:
            sync(place.parent)


def move_in(partial: Path, target: Path, *, exclusive: bool) -> None:
    """Give a finished file its name; where that must be new, of two that try one succeeds."""
    sync(partial)
    if not exclusive:
        os.replace(partial, target)
    else:
        try:
            os.link(partial, target)
        except FileExistsError:
            raise TakenError(str(target)) from None
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            _copy_in(partial, target)
    sync(target.parent)


def _copy_in(partial: Path, target: Path) -> None:
    """Create a file that must be new where there are no links; a kill in between may leave half."""
    try:
        with target.open("xb") as file:
            file.write(partial.read_bytes())
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise TakenError(str(target)) from None


def is_plain(path: Path) -> bool:
    """Return True if a path is a regular file, not a link or a pipe."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def append_bytes(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Append in one piece, as several workers may; never through a link or into a pipe."""
    with writing(path):
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        # Without them a pipe without a reader would be waited for, and a link followed.
        flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        try:
            file = os.open(path, flags, 0o666)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO):
                raise
            raise MachineError(f"cannot write {path}: it is a link or a pipe; remove it") from None
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise MachineError(f"cannot write {path}: it is no file; remove it")
            while data:
                data = data[os.write(file, data) :]
            if durable:
                os.fsync(file)
        finally:
            os.close(file)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that what is finished is written first.

    A handler of the application, and threads other than the main one, are left alone.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
