"""Files that are never half written, JSON records that say what they are, arrays from others."""

from __future__ import annotations

import json
import math
import os
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskuq.disk import append_bytes, make_folder, move_in, reading, require_room, writing
from taskuq.errors import InputError
from taskuq.fingerprints import SEAL, require_seal, sealed

if TYPE_CHECKING:
    from numpy.typing import NDArray


@contextmanager
def whole_file(path: str | os.PathLike[str], *, exclusive: bool = False) -> Iterator[Path]:
    """Give a temporary name to write to; on success it becomes the file, on failure nothing does.

    Once this is left, a power cut does not lose the file: it and its name are on the disk. What the
    disk refuses is one sentence, a :class:`~taskuq.errors.MachineError`.
    """
    target = Path(path)
    with writing(target):
        make_folder(target.parent)
        partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}.partial")
        try:
            yield partial
            move_in(partial, target, exclusive=exclusive)
        finally:
            partial.unlink(missing_ok=True)


def picture_format(path: str | os.PathLike[str]) -> str:
    """Return what kind of picture a name asks for by its ending."""
    ending = Path(path).suffix.lower().removeprefix(".") or "png"
    if ending not in ("png", "svg", "pdf"):
        raise InputError(
            f"the picture is {path}; let its name end in .png, .svg or .pdf", code="value.invalid"
        )
    return ending


def inside(folder: str | os.PathLike[str], name: str) -> Path:
    """Return the path of a name inside a folder; refuse one that leads out of it.

    Names of cases come from files that others wrote, and ``../../home`` is a name too.
    """
    try:
        root = Path(folder).resolve()
        path = (root / name).resolve()
        too_long = any(len(os.fsencode(part)) > 255 for part in path.parts)
        leads_out = path == root or too_long or not path.is_relative_to(root)
    except (ValueError, OSError, RuntimeError):  # a zero byte, a name too long, a loop of links
        leads_out = True
    if leads_out:
        raise InputError(
            f"the name {name!r:.80} is no file name or leads out of {folder}; rename that case",
            code="value.invalid",
        )
    return path


def json_text(record: Mapping[str, Any], *, indent: int | None = 1) -> str:
    """Return a record as the JSON that files and the terminal get; NaN and infinity are refused.

    Its last entry is the SHA-256 of all others, which is verified when the record is read.
    """
    return json.dumps(sealed(record), indent=indent, allow_nan=False)


def write_json(
    path: str | os.PathLike[str], record: Mapping[str, Any], *, exclusive: bool = False
) -> Path:
    """Write a record as JSON and return its path; NaN and infinity are refused.

    Arguments:
        path: The file.
        record: What it is to hold.
        exclusive: Refuse to take the place of another file, as :func:`whole_file` does.
    """
    with whole_file(path, exclusive=exclusive) as partial:
        partial.write_text(json_text(record) + "\n", encoding="utf-8")
    return Path(path)


def _refuse_constant(name: str) -> None:
    """Refuse NaN and Infinity, which are no JSON and never written by us."""
    raise ValueError(name)


def parsed_json(path: str | os.PathLike[str]) -> Any:
    """Return what a JSON file holds; ValueError or RecursionError where it is no JSON."""
    text = Path(path).read_text(encoding="utf-8")
    return json.loads(text, parse_constant=_refuse_constant)


def read_json(
    path: str | os.PathLike[str],
    *schemas: str,
    remedy: str = "write it again",
    is_sealed: bool = True,
) -> dict[str, Any]:
    """Read a record of the given schema, or of one of several, or say why that is impossible.

    A record that is not as it was written is refused: its SHA-256 tells.
    """
    try:
        record = parsed_json(path)
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}", code="file.missing"
        ) from None
    except (ValueError, RecursionError):
        raise InputError(
            f"{path} is not a JSON file, or it is truncated; {remedy}", code="file.format"
        ) from None
    found = record.get("schema") if isinstance(record, dict) else None
    known = {schema.split("/")[0]: schema for schema in schemas}
    kind, slash, _ = found.partition("/") if isinstance(found, str) else ("", "", "")
    schema = known.get(kind) if slash else None
    if schema is None:
        raise InputError(
            f"{path} holds {found or 'no schema'}, but {schemas[0]} is needed", code="file.schema"
        )
    if found != schema:
        raise InputError(
            f"{path} has schema {found}, but this version reads {schema}; update taskuq",
            code="file.schema",
        )
    require_seal(record, path, remedy, always=is_sealed)
    return {name: value for name, value in record.items() if name != SEAL}


