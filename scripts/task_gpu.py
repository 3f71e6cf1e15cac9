"""Train the task networks of the embedded atlas on a GPU, plain and adversarial, and judge them.

    taskuq data atlas-base -o base.npz                         # where nilearn is installed
    TASKUQ_ATLAS_BASE=base.npz python -m scripts.task_gpu OUT [--lgg lgg.npz] [--radii 0,1.5]

All trainings run side by side, each in a process of its own. For each network: AUROC, accuracy,
precision and recall on patients that nothing was chosen by, the same under attack, and how far its
output moves when the image is replaced by a zero-filled one at R = 16, 8, 4, 2. With --lgg, a
cross-validation by patient on an .npz of real slices follows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from taskuq.data.arrays import read_npz
from taskuq.data.atlas import Atlas, draw_patients
from taskuq.data.readers import open_task_data
from taskuq.data.simulate import simulated_coils
from taskuq.data.splits import Part, folds, load_split
from taskuq.measure.coils import rss
from taskuq.measure.masks import nested_masks
from taskuq.measure.mri import MultiCoilMRI
from taskuq.settings import read_settings, read_toml
from taskuq.task import load
from taskuq.task.attack import AttackConfig
from taskuq.task.classifier_training import ClassifierTraining
from taskuq.task.quality import judge_classifier
from taskuq.task.simclr import ContrastiveTraining
from taskuq.training.fit import Machine, train
from taskuq.weights.files import save_weights

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
RATES = (16, 8, 4, 2)
QUIET = Machine(progress=False)


def draw(path: Path, patients: int) -> None:
    """The images of the atlas as the configuration names them, in one file."""
    atlas = Atlas(patients, seed=0, coils=0)
    drawn = draw_patients(atlas, workers=os.cpu_count() or 1)
    area = np.concatenate([patient.area for patient in drawn])
    np.savez(
        path,
        images=np.concatenate([patient.images for patient in drawn]),
        label=(area >= atlas.plan.minimum_area).astype(int),
        group=atlas.groups,
    )


def read_atlas(path: Path) -> Part:
    data = read_npz(path, normalise=False)
    return Part.of(data)


def train_atlas(name: str, images: Path, folder: Path, radius: float, start: str) -> None:
    begin = time.monotonic()
    file = "classifier-plain.toml" if start in ("", "simclr") else "classifier.toml"
    settings = read_settings(ClassifierTraining, CONFIGS / "atlas" / file)
    whole = read_atlas(images)
    stored = folder / "split.json"
    if stored.exists():  # the file of images may hold only some of the patients
        split = load_split(stored)
    else:
        split = replace(settings.split, path=stored).split(whole.cases.groups)
    parts = tuple(part.in_memory() for part in whole.split(split))
    if start == "simclr":
        first = read_settings(ContrastiveTraining, CONFIGS / "atlas" / "simclr.toml")
        simclr = train(first, folder / "runs" / "simclr", machine=QUIET, data=parts[:2])
        settings = replace(settings, start=replace(settings.start, simclr=simclr))
        print(f"{name}: pre-trained in {time.monotonic() - begin:.0f} s", flush=True)
    elif start:
        settings = replace(settings, start=replace(settings.start, classifier=Path(start)))
    settings = replace(settings, attack=replace(settings.attack, radius=radius))
    best = train(settings, folder / "runs" / name, machine=QUIET, data=parts[:2], fresh=True)
    seconds = time.monotonic() - begin
    weights = ship(best, folder / f"{name}.safetensors")
    print(f"{name}: trained in {seconds:.0f} s", flush=True)
    if len(parts[2].cases) == 0:
        return
    coils = coil_images(parts[2])
    record = {"name": name, "radius": radius, "seconds": seconds, **judged(best, parts[2], coils)}
    record["shipped"] = judged(weights, parts[2], coils)
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1))
    print(line(record), flush=True)


def coil_images(part: Part) -> torch.Tensor:
    coils = simulated_coils(part.cases, 8, seed=0)
    return torch.stack([coils[k].image for k in range(len(coils))])


def judged(weights: Path, part: Part, images: torch.Tensor) -> dict[str, object]:
    network = load(weights).to("cuda" if torch.cuda.is_available() else "cpu")
    (row,) = judge_classifier(network, part, AttackConfig())
    return {**row, "moved": moved(network, part, images)}


@torch.no_grad()
def moved(
    network: torch.nn.Module, part: Part, images: torch.Tensor
) -> dict[str, dict[str, float]]:
    """How far outputs move from the true to the zero-filled image, and what AUROC is left."""
    from taskuq.task.metrics import auroc

    device = next(network.parameters()).device
    width = images.shape[-1]
    masks = nested_masks(width, RATES, rng=np.random.default_rng(0))
    scanner = MultiCoilMRI(masks, RATES)
    true = torch.cat([network(rss(x.to(device))) for x in images.split(128)])
    found = {}
    for R in RATES:
        z = [network(rss(scanner(x.to(device), R).zero_filled)) for x in images.split(128)]
        change = (torch.cat(z) - true).abs()
        found[str(R)] = {
            "mean_change": float(change.mean()),
            "auroc": auroc(torch.cat(z).cpu().numpy(), part.targets[:, 0]),
        }
    return found


def ship(best: Path, target: Path) -> Path:
    """The best weights in float16, for the package, with what they were trained by."""
    net, card = load(best), read_toml(best.with_suffix(".toml"))
    notes = {k: v for k, v in card.items() if k not in ("kind", "network", "start")}
    return save_weights(net, target, kind="classifier", config=net.config, notes=notes, half=True)


def line(record: dict[str, object]) -> str:
    values = {k: record[k] for k in ("auroc", "accuracy", "robust_accuracy", "robust_auroc")}
    numbers = ", ".join(f"{k} {v:.4f}" for k, v in values.items())
    moves = {k: round(v["mean_change"], 4) for k, v in record["moved"].items()}
    return f"{record['name']}: {numbers}, moved {moves}, {record['seconds']:.0f} s"


def cross_validate(options: Namespace, name: str, radius: float) -> None:
    path, folder = options.lgg, options.folder
    begin = time.monotonic()
    settings = read_settings(ClassifierTraining, CONFIGS / "lgg" / "classifier.toml")
    settings = replace(
        settings,
        data=replace(settings.data, path=path),
        attack=replace(settings.attack, radius=radius),
    )
    rows = []
    whole = open_task_data(settings.data)
    wanted = [int(k) for k in options.folds.split(",")]
    splits = folds(whole.cases.groups, 5, 0.1, seed=0)
    for k, split in [(k, splits[k]) for k in wanted]:
        parts = tuple(part.in_memory() for part in whole.split(split))
        run = folder / "runs" / f"{name}-{k}"
        best = train(settings, run, machine=QUIET, data=parts[:2], fresh=True)
        rows.append(judged(best, parts[2], coil_images(parts[2])))
        rows[-1]["patients"] = [len(s) for s in (split.train, split.tune, split.judge)]
        areas = [row["auroc"] for row in rows]
        moves = [row["moved"]["4"]["mean_change"] for row in rows]
        seconds = time.monotonic() - begin
        (folder / f"{name}.json").write_text(json.dumps({"seconds": seconds, "folds": rows}))
        print(
            f"{name}: fold {k} AUROC {areas[-1]:.4f}, moved at R=4 {moves[-1]:.4f}; "
            f"mean {np.mean(areas):.4f}, {seconds:.0f} s",
            flush=True,
        )


def main() -> None:
    options = arguments()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    images = options.images or folder / "runs" / "atlas.npz"
    if options.job:
        kind, name, radius, begin_from = options.job.split(":")
        if kind == "atlas":
            train_atlas(name, images, folder, float(radius), begin_from)
        else:
            cross_validate(options, name, float(radius))
        return
    begin = time.monotonic()
    jobs = []
    if options.lgg:
        jobs += [f"lgg:lgg-{radius}:{radius}:" for radius in options.lgg_radii.split(",")]
    processes = [launch(options, job, images) for job in jobs]
    images.parent.mkdir(parents=True, exist_ok=True)
    draw(images, options.patients)
    print(f"drew {options.patients} patients in {time.monotonic() - begin:.0f} s", flush=True)
    jobs = [f"atlas:radius-{radius}:{radius}:" for radius in options.radii.split(",")]
    jobs.append("atlas:after-simclr:0:simclr")
    processes += [launch(options, job, images) for job in jobs]
    sys.exit(max(process.wait() for process in processes))


def launch(options: Namespace, job: str, images: Path) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "scripts.task_gpu",
        str(options.folder),
        "--job",
        job,
        "--images",
        str(images),
    ]
    return subprocess.Popen(command + (["--lgg", str(options.lgg)] if options.lgg else []))


def arguments() -> Namespace:
    parser = ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lgg", type=Path)
    parser.add_argument("--lgg-radii", default="0")
    parser.add_argument("--folds", default="0,1,2,3,4")
    parser.add_argument("--radii", default="0,0.375,0.75,1.5")
    parser.add_argument("--patients", type=int, default=1000)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--job", default="")
    return parser.parse_args()


if __name__ == "__main__":
    main()
