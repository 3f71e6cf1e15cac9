"""Chest CT slices: training scans in one file, test scans in another.

    python -m studies.luna SOURCE.npz FOLDER [--size 128]

SOURCE holds images (uint8, 0 air to 255 bone) and group (the scan). Of 400 scans 256 go to
FOLDER/luna-training.npz (networks, their early stopping) and 144 to FOLDER/luna-judged.npz
(calibration and test). ``air`` is the fraction of air in the body, computed at the written size;
the label is 1 if it is below 0.2.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from taskuq.data import air_fraction, split_groups

LITTLE = 0.2


def main(source: Path, folder: Path, size: int) -> None:
    with np.load(source, allow_pickle=False) as file:
        images, groups = file["images"], file["group"].astype(str)
    fold = images.shape[1] // size
    means = images.reshape(len(images), size, fold, size, fold).mean((2, 4))
    images = np.round(means).astype(np.uint8)
    air = air_fraction(images / 255)
    split = split_groups(groups, 0.6, 0.04, seed=0)
    judged = np.isin(groups, split.judge)
    folder.mkdir(parents=True, exist_ok=True)
    cases = np.array([f"{g}-{k}" for k, g in enumerate(groups)])
    for name, rows in (("training", ~judged), ("judged", judged)):
        path = folder / f"luna-{name}.npz"
        np.savez_compressed(
            path, images=images[rows], label=(air[rows] < LITTLE).astype(np.int64),
            group=groups[rows], case=cases[rows], air=air[rows],
        )  # fmt: skip
        print(f"{path}: {len(set(groups[rows]))} scans, {rows.sum()} slices of {size}×{size}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", type=int, default=128)
    main(**vars(parser.parse_args()))
