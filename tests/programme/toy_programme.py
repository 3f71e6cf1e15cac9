"""The samplers' programme at toy size: a copy of the repository whose networks and data are tiny.

Jobs, their order and their commands stay as they are; configurations get fewer and smaller of
everything, and what only a GPU can do is replaced by its toy.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from taskuq.settings import from_table, read_toml, toml_text
from taskuq.training.networks import NETWORKS as KINDS
from taskuq.weights.files import save_weights

ROOT = Path(__file__).resolve().parents[2]
PLAN, OTHER = "scripts/programme/samplers.toml", "scripts/programme/embedded.toml"
SIZE, SAMPLES = 32, 4
VARNET = {"cascades": 1, "width": 4, "pools": 2, "sensitivity_width": 2, "sensitivity_pools": 2}
# Networks of a kind, told from each other by a setting that only they have.
NETWORKS: dict[str, dict[str, Any]] = {
    "cascades": VARNET,
    "drawn": {"width": 8, "drawn": [8, 8]},
    "unet_width": {
        "unet_width": 4, "unet_pools": 2, "condition_channels": 4, "layers": 2, "steps": 1,
    },
    "hidden": {"hidden": [8], "backbone": {"kind": "small", "width": 4}},
}  # fmt: skip
TRAINING = {
    "epochs": 2, "batch": 4, "warmup": 0, "keep_every": 1, "replay": False, "precision": "32-true",
}  # fmt: skip
# So many that a call can be stopped between the first and the last.
STOPPED, EPOCHS = "lgg-sampler", 40
# Networks that trainings and tables start from, and how each names the one it draws around.
PACKAGE: dict[str, Any] = {
    "varnet": None, "flow": "varnet-atlas", "sampler": {"weights": "varnet-atlas"},
}  # fmt: skip
# What only a GPU can do, and what stands for it.
INSTEAD = {
    "benchmarks.scanner_gpu": "benchmarks.scanner_gpu --toy",
    "benchmarks.speed_gpu sampler": "benchmarks.speed_gpu step --toy",
    "benchmarks.speed_gpu varnet": "benchmarks.speed_gpu step --toy",
    "--device cuda": "--device cpu --draws 8",
    "--cases 1200": "--cases 8",
}


def checkout(folder: Path) -> Path:
    """A machine's copy of the repository, at toy size."""
    for name in ("src", "scripts", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "tests" / "recover").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "recover" / "test_gpu.py", folder / "tests" / "recover")
    for path in (ROOT / "configs").rglob("*.toml"):
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        table = read_toml(path)
        shrink(table)
        if path.match(f"{STOPPED.replace('-', '/', 1)}.toml"):
            table["training"]["epochs"] = EPOCHS
        target.write_text(toml_text(table))
    for kind in PACKAGE:
        shipped(kind, folder)
    for name in (PLAN, OTHER):
        (folder / name).write_text(plan((ROOT / name).read_text()))
    return folder


def shipped(kind: str, folder: Path) -> None:
    """Put an untrained network of the package's name there: trainings and tables start from it."""
    network = read_toml(folder / "configs" / "atlas" / f"{kind}.toml")["network"]
    net = KINDS[kind].make(from_table(KINDS[kind].config, network))
    notes = {} if kind == "varnet" else {"estimate": PACKAGE[kind]}
    path = folder / "src" / "taskuq" / "weights" / f"{kind}-atlas.safetensors"
    save_weights(net, path, kind=kind, config=net.config, notes=notes)


def plan(text: str) -> str:
    """The plan, for a machine without a GPU where all is slow and small."""
    for words, toy in INSTEAD.items():
        text = text.replace(words, toy)
    text = re.sub(r"^left = .*\n", "left = 0.01\n", text, flags=re.MULTILINE)
    return re.sub(r"^minutes = .*\n", "minutes = 30\n", text, flags=re.MULTILINE)


def shrink(table: dict[str, Any], *, is_small: bool = False) -> None:
    """Make what a configuration says small, in place.

    Arguments:
        table: The configuration.
        is_small: Whether its networks are small already, and start from those of the package.
    """
    is_small = is_small or "views" in table.get("measure", {})
    for key in ("samples", "cases"):
        if table.get(key, 0) > SAMPLES:
            table[key] = SAMPLES
    table |= {"draws": 1} if "learned" in table else {"block": 32} if "block" in table else {}
    table |= {"tries": 1} if "tries" in table else {}
    for name in ("network", "training", "pretrain", "data", "scans"):
        if name in table and not (is_small and name == "network"):
            SHRUNK[name](table[name])
    if "estimate" in table and isinstance(table["estimate"], dict):
        shrink(table["estimate"], is_small=is_small)


def _network(table: dict[str, Any]) -> None:
    for key, small in NETWORKS.items():
        if key in table:
            table |= small


def _training(table: dict[str, Any]) -> None:
    table.pop("minutes", None)
    table |= TRAINING


def _data(table: dict[str, Any]) -> None:
    if table["kind"] == "atlas":
        patients = 24 if table.get("patients", 0) >= 1000 else 6
        table |= {"patients": patients, "size": SIZE, "slices": 2}
        table["validation"] = 0.34
    if table["kind"] == "chest":
        table |= {"patients": 6, "slices": 2, "validation": 0.34}
    if table.get("coils"):
        table["coils"] = 2


def _scans(table: dict[str, Any]) -> None:
    if "coils" in table:
        table["coils"] = [2]


SHRUNK = {
    "network": _network, "training": _training, "pretrain": _training, "data": _data,
    "scans": _scans,
}  # fmt: skip


def heads(path: Path) -> Path:
    """Slices of 16 patients, as scripts/lgg.py takes them."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(16), 3)
    np.savez(
        path,
        images=rng.integers(0, 255, (48, SIZE, SIZE), dtype=np.uint8),
        label=(np.arange(48) % 3 > 0).astype(np.uint8),
        group=group,
        tumour_area_px256=rng.integers(0, 99, 48),
        central=np.ones(48, dtype=bool),
    )
    return path
