"""Train the small recovery networks of the embedded experiment and judge them.

    python benchmarks/recover_atlas.py OUT [SECONDS]      # needs a GPU to be quick

Trains configs/atlas/{varnet,flow}.toml side by side, judges both and zero-filling on validation
patients at R = 16, 8, 4, 2, and leaves in the folder OUT: quality.json, the two learning curves,
and the two networks' weights in float16 with their cards. With SECONDS, two epochs are timed first
and the number of epochs is lowered to what fits. A host without nilearn needs a base file of the
atlas (``taskuq data atlas-base``), named by TASKUQ_ATLAS_BASE.
"""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from taskuq.recover import load
from taskuq.recover.quality import QualityConfig, judge
from taskuq.recover.train import FlowTraining, VarNetTraining, train
from taskuq.training.fit import Machine
from taskuq.training.sources import open_data
from taskuq.training.toml import read_settings, read_toml
from taskuq.training.weights import save_weights

LAYOUTS = {"varnet": VarNetTraining, "flow": FlowTraining}
CONFIGS = Path(__file__).resolve().parents[1] / "configs" / "atlas"


def train_one(kind: str, configs: Path, folder: Path, seconds: float, loaders: int = 6) -> None:
    settings = read_settings(LAYOUTS[kind], configs / f"{kind}.toml")
    settings = replace(settings, training=replace(settings.training, workers=loaders))
    begin = time.monotonic()
    cases = open_data(settings.data)
    print(f"{kind}: {len(cases[0])} cases in {time.monotonic() - begin:.0f} s", flush=True)
    if seconds:
        settings = fitting(settings, cases, seconds)
    begin = time.monotonic()
    best = fit(settings, cases)
    took = time.monotonic() - begin
    print(f"{kind}: {settings.training.epochs} epochs in {took:.0f} s", flush=True)
    ship(best, folder / f"{kind}.safetensors", kind, seconds=round(took))
    shutil.copy(best.parent / "metrics.csv", folder / f"{kind}.csv")


def fit(settings: Any, cases: Any) -> Path:
    folder = Path(tempfile.mkdtemp()) / "training"
    return train(settings, folder, machine=Machine(progress=False), data=cases, fresh=True)


def fitting(settings: Any, cases: Any, seconds: float) -> Any:
    """The settings with as many epochs as fit into some seconds."""
    short = fit(replace(settings, training=replace(settings.training, epochs=2)), cases)
    with (short.parent / "metrics.csv").open() as file:
        first, second = (float(row["seconds"]) for row in csv.DictReader(file))
    # The first epoch pays for everything that happens once.
    epoch = max(second - first, 0.1)
    epochs = min(settings.training.epochs, max(1, int(seconds / epoch)))
    print(f"an epoch takes {epoch:.1f} s: {epochs} epochs", flush=True)
    return replace(settings, training=replace(settings.training, epochs=epochs))


def train_both(configs: Path, folder: Path, seconds: float) -> None:
    # Small networks leave most of a GPU idle: train them side by side.
    command = [sys.executable, __file__, "one"]
    processes = [
        subprocess.Popen([*command, kind, str(configs), str(folder), str(seconds)])
        for kind in LAYOUTS
    ]
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit("a training failed; see above")
    settings = read_settings(FlowTraining, configs / "flow.toml")
    weights = {kind: folder / f"{kind}.safetensors" for kind in LAYOUTS}
    record = judge(
        QualityConfig(data=settings.data, measure=settings.measure, **weights, volumes=12),
        tell=lambda line: print(line, flush=True),
    )
    (folder / "quality.json").write_text(json.dumps(record, indent=1))
    for row in record["results"]:
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})


def ship(best: Path, target: Path, kind: str, seconds: float) -> Path:
    """The best weights in float16, for the package."""
    net, card = load(best), read_toml(best.with_suffix(".toml"))
    notes = {k: v for k, v in card.items() if k not in ("kind", "network")}
    notes["data"] = {k: v for k, v in notes["data"].items() if k != "path"}
    notes["seconds"] = seconds
    return save_weights(net, target, kind=kind, config=net.config, notes=notes, half=True)


def main() -> None:
    match sys.argv[1:]:
        case ["one", kind, configs, folder, seconds]:
            train_one(kind, Path(configs), Path(folder), float(seconds))
        case [folder, *rest] if len(rest) <= 2:
            Path(folder).mkdir(parents=True, exist_ok=True)
            configs = Path(rest[1]) if rest[1:] else CONFIGS
            train_both(configs, Path(folder), float(rest[0]) if rest else 0)
        case _:
            print(__doc__)


if __name__ == "__main__":
    main()
