"""Put what was carried where jobs look for it. Nothing but Python is needed: packages come so."""

from __future__ import annotations

import shutil
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = "site.tar.xz"
# What commands name beside their own modules.
LINKED = ("configs", "tests")
# The folder that lets jobs import what was carried.
LATE = "late"
# What Python runs when a job starts. Carried packages come last, behind the machine's own. A job
# that ends amid work of the GPU takes all others along that share it by MPS, so one that is told to
# end waits for that work first.
START = """import signal
import sys

sys.path.append({site!r})


def end(*_):
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    sys.exit("told to end")


signal.signal(signal.SIGTERM, end)
"""
# Which files of earlier calls are at home, in the folder that is carried.
ARRIVED = "arrived.json"


def put(carried: Path | None, work: Path) -> None:
    """Fill the folder of work, and let this process import what is there.

    Arguments:
        carried: What ``prepare`` made; None where nothing is lacking.
        work: The folder of work; what it holds besides is left alone.
    """
    site = work / "site"
    for path in sorted(carried.rglob("*")) if carried else ():
        target = work / path.relative_to(carried or path)
        if path.name == ARCHIVE:
            with tarfile.open(path) as tar:
                tar.extractall(site, filter="data")
        elif path.is_file() and path.name != ARRIVED:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    work.mkdir(parents=True, exist_ok=True)
    for name in LINKED:
        if not (work / name).exists():
            (work / name).symlink_to(ROOT / name)
    late = work / LATE
    late.mkdir(exist_ok=True)
    (late / "sitecustomize.py").write_text(START.format(site=str(site)))
    sys.path.insert(0, str(ROOT / "src"))
    sys.path.append(str(site))
