"""Durable writing of files, JSON records, fingerprints and file locks."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import platform
import re
import shutil
import signal
import stat
import sys
import tempfile
import threading
import uuid
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from taskuq.errors import ChecksumWarning, InputError, MachineError, first_line

if TYPE_CHECKING:
    from numpy.typing import NDArray


# Failures of the machine, with a remedy.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
IN_THE_WAY = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY)
ADVICE = {
    **dict.fromkeys(FULL, "the disk is full; free some space and rerun"),
    **dict.fromkeys(REFUSED, "get the permission, or use another folder"),
    **dict.fromkeys(IN_THE_WAY, "something of that name exists; use another name"),
}
BROKEN = (*REFUSED, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ESTALE)
# Bytes that any file may unpack to, and how many times its size beyond that.
ROOM, MOST_PACKED = 2**29, 50
# Most bytes of a text that is parsed as a whole.
LARGEST_TEXT = 2**26
# Errors of file systems without hard links.
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class ExistingFileError(Exception):
    """Error for a file that should be new but already exists."""


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Convert an OSError in the block into a MachineError that names the file."""
    try:
        yield
    except MachineError:
        raise
    except OSError as error:
        reason = error.strerror or first_line(error)
        advice = ADVICE.get(error.errno or 0, "check the disk and rerun")
        raise MachineError(f"cannot write {path} ({reason:.120}); {advice}") from None


@contextmanager
def reading(path: str | os.PathLike[str], what: str, advice: str = "") -> Iterator[None]:
    """Convert any exception in the block into an error that names the file."""
    tail = f"; {advice}" if advice else ""
    try:
        require_file(path)
        yield
    except (InputError, MachineError):
        raise
    except MemoryError:
        raise MachineError(f"out of memory while reading {path}; use a smaller file") from None
    except Exception as error:
        reason = (getattr(error, "strerror", None) or first_line(error)).strip()
        sentence = f"{path} cannot be read as {what} ({' '.join(reason.split()):.120}){tail}"
        if isinstance(error, OSError) and error.errno in BROKEN:
            raise MachineError(sentence) from None
        missing = isinstance(error, FileNotFoundError)
        raise InputError(sentence, code="file.missing" if missing else "file.format") from None


def require_file(path: str | os.PathLike[str]) -> None:
    """Raise InputError for a device or a pipe, because reading it may never end."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        text = f"{path} is a device or a pipe; copy its contents to a file"
        raise InputError(text, code="file.format")


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a file, device or pipe; raise InputError if it is too long."""
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_TEXT + 1)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror or error}"
        raise InputError(message, code="file.missing") from None
    if len(data) > LARGEST_TEXT:
        text = f"{path} is larger than {LARGEST_TEXT >> 20} MiB; use a smaller file"
        raise InputError(text, code="file.format")
    return data.decode("utf-8")


def require_plausible_size(path: str | os.PathLike[str], claimed: int) -> None:
    """Raise InputError if the claimed uncompressed size is implausible for the file."""
    size = Path(path).stat().st_size
    if claimed > max(ROOM, MOST_PACKED * size):
        message = f"{path} would unpack to {claimed / 1e9:.4g} GB; store it uncompressed"
        raise InputError(message, code="file.damaged")


def fsync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        # Some network file systems cannot flush folders.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(file)


