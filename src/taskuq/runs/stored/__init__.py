"""Full-size tables bundled with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from taskuq.errors import InputError
from taskuq.files import read_json
from taskuq.outputs import TaskOutputs

FOLDER = Path(__file__).parent


def stored() -> list[str]:
    """Return the names of the tables in the package.

    Example:
        >>> stored()
        ['atlas-sampler', 'atlas-varnet']
    """
    return sorted(path.stem for path in FOLDER.glob("*.npz"))


def stored_table(name: str) -> TaskOutputs:
    """Read a table of the package.

    ``atlas-sampler`` has posterior samples of atlas patients that no network was trained on,
    ``atlas-varnet`` point estimates of the same slices. ``taskuq run`` makes them from
    configs/atlas/table-sampler.toml and configs/atlas/table-varnet.toml.

    Arguments:
        name: One of :func:`stored`.

    Example:
        >>> stored_table("atlas-varnet").samples
        1
    """
    if name not in stored():
        raise InputError(f"the package has no table {name!r}; it has {', '.join(stored())}")
    return TaskOutputs.load(FOLDER / f"{name}.npz")


def stored_quality() -> dict[str, Any]:
    """Read how well the package's networks recover patients that none of them has seen.

    ``taskuq quality configs/atlas/quality.toml`` measured it.

    Example:
        >>> stored_quality()["schema"]
        'taskuq.quality/1'
    """
    return read_json(FOLDER / "atlas-quality.json", "taskuq.quality/1")