@contextmanager
def complete(path: str | os.PathLike[str], what: str, remedy: str = "") -> Iterator[None]:
    """Turn the errors of reading an incomplete record into one sentence."""
    try:
        yield
    except InputError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        advice = f"; {remedy}" if remedy else ""
        raise InputError(
            f"{path} is not a complete {what} ({error!r:.80}){advice}", code="file.format"
        ) from None


def append_jsonl(
    path: Path, records: Iterable[Mapping[str, Any]], *, durable: bool = False
) -> None:
    """Append records to a file of JSON lines in one piece, as several workers may."""
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    # A lone surrogate, from a file name, becomes the escape that JSON has for it.
    append_bytes(path, text.encode("utf-8", "backslashreplace"), durable=durable)


def read_jsonl(path: Path) -> Iterator[dict[str, Any] | None]:
    """Yield the record of each line; None for a line that is damaged or torn by a power cut."""
    for line in path.read_bytes().splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        yield record if isinstance(record, dict) else None


def number_to_json(value: float) -> float | str:
    """Write infinity as a word, because JSON has no number for it."""
    return float(value) if math.isfinite(value) else str(float(value))


def number_from_json(value: float | str) -> float:
    """Read a number, or the words for infinity."""
    number = float(value)
    if math.isnan(number):
        raise InputError("the file holds NaN where a number is needed", code="value.nonfinite")
    return number


def range_to_json(range_: tuple[float, float] | None) -> list[str] | None:
    """Write a task range as two words, infinite ends included; null where there is none."""
    return None if range_ is None else [str(end) for end in range_]


def plain(value: Any) -> Any:
    """Make values fit for JSON: infinity as a word, a missing number as null."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return None if math.isnan(value) else number_to_json(value)
    return value


@contextmanager
def open_npz(
    path: str | os.PathLike[str], what: str = "arrays"
) -> Iterator[Mapping[str, NDArray[Any]]]:
    """Open an .npz file from any source; its arrays are read on access.

    Python objects are never loaded, and an array whose header claims another size than the file
    holds, or more than such a file can hold, is refused before memory is taken for it. Whatever is
    wrong with the file while it is open becomes one sentence.
    """
    import numpy as np  # here, so that writing JSON alone does not load it

    if not Path(path).exists():
        raise InputError(f"there is no file {path}; it should hold {what}", code="file.missing")
    advice = "it may be truncated, or hold Python objects instead of arrays"
    with reading(path, what, advice):
        with zipfile.ZipFile(path) as archive:
            require_room(path, sum(member.file_size for member in archive.infolist()))
            _refuse_lying_headers(archive, path)
        with np.load(path, allow_pickle=False) as arrays:
            yield arrays


def _refuse_lying_headers(archive: zipfile.ZipFile, path: str | os.PathLike[str]) -> None:
    """Refuse an array whose header claims another size than the file holds, before reading it."""
    from numpy.lib import format

    for member in archive.infolist():
        if not member.filename.endswith(".npy"):
            continue
        with archive.open(member) as file:
            known = {(1, 0): format.read_array_header_1_0, (2, 0): format.read_array_header_2_0}
            read = known.get(format.read_magic(file))
            if read is None:
                continue
            shape, _, dtype = read(file)
            claimed = math.prod(shape) * dtype.itemsize
            held = member.file_size - file.tell()
        if claimed != held and not dtype.hasobject:
            raise InputError(
                f"{path}: array {member.filename[:-4]} claims shape {shape} of {dtype} "
                f"({claimed} bytes) but holds {held} bytes; the file is damaged or forged",
                code="file.damaged",
            )
