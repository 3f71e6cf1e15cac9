r"""Delay until a monitor raises its alarm for the bundled networks on other populations.

    python -m studies.alarms [--patients 20] [--slices 4] [--lgg lgg_flair_128_all.npz]

A policy is planned on the bundled atlas table, by patient (270 of them). The first rounds of new
patients then update the monitor until its alarm: of the atlas as before; in other contrasts; with
noise in k-space; with 2 coils instead of 8; and, with a file of real slices (``images``, ``group``
and a flag ``central``), real heads with glioma. It prints the number of patients until the alarm.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import taskuq as tq
from taskuq.data import Atlas, Dataset, NpzData, PatientDistribution, open_all
from taskuq.measure import MaskConfig, MultiCoilMRI
from taskuq.recover import open_recovery
from taskuq.table import stored_table
from taskuq.task import TASKS

# Patients of the seed of the stored table, beyond those it holds and those of the demo.
SEED, FIRST, SLICES, COILS, NOISE = 1, 2000, 8, 8, 0.02


def populations(asked: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Dataset, float]]:
    """Yield new patients: description, images, and noise in k-space."""

    def atlas(coils: int = COILS, **plan: str) -> Dataset:
        made = PatientDistribution(slices=SLICES, **plan)  # type: ignore[arg-type]  # a contrast
        return Atlas(asked.patients, SEED, first=FIRST, coils=coils, plan=made)

    if asked.lgg is not None:
        yield "real heads with glioma", glioma(asked, folder), 0.0
    yield "the atlas, as it was", atlas(), 0.0
    for contrast in ("t1", "t2"):
        yield f"the atlas in {contrast.upper()}", atlas(contrast=contrast), 0.0
    yield f"the atlas with noise of {NOISE:g} in k-space", atlas(), NOISE
    yield "the atlas, 2 coils", atlas(coils=2), 0.0


def glioma(asked: argparse.Namespace, folder: Path) -> Dataset:
    """Return evenly spaced central slices of some patients, as many as the atlas has."""
    with np.load(asked.lgg, allow_pickle=False) as file:
        arrays = {name: file[name][file["central"]] for name in ("images", "label", "group")}
    kept = []
    for group in np.unique(arrays["group"])[: asked.patients]:
        members = np.nonzero(arrays["group"] == group)[0]
        kept += members[np.linspace(0, len(members) - 1, SLICES).astype(int)].tolist()
    path = folder / "glioma.npz"
    names = np.array([f"{arrays['group'][k]}-{i}" for i, k in enumerate(kept)])
    np.savez(path, case=names, **{name: array[kept] for name, array in arrays.items()})
    return open_all(NpzData(path=path, coils=COILS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--patients", type=int, default=20)
    parser.add_argument("--slices", type=int, default=4)
    parser.add_argument("--delta", type=float, default=0.01)
    parser.add_argument("--lgg", type=Path)
    asked = parser.parse_args()
    table = stored_table("atlas-sampler")
    step = SLICES // asked.slices
    policy = tq.plan(table.select(cases=np.arange(0, table.cases, step)), alpha=0.1, max_width=0.2)
    _, classifier = TASKS.trained("classifier", "classifier-atlas")
    networks = open_recovery("sampler-atlas"), classifier
    with tempfile.TemporaryDirectory() as folder:
        for name, images, noise in populations(asked, Path(folder)):
            begun, monitor = time.time(), tq.Monitor(policy, delta=asked.delta)
            monitor_patients(monitor, images, noise, networks, step)
            took = time.time() - begun
            print(
                f"{name}: {monitor.units} patients, {took:.0f} s. {monitor.statement}", flush=True
            )


def monitor_patients(
    monitor: tq.Monitor, images: Dataset, noise: float, networks: tuple[Any, Any], step: int
) -> None:
    """Update a monitor with patients until its alarm."""
    rates = tuple(monitor.policy.accelerations)
    measure = MultiCoilMRI(MaskConfig().masks(128), rates, noise=noise, seed=SEED)
    pipeline = tq.Pipeline(measure, *networks)
    for start in range(0, len(images), SLICES):
        items = [images[k] for k in range(start, start + SLICES, step)]
        table = pipeline.run(
            [item.image for item in items], case=[item.case for item in items],
            accelerations=rates[:1], samples=monitor.policy.samples, seed=0, progress=False,
        )  # fmt: skip
        monitor.update(table.outputs, unit=items[0].group)
        if monitor.alarm:
            return


if __name__ == "__main__":
    main()
