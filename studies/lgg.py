"""Slices of low-grade glioma: training patients in one file, test patients in another.

    python -m studies.lgg SOURCE.npz FOLDER

SOURCE holds images, label, group, the area of tumour in pixels of 256×256 (``tumour_area_px256``),
a flag of central slices, ``central``, and the TCGA ids of the ``patients``. Of 88 patients 56 go to
FOLDER/lgg-training.npz (networks, their early stopping) and 32 to FOLDER/lgg-judged.npz
(calibration and test). FOLDER/lgg-sites.npz holds two slices of every patient, for networks that
saw none of them. The ``site`` is the institution, the second part of an id; the ``area`` is in
pixels of 128×128.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from taskuq.data import split_groups

NEEDED = ("images", "label", "group", "tumour_area_px256", "central", "patients")
SLICES = 2


def main(source: Path, folder: Path) -> None:
    with np.load(source, allow_pickle=False) as file:
        if missing := [name for name in NEEDED if name not in file]:
            sys.exit(f"{source} has no {', '.join(missing)}; it needs {', '.join(NEEDED)}")
        arrays = {name: file[name][file["central"]] for name in ("images", "label", "group")}
        arrays["area"] = file["tumour_area_px256"][file["central"]] / 4
        sites = np.array([str(name).replace("-", "_").split("_")[1] for name in file["patients"]])
        arrays["site"] = sites[arrays["group"]]
    groups = arrays["group"].astype(str)
    split = split_groups(groups, 0.6, 0.04, seed=0)
    judged = np.isin(groups, split.judge)
    some = np.zeros(len(groups), dtype=bool)
    for name in np.unique(groups):
        slices = np.flatnonzero(groups == name)
        some[slices[((np.arange(SLICES) + 0.5) * len(slices) / SLICES).astype(int)]] = True
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("training", ~judged), ("judged", judged), ("sites", some)):
        cases = np.array([f"{g}-{k}" for k, g in enumerate(groups)])[rows]
        part = {key: value[rows] for key, value in arrays.items()}
        np.savez_compressed(folder / f"lgg-{name}.npz", case=cases, **part)
        print(
            f"{folder}/lgg-{name}.npz: {len(set(groups[rows]))} patients, {rows.sum()} slices, "
            f"{int(part['label'].sum())} with tumour"
        )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m studies.lgg SOURCE.npz FOLDER")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
