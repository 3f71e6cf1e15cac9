"""Where a table comes from: configuration, versions, code revision."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import taskuq
from taskuq.fingerprints import content_fingerprint, fingerprint

# The parts of this package that decide what is in a table.
DECIDING = ("data", "measure", "recover", "task", "weights", "pipeline", "seeds.py", "checks.py")
PACKAGES = ("numpy", "torch", "deepinv")


def provenance(configuration: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return what made a table; only what is under ``made_by`` may differ when a run is resumed.

    Arguments:
        configuration: What was asked for; a resumed run must ask for the same.
        seed: The seed of the run.

    Example:
        >>> sorted(provenance({"samples": 4}, seed=0))
        ['code', 'configuration', 'made_by', 'seed']
    """
    return {
        "configuration": dict(configuration),
        "code": code_fingerprint(),
        "seed": seed,
        "made_by": {
            "taskuq": taskuq.__version__,
            "python": platform.python_version(),
            "revision": _revision(),
            **{name: found for name in PACKAGES if (found := _version(name)) is not None},
        },
    }


@lru_cache(maxsize=1)
def code_fingerprint() -> str:
    """Return a fingerprint of the code that decides what is in a table.

    Example:
        >>> len(code_fingerprint())
        16
    """
    root = Path(taskuq.__file__).parent
    files = [p for part in DECIDING for p in (root / part, *(root / part).rglob("*.py"))]
    sources = sorted({p for p in files if p.suffix == ".py"})
    return fingerprint([(str(p.relative_to(root)), content_fingerprint(p)) for p in sources])[:16]


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
