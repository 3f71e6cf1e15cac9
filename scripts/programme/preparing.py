"""What a bare machine lacks, in one folder: data, the atlas's base, packages of plain Python."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from scripts.programme.carrying import ARCHIVE

from taskuq.errors import InputError

# Which packages travel, with what they need themselves; the machine has its own torch, lightning,
# safetensors, numpy, scipy, numba, h5py, pyarrow, matplotlib and pytest.
SITE = ("cyclopts", "lazy-loader", "tomli-w", "jinja2", "ismrmrd", "pytest-timeout")
THERE = frozenset({"numpy", "h5py", "pytest", "markupsafe"})
MIB = 2**20
# What may travel, the tracked files of the repository included.
MOST = 62 * MIB


def prepare(folder: Path, parts: Sequence[str], sources: dict[str, Path | None]) -> list[Path]:
    """Make the parts that are asked for, and return the files.

    Arguments:
        folder: Where they go; what it held before is removed.
        parts: Some of ``PARTS``.
        sources: The files of real data, by part; a part without its source is refused.
    """
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise InputError(f"there is no part {unknown[0]}; choose from {', '.join(PARTS)}")
    missing = [part for part in parts if part in sources and sources[part] is None]
    if missing:
        raise InputError(f"{missing[0]} needs real data; name its file, or leave that part out")
    mark = folder / "prepared.txt"
    if folder.exists() and not mark.exists():
        raise InputError(f"{folder} is there and was not prepared by this; give another folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    mark.write_text("\n".join(parts) + "\n")
    for part in parts:
        PARTS[part](folder, sources.get(part))
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _base(folder: Path, source: Path | None) -> None:
    from taskuq.data.anatomy import save_anatomy

    save_anatomy(folder / "base.npz")


def _site(folder: Path, source: Path | None) -> None:
    with tarfile.open(folder / ARCHIVE, "w:xz") as tar:
        for one in closure(SITE):
            for file in one.files or ():
                is_inside = ".." not in file.parts and "__pycache__" not in file.parts
                if is_inside and Path(str(file.locate())).exists():
                    tar.add(str(file.locate()), file.as_posix())


def closure(names: Sequence[str]) -> list[Distribution]:
    """Installed packages and what they need, without what is there already.

    Arguments:
        names: The packages.
    """
    found: dict[str, Distribution] = {}
    asked = list(names)
    while asked:
        name = asked.pop().lower()
        if name in THERE or name in found:
            continue
        found[name] = distribution(name)
        if any(str(file).endswith((".so", ".pyd")) for file in found[name].files or ()):
            raise InputError(f"{name} is not plain Python; name it in THERE, or do without it")
        for line in found[name].requires or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                asked.append(needed.name)
    return list(found.values())


def _lgg(folder: Path, source: Path | None) -> None:
    from scripts.lgg import main

    assert source is not None
    main(source, folder / "data")


PARTS: dict[str, Callable[[Path, Path | None], None]] = {
    "base": _base,
    "site": _site,
    "lgg": _lgg,
}
