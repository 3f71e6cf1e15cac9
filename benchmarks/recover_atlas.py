"""Train the small recovery networks on the embedded atlas and judge them.

    python benchmarks/recover_atlas.py prepare atlas.npz      # needs nilearn; a few minutes
    python benchmarks/recover_atlas.py train atlas.npz out    # needs a GPU to be quick

The first command writes magnitude slices of atlas patients, which a GPU host without nilearn can
read. The second trains configs/atlas/{varnet,flow}.toml, judges both and zero-filling on
validation patients at R = 16, 8, 4, 2, and leaves in the output folder: quality.json, the two
learning curves, and the two networks' weights in float16 with their cards.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from taskuq.recover import load
from taskuq.recover.quality import QualityConfig, judge
from taskuq.recover.train import FlowTraining, VarNetTraining, train
from taskuq.training.fit import Machine
from taskuq.training.sources import open_data
from taskuq.training.toml import read_settings, read_toml
from taskuq.training.weights import save_weights

LAYOUTS = {"varnet": VarNetTraining, "flow": FlowTraining}
CONFIGS = Path(__file__).resolve().parents[1] / "configs" / "atlas"


def prepare(path: Path, patients: int = 200) -> None:
    from taskuq.data.atlas import Atlas, save_atlas

    begin = time.monotonic()
    save_atlas(Atlas(patients, seed=0, coils=0), path, workers=2)
    print(f"{path}: {patients} patients in {time.monotonic() - begin:.0f} s")


def train_one(kind: str, path: Path, folder: Path) -> None:
    settings = read_settings(LAYOUTS[kind], CONFIGS / f"{kind}.toml")
    data = replace(settings.data, kind="npz", path=path, in_memory=True)
    settings = replace(settings, data=data, training=replace(settings.training, workers=6))
    begin = time.monotonic()
    cases = open_data(data)
    print(f"{kind}: {len(cases[0])} cases read in {time.monotonic() - begin:.0f} s", flush=True)
    begin = time.monotonic()
    best = train(
        settings,
        Path(tempfile.mkdtemp()) / kind,
        machine=Machine(progress=False),
        data=cases,
        fresh=True,
    )
    print(f"{kind}: trained in {time.monotonic() - begin:.0f} s", flush=True)
    ship(best, folder / f"{kind}.safetensors", kind)
    shutil.copy(best.parent / "metrics.csv", folder / f"{kind}.csv")


def train_both(path: Path, folder: Path) -> None:
    # Small networks leave most of a GPU idle: train them side by side.
    processes = [
        subprocess.Popen([sys.executable, __file__, "train-one", kind, str(path), str(folder)])
        for kind in LAYOUTS
    ]
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit("a training failed; see above")
    settings = read_settings(FlowTraining, CONFIGS / "flow.toml")
    data = replace(settings.data, kind="npz", path=path, in_memory=True)
    weights = {kind: folder / f"{kind}.safetensors" for kind in LAYOUTS}
    record = judge(
        QualityConfig(data=data, measure=settings.measure, **weights, volumes=12),
        tell=lambda line: print(line, flush=True),
    )
    (folder / "quality.json").write_text(json.dumps(record, indent=1))
    for row in record["results"]:
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})


def ship(best: Path, target: Path, kind: str) -> Path:
    """The best weights in float16, for the package."""
    net, card = load(best), read_toml(best.with_suffix(".toml"))
    notes = {k: v for k, v in card.items() if k not in ("kind", "network")}
    notes["data"] = {k: v for k, v in notes["data"].items() if k != "path"}
    return save_weights(net, target, kind=kind, config=net.config, notes=notes, half=True)


def main() -> None:
    match sys.argv[1:]:
        case ["prepare", path]:
            prepare(Path(path))
        case ["train", path, folder]:
            Path(folder).mkdir(parents=True, exist_ok=True)
            train_both(Path(path), Path(folder))
        case ["train-one", kind, path, folder]:
            train_one(kind, Path(path), Path(folder))
        case _:
            print(__doc__)


if __name__ == "__main__":
    main()
