"""Full-size tables that travel with the package: minutes of a GPU, read in milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from taskuq.errors import InputError
from taskuq.files import read_json
from taskuq.outputs import TaskOutputs
from taskuq.weights import shipped

FOLDER = Path(__file__).parent


def stored() -> list[str]:
    """Return the names of the tables in the package.

    Example:
        >>> {"atlas-flow", "atlas-varnet"} <= set(stored())
        True
    """
    return sorted(path.stem for path in FOLDER.glob("*.npz"))


def embedded_sampler() -> str:
    """Return which network draws the posterior samples of the embedded experiment.

    It is the sampler where the package has its weights and its table, else the flow.

    Example:
        >>> f"atlas-{embedded_sampler()}" in stored()
        True
    """
    is_there = "sampler-atlas" in shipped() and "atlas-sampler" in stored()
    return "sampler" if is_there else "flow"


def stored_table(name: str) -> TaskOutputs:
    """Read a table of the package.

    ``atlas-flow`` has posterior samples of atlas patients that no network was trained on, and so
    has ``atlas-sampler`` where it is there; ``atlas-varnet`` has point estimates of the same
    slices. configs/atlas/table-flow.toml and its neighbours describe them; ``python -m
    scripts.tables`` draws and installs them.

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