def make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    with writing(folder):
        new = [place for place in (folder, *folder.parents) if not place.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for place in new:
            fsync(place.parent)


def _create_file(partial: Path, target: Path) -> None:
    """Create the target as a hard link to a finished temporary file, or as a copy if links fail."""
    try:
        try:
            os.link(partial, target)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            # A kill may leave half of it.
            with target.open("xb") as file:
                file.write(partial.read_bytes())
            fsync(target)
    except FileExistsError:
        raise ExistingFileError(str(target)) from None


def is_regular_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


@contextmanager
def sigterm_as_exit() -> Iterator[None]:
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


SEAL = "sha256"
# Lock of a run folder, which has one writer at a time.
LOCK = ".lock"
# Files up to this size are hashed whole; of larger ones some blocks.
WHOLE, BLOCKS, BLOCK = 2**25, 64, 2**16


def fingerprint(record: Any) -> str:
    """Return the SHA-256 of JSON values; it does not depend on the order of keys."""
    # Back and forth: JSON turns numeric keys into strings.
    plain = json.loads(json.dumps(record))
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def with_checksum(record: Mapping[str, Any]) -> dict[str, Any]:
    rest = dict(record)
    rest.pop(SEAL, None)
    return {**rest, SEAL: fingerprint(rest)}


def verify_checksum(
    record: Mapping[str, Any],
    path: str | os.PathLike[str],
    remedy: str = "write it again",
    *,
    always: bool = True,
) -> None:
    """Raise InputError if the checksum of a record is wrong or, with ``always``, missing."""
    if SEAL in record:
        rest = dict(record)
        if rest.pop(SEAL) != fingerprint(rest):
            raise InputError(f"{path} does not match its SHA-256; {remedy}", code="file.damaged")
    elif always:
        raise InputError(f"{path} has no SHA-256; {remedy}", code="file.damaged")
    else:
        message = f"{path} has no SHA-256, so damage cannot be detected"
        warnings.warn(message, ChecksumWarning, stacklevel=3)


def content_fingerprint(path: Path) -> str:
    """Return a fingerprint of a file, or of the names and contents of a folder's files."""
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
        return fingerprint([(str(p.relative_to(path)), content_fingerprint(p)) for p in files])
    digest = hashlib.sha256()
    with reading(path, "bytes"), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(size.to_bytes(8, "little"))
        if size <= WHOLE:
            digest.update(file.read(WHOLE))
        else:
            for k in range(BLOCKS):
                file.seek(k * (size - BLOCK) // (BLOCKS - 1))
                digest.update(file.read(BLOCK))
    return digest.hexdigest()


# Folders in which this process has removed the leftovers of killed ones.
_swept: set[Path] = set()


@contextmanager
def atomic_write(
    path: str | os.PathLike[str], *, exclusive: bool = False, private: bool = False
) -> Iterator[Path]:
    """Yield a temporary path; after success, its file durably replaces the one at ``path``.

    Links are followed, and devices and pipes are written directly. With ``private``, only the
    owner can read the file; otherwise permissions follow the umask.
    """
    target = Path(path)
    with writing(target), ExitStack() as scratch:
        target, in_place = (target, False) if exclusive else _follow_links(target)
        folder = target.parent
        if in_place:
            folder = Path(scratch.enter_context(tempfile.TemporaryDirectory()))
        else:
            make_folder(folder)
            _remove_leftovers(folder)
        partial = (
            folder / f".{target.name}.{_machine()}_{os.getpid()}_{uuid.uuid4().hex[:8]}.partial"
        )
        try:
            os.close(os.open(partial, os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666))
            mode = stat.S_IMODE(partial.stat().st_mode)
            yield partial
            # Some libraries replace the file by one of their own mode.
            if stat.S_IMODE(partial.stat().st_mode) != mode:
                partial.chmod(mode)
            if in_place:
                _copy_into(partial, target)
                return
            fsync(partial)
            (_create_file if exclusive else os.replace)(partial, target)
            fsync(folder)
        finally:
            partial.unlink(missing_ok=True)


def _follow_links(path: Path) -> tuple[Path, bool]:
    """Return the target of a path, and True if it is a device, a pipe or an open file."""
    for _ in range(40):
        # Names such as /dev/stdout lead to an open file, which has no name to replace.
        if os.path.realpath(path.parent).startswith("/proc/"):
            return path, True
        if not path.is_symlink():
            break
        path = path.parent / os.readlink(path)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return path, False
    return path, not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _copy_into(source: Path, target: Path) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOCTTY
    with open(os.open(target, flags), "wb") as out, source.open("rb") as file:
        shutil.copyfileobj(file, out)


@cache
def _machine() -> str:
    name = platform.node()
    with suppress(OSError):
        name += os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files left by killed processes of this machine."""
    if folder in _swept:
        return
    _swept.add(folder)
    ours = re.compile(rf"\..*\.{_machine()}_(\d+)_\w{{8}}\.partial")
    with os.scandir(folder) as entries:
        found = [(entry.path, ours.fullmatch(entry.name)) for entry in entries]
    for path, match in found:
        if match:
            try:
                os.kill(int(match[1]), 0)
            except ProcessLookupError:
                Path(path).unlink(missing_ok=True)
            except (OSError, OverflowError):
                continue


def image_format(path: str | os.PathLike[str]) -> str:
    ending = Path(path).suffix.lower().removeprefix(".") or "png"
    if ending not in ("png", "svg", "pdf"):
        raise InputError(
            f"the name of an image must end in .png, .svg or .pdf, got {path}", code="value.invalid"
        )
    return ending


def safe_join(folder: str | os.PathLike[str], name: str) -> Path:
    """Return a path inside a folder; raise InputError if the name leads out of it."""
    try:
        root = Path(folder).resolve()
        path = (root / name).resolve()
        too_long = any(len(os.fsencode(part)) > 255 for part in path.parts)
        leads_out = path == root or too_long or not path.is_relative_to(root)
    except (ValueError, OSError, RuntimeError):  # a zero byte, a name too long, a loop of links
        leads_out = True
    if leads_out:
        raise InputError(
            f"{name!r:.80} is not a file name inside {folder}; rename that case",
            code="value.invalid",
        )
    return path


def json_text(record: Mapping[str, Any], *, indent: int | None = 1) -> str:
    return json.dumps(with_checksum(record), indent=indent, allow_nan=False)


def write_json(
    path: str | os.PathLike[str],
    record: Mapping[str, Any],
    *,
    exclusive: bool = False,
    private: bool = False,
) -> Path:
    with atomic_write(path, exclusive=exclusive, private=private) as partial:
        partial.write_text(json_text(record) + "\n", encoding="utf-8")
    return Path(path)


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dictionary; raise ValueError for a repeated key."""
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key occurs twice")
    return record


def parse_json(text: str | bytes, *, constants: bool = False) -> Any:
    """Parse JSON; reject repeated keys and, unless ``constants`` is True, NaN and Infinity."""
    refuse = None if constants else _refuse_constant
    return json.loads(text, parse_constant=refuse, object_pairs_hook=_unique_keys)


def load_json(path: str | os.PathLike[str]) -> Any:
    return parse_json(read_text(path))


def read_json(
    path: str | os.PathLike[str],
    *schemas: str,
    remedy: str = "write it again",
    is_sealed: bool = True,
) -> dict[str, Any]:
    try:
        record = load_json(path)
    except InputError:
        raise
    except (ValueError, RecursionError):
        text = f"{path} is not JSON, is truncated, or has a repeated key; {remedy}"
        raise InputError(text, code="file.format") from None
    found = record.get("schema") if isinstance(record, dict) else None
    if found not in schemas:
        kind, slash, _ = str(found).partition("/")
        other = next((schema for schema in schemas if schema.startswith(kind + slash)), None)
        needed = f"update taskuq ({other})" if slash and other else f"{schemas[0]} is needed"
        raise InputError(f"{path} has schema {found}, {needed}", code="file.schema")
    verify_checksum(record, path, remedy, always=is_sealed)
    record.pop(SEAL, None)
    return dict(record)


@contextmanager
def complete_record(path: str | os.PathLike[str], what: str, remedy: str = "") -> Iterator[None]:
    """Convert errors from missing or invalid entries into an InputError that names the file."""
    try:
        yield
    except InputError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        message = f"{path} is not a complete {what} ({error!r:.80})"
        raise InputError(f"{message}; {remedy}".rstrip("; "), code="file.format") from None


def append_jsonl(
    path: Path,
    records: Iterable[Mapping[str, Any]],
    *,
    durable: bool = False,
    private: bool = False,
) -> None:
    """Append records to a JSON Lines file in one write; refuse links and pipes."""
    text = "".join([json.dumps(record, ensure_ascii=False) + "\n" for record in records])
    # A lone surrogate, from a file name, is escaped.
    data = text.encode("utf-8", "backslashreplace")
    with writing(path):
        is_new = not os.path.lexists(path)
        if not is_new and not is_regular_file(path):
            raise MachineError(f"cannot write {path}: it is not a regular file; remove it")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        file = os.open(path, flags, 0o600 if private else 0o666)
        try:
            while data:
                data = data[os.write(file, data) :]
            if durable:
                os.fsync(file)
        finally:
            os.close(file)
        if durable and is_new:
            fsync(path.parent)


def read_jsonl(path: Path) -> Iterator[dict[str, Any] | None]:
    """Yield the JSON object on each line of a JSON Lines file; None for a damaged line."""
    require_file(path)
    for line in path.read_bytes().splitlines():
        try:
            record = parse_json(line, constants=True) if len(line) <= LARGEST_TEXT else None
        except (ValueError, RecursionError):
            record = None
        yield record if isinstance(record, dict) else None


def number_to_json(value: float) -> float | str:
    """Return infinity as a string and other numbers unchanged."""
    return float(value) if math.isfinite(value) else str(float(value))


def number_from_json(value: float | str) -> float:
    number = float(value)
    if math.isnan(number):
        raise InputError("the file has NaN instead of a number", code="value.nonfinite")
    return number


def range_to_json(range_: tuple[float, float] | None) -> list[str] | None:
    return None if range_ is None else [str(end) for end in range_]


def to_json_value(value: Any) -> Any:
    """Convert a value to JSON types; infinity becomes a string, and NaN becomes null."""
    # Only values with infinity, NaN, odd keys or other types need a look at each of them.
    with suppress(TypeError, ValueError):
        text = json.dumps(value, allow_nan=False)
        if not re.search('"(true|false|null)":', text):
            return json.loads(text)
    if isinstance(value, Mapping):
        # JSON has no such keys: they would come back as the texts "true" and "null".
        if odd := [k for k in value if isinstance(k, bool) or k is None]:
            raise InputError(f"a key must be text or a number, got {odd[0]}", code="dtype.invalid")
        return {str(k): to_json_value(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(v) for v in value]
    if isinstance(value, float):
        return None if math.isnan(value) else number_to_json(value)
    return value


@contextmanager
def open_npz(
    path: str | os.PathLike[str], what: str = "arrays"
) -> Iterator[Mapping[str, NDArray[Any]]]:
    """Open an npz file from an untrusted source; each array is read when accessed."""
    import numpy as np  # here, so that writing JSON alone does not load it

    if not Path(path).exists():
        raise InputError(f"there is no file {path} with {what}", code="file.missing")
    advice = "it may be truncated, or hold Python objects instead of arrays"
    with reading(path, what, advice):
        with zipfile.ZipFile(path) as archive:
            require_plausible_size(path, sum([member.file_size for member in archive.infolist()]))
            _refuse_lying_headers(archive, path)
        with np.load(path, allow_pickle=False) as arrays:
            yield arrays


def _refuse_lying_headers(archive: zipfile.ZipFile, path: str | os.PathLike[str]) -> None:
    """Raise InputError if the size of an array contradicts its header, or text is not Unicode."""
    import numpy as np
    from numpy.lib import format

    for member in archive.infolist():
        # Its comment, of which NumPy writes none, would hide the members that follow.
        if member.comment:
            raise InputError(f"{path} is damaged; write it again", code="file.damaged")
        # Opening compares the name in the directory with that of the member itself.
        with archive.open(member) as file:
            if not member.filename.endswith(".npy"):
                continue
            # Version 3.0 differs from 2.0 in the encoding of field names alone.
            is_first = format.read_magic(file) == (1, 0)
            read = format.read_array_header_1_0 if is_first else format.read_array_header_2_0
            shape, _, dtype = read(file)
            # NumPy makes room for one byte where an empty string is declared.
            claimed = math.prod(shape) * max(1, dtype.itemsize)
            held = member.file_size - file.tell()
            array = f"{path}: array {member.filename[:-4]}"
            if claimed != held and not dtype.hasobject:
                message = f"{array} needs {claimed} bytes but has {held}"
                raise InputError(message, code="file.damaged")
            if dtype.kind == "U" and dtype.itemsize:
                points = np.frombuffer(file.read(), f"{dtype.str[0]}u4")
                if points.max(initial=0) > sys.maxunicode:
                    raise InputError(f"{array} is not Unicode; write it again", code="file.damaged")


@contextmanager
def file_lock(path: Path, *, wait: bool = False, what: str = "this file") -> Iterator[None]:
    """Hold a file lock; the lock file exists only while the lock is held."""
    from filelock import FileLock, Timeout  # here: most commands take no lock

    is_new = not path.parent.exists()
    make_folder(path.parent)
    # A soft lock would outlive a killed process.
    lock = FileLock(path, thread_local=False, poll_interval=0.01, fallback_to_soft=False)
    is_held = False
    with writing(path):
        try:
            # The last holder may have removed the file after it was opened here.
            while not is_held:
                lock.acquire(blocking=wait)
                is_held = _is_named(lock, path)
                if not is_held:
                    lock.release()
        except Timeout:
            message = f"another process is working on {what}; wait until it ends"
            raise InputError(message, code="file.exists") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
                raise
            warnings.warn(
                f"{path.parent} does not support locks; start only one process", stacklevel=3
            )
    try:
        yield
    finally:
        with suppress(OSError):
            if is_held:
                path.unlink()
            if is_new:
                path.parent.rmdir()
        lock.release()


def _is_named(lock: Any, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(lock._context.lock_file_fd), os.stat(path))
    except FileNotFoundError:
        return False
