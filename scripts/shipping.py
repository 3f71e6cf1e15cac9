"""Train a recovery network for some seconds and ship it; embedded_gpu.py runs this.

python -m scripts.shipping flow best.safetensors                  # into the package, in float16
python -m scripts.shipping sampler best.safetensors FILE.safetensors        # or anywhere else
"""

from __future__ import annotations

import csv
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import taskuq.weights
from taskuq.recover import load
from taskuq.settings import read_toml
from taskuq.training.fit import Machine, train
from taskuq.training.networks import NETWORKS
from taskuq.weights.files import save_weights

MACHINE = Machine(progress=False)
# Around whose estimates a shipped network draws, where that is not the atlas's.
ESTIMATES = {"views-sampler": "unrolled-chest"}


def train_one(
    kind: str, settings: Any, folder: Path, seconds: float, say: Callable[[str], None] = print
) -> None:
    begin = time.monotonic()
    cases = settings.prepare(MACHINE)
    say(f"{folder.name} {kind}: {len(cases[0])} cases in {time.monotonic() - begin:.0f} s")
    if seconds:
        settings = fitting(settings, cases, seconds, say)
    begin = time.monotonic()
    best = fit(settings, cases, deadline=1.2 * seconds)
    took = time.monotonic() - begin
    say(f"{folder.name} {kind}: {settings.training.epochs} epochs in {took:.0f} s")
    ship(best, folder / f"{kind}.safetensors", kind, seconds=round(took))
    shutil.copy(best.parent / "metrics.csv", folder / f"{kind}.csv")


def fit(settings: Any, cases: Any, deadline: float = 0) -> Path:
    """Train; at the deadline, in seconds, the best weights so far have to do."""
    folder = Path(tempfile.mkdtemp()) / "training"
    signal.signal(signal.SIGALRM, _too_late)
    signal.setitimer(signal.ITIMER_REAL, deadline)
    try:
        return train(settings, folder, machine=MACHINE, cases=cases, fresh=True)
    except TimeoutError:
        return folder / "best.safetensors"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _too_late(*_: object) -> None:
    raise TimeoutError


def fitting(settings: Any, cases: Any, seconds: float, say: Callable[[str], None]) -> Any:
    """The settings with as many epochs as fit into some seconds."""
    short = fit(replace(settings, training=replace(settings.training, epochs=2)), cases)
    with (short.parent / "metrics.csv").open() as file:
        epoch = float(list(csv.DictReader(file))[-1]["seconds"])  # the first one warms up
    epochs = min(settings.training.epochs, max(1, int(seconds / epoch)))
    say(f"an epoch takes {epoch:.1f} s: {epochs} epochs")
    return replace(settings, training=replace(settings.training, epochs=epochs))


def ship(best: Path, target: Path, kind: str, seconds: float) -> Path:
    """The best weights in float16, for the package."""
    net, card = load(best), read_toml(best.with_suffix(".toml"))
    notes = {k: v for k, v in card.items() if k not in ("kind", "network")}
    notes["data"] = {k: v for k, v in notes["data"].items() if k != "path"}
    notes["seconds"] = seconds
    return save_weights(net, target, kind=kind, config=net.config, notes=notes, half=True)


def install(kind: str, best: Path, target: Path | None = None) -> Path:
    """Put a trained network of the atlas into the package, under its name there, or elsewhere."""
    target = target or Path(taskuq.weights.__file__).parent / f"{kind}-atlas.safetensors"
    card = read_toml(best.with_suffix(".toml"))
    net: Any = NETWORKS[kind].load(best, card["network"])
    notes = {k: v for k, v in card.items() if k not in ("kind", "network")}
    if "estimate" in notes:
        # A table where a network says more about its estimates than whose they are.
        whose = ESTIMATES.get(kind, "varnet-atlas")
        notes["estimate"] = {"weights": whose} if isinstance(notes["estimate"], dict) else whose
    return save_weights(net, target, kind=kind, config=net.config, notes=notes, half=True)


if __name__ == "__main__":
    print(install(sys.argv[1], *map(Path, sys.argv[2:])))
