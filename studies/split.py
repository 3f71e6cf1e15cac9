"""Split real data by group into a file for training networks and one for calibration and testing.

    python -m studies.split lgg SOURCE.npz FOLDER
    python -m studies.split luna SOURCE.npz FOLDER [--size 128]

lgg: slices of low-grade glioma. SOURCE holds images, label, group, the area of tumour in pixels of
256×256 (``tumour_area_px256``), a flag of central slices, ``central``, and the TCGA ids of the
``patients``. The ``site`` is the institution, the second part of an id; the ``area`` is in pixels
of 128×128. FOLDER/lgg-sites.npz holds two slices of each patient, for networks trained on other
data.

luna: chest CT slices. SOURCE holds images (uint8, 0 air to 255 bone) and group (the scan). ``air``
is the fraction of air in the body at the written size; the label is 1 if it is below 0.2.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from taskuq.data import air_fraction, split_groups

LITTLE, SLICES = 0.2, 2


def lgg(file, size):
    arrays = {name: file[name][file["central"]] for name in ("images", "label", "group")}
    arrays["area"] = file["tumour_area_px256"][file["central"]] / 4
    sites = np.array([str(name).replace("-", "_").split("_")[1] for name in file["patients"]])
    return arrays | {"site": sites[arrays["group"]]}


def luna(file, size):
    images, fold = file["images"], file["images"].shape[1] // size
    means = images.reshape(len(images), size, fold, size, fold).mean((2, 4))
    images = np.round(means).astype(np.uint8)
    air = air_fraction(images / 255)
    label = (air < LITTLE).astype(np.int64)
    return {"images": images, "label": label, "group": file["group"].astype(str), "air": air}


def main(kind: str, source: Path, folder: Path, size: int = 128) -> None:
    with np.load(source, allow_pickle=False) as file:
        arrays = {"lgg": lgg, "luna": luna}[kind](file, size)
    groups = arrays["group"].astype(str)
    arrays["case"] = np.array([f"{g}-{k}" for k, g in enumerate(groups)])
    judged = np.isin(groups, split_groups(groups, 0.6, 0.04, seed=0).judge)
    parts = {"training": ~judged, "judged": judged}
    if kind == "lgg":
        slices = (np.flatnonzero(groups == name) for name in np.unique(groups))
        places = (np.arange(SLICES) + 0.5) / SLICES
        some = np.concatenate([rows[(places * len(rows)).astype(int)] for rows in slices])
        parts["sites"] = np.isin(np.arange(len(groups)), some)
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in parts.items():
        path = folder / f"{kind}-{name}.npz"
        np.savez_compressed(path, **{key: value[rows] for key, value in arrays.items()})
        print(f"{path}: {len(set(groups[rows]))} groups, {rows.sum()} slices")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("lgg", "luna"))
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", type=int, default=128)
    main(**vars(parser.parse_args()))
