"""Where a table comes from: configuration, versions, code revision."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import taskuq

PACKAGES = ("numpy", "torch", "monai", "deepinv")


def provenance(configuration: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return what made a table; everything under ``made_by`` may differ when a run is resumed.

    Arguments:
        configuration: What was asked for; a resumed run must ask for the same.
        seed: The seed of the run.

    Example:
        >>> sorted(provenance({"samples": 4}, seed=0))
        ['configuration', 'made_by', 'seed']
    """
    return {
        "configuration": dict(configuration),
        "seed": seed,
        "made_by": {
            "taskuq": taskuq.__version__,
            "python": platform.python_version(),
            "revision": _revision(),
            **{name: found for name in PACKAGES if (found := _version(name)) is not None},
        },
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _revision() -> str | None:
    """The revision of the source tree we run from; None for an installed package."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        found = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
