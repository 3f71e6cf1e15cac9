"""Intervals for the tumour volume of a patient, the sum over its slices.

    python -m studies.tumour_volumes SOURCE.npz [--alpha 0.2] [--report FOLDER] [--into FILE.md]

SOURCE holds slices and masks of low-grade glioma, the input of studies/split.py. A regression of
the tumour area of a slice is fitted on the 56 training patients of that split. The slices of
the 32 test patients are measured with one coil at R = 16, 8, 4, 2 and zero-filled, and predicted
areas are summed by patient. Intervals for a new patient have one of two targets: the prediction
from the fully sampled image, or the volume of the masks. ``--into`` writes the table into a
document, ``--report`` builds a report.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.ndimage import uniform_filter
from studies.paper import put

import taskuq as tq
from taskuq.data import ArrayDataset, split_groups
from taskuq.measure import MultiCoilMRI, nested_masks
from taskuq.recover import ZeroFilled
from taskuq.table import sum_groups

RATES = (16, 8, 4, 2)
LEVELS = np.arange(0.4, 1.3, 0.1)
WORDS = {"case": "patient", "estimate": "zero-filled", "measurement": "line of k-space"}


class AreaReader:
    """Ridge regression of the tumour area of slices, in pixels.

    Tumours are bright and on one side. The features therefore count the bright pixels of a smoothed
    slice and of the difference between the slice and its mirror image.
    """

    names = ("tumour volume",)
    range = (0.0, np.inf)

    def __init__(self, images: Any, areas: Any, ridge: float = 10.0) -> None:
        x = self.seen(images)
        self.center, self.scale = x.mean(0), x.std(0) + 1e-9
        x = np.c_[(x - self.center) / self.scale, np.ones(len(x))]
        inner = x.T @ x + ridge * np.diag(np.r_[np.ones(x.shape[1] - 1), 0.0])
        self.weights = np.linalg.solve(inner, x.T @ areas)

    def __call__(self, images: Any) -> Any:
        """Map images (image, height, width) to areas (image,)."""
        x = (self.seen(images) - self.center) / self.scale
        return np.maximum(np.c_[x, np.ones(len(x))] @ self.weights, 0.0)

    @staticmethod
    def seen(images: Any) -> Any:
        """Return the pixel counts above each threshold in each filtered image, (image, feature)."""
        images = np.asarray(images, dtype=np.float64)
        found = []
        for size in (3, 7):
            smooth = uniform_filter(images, (0, size, size))
            for picture in (smooth, smooth - smooth[..., ::-1]):
                found += [(picture > level).sum((-2, -1)) for level in LEVELS]
        return np.stack(found, axis=-1).astype(np.float64)


def volumes(source: Path) -> tuple[tq.TaskOutputs, tq.TaskOutputs]:
    """Return a table of predicted volumes, and a copy with the masks' volumes as targets."""
    with np.load(source, allow_pickle=False) as file:
        kept = file["central"]
        images, group = file["images"][kept], file["group"][kept].astype(str)
        label, areas = file["label"][kept], file["tumour_area_px256"][kept] / 4
    data = ArrayDataset(images, label, group)
    slices = images / data.scales[:, None, None]
    judged = np.isin(group, split_groups(group, 0.6, 0.04, seed=0).judge)
    reader = AreaReader(slices[~judged], areas[~judged])
    masks = nested_masks(images.shape[-1], RATES, seed=0)
    coil = torch.as_tensor(slices[judged], dtype=torch.complex64)[:, None]
    read = tq.Pipeline(MultiCoilMRI(masks, RATES), ZeroFilled(), reader).run(
        list(coil), accelerations=RATES, samples=1, seed=0, group=group[judged], progress=False
    )
    of_masks = replace(read, targets=areas[judged])
    return sum_groups(read), sum_groups(of_masks)


def lines(tables: tuple[tq.TaskOutputs, tq.TaskOutputs], alpha: float) -> list[str]:
    """Return the lines of a Markdown table of errors, widths and coverage by target and R."""
    found = [
        "| target | R | mean volume | mean error | half-width q̂ | coverage |",
        "|---|---|---|---|---|---|",
    ]
    for name, table in zip(("fully sampled image", "masks"), tables, strict=True):
        for k, R in enumerate(RATES):
            error = np.abs(table.outputs[k, :, 0] - table.targets).mean()
            exact = tq.evaluate_exact(
                table.outputs[k], table.targets, alpha=alpha, score="ar", task_range=(0, np.inf)
            )
            quantile = tq.calibrate(table.outputs[k], table.targets, alpha=alpha, score="ar")
            found.append(
                f"| {name} | {R} | {table.targets.mean():.0f} | {error:.0f} | "
                f"{quantile.quantile:.0f} | {exact.coverage.mean:.3f} |"
            )
    return found


def main(source: Path, alpha: float, report: Path | None, into: Path | None) -> None:
    tables = volumes(source)
    rows = lines(tables, alpha)
    print(f"{tables[0].cases} test patients\n" + "\n".join(rows))
    if into is not None:
        put("\n".join(rows), into, "volumes")
    if report is not None:
        print(tq.make_report(tables[1], report, alpha=alpha, terminology=WORDS, scores=["ar"]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("--alpha", type=float, default=0.2)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--into", type=Path)
    main(**vars(parser.parse_args()))
