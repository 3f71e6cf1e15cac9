"""PSNR of the bundled variational network with and without a hole in the centre of k-space.

    python -m studies.mask_hole LGG.npz

Slices are padded to 144 columns and measured at R = 16 (9 lines): by a GRO mask that leaves out the
line next to the zero frequency, and by ``nested_masks``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from taskuq.measure import MultiCoilMRI, nested_masks, rss
from taskuq.measure._coils import coil_sensitivities, simulate_coils, smooth_phase
from taskuq.recover._methods import open_recovery
from taskuq.task import PSNR
from taskuq.training._weights import locate

COLUMNS, R, SLICES, COILS = 144, 16, 40, 4
# Lines relative to the zero frequency; -1 is missing.
HOLE = np.array([-72, -13, -3, -2, 0, 1, 2, 3, 13])


def main(path: Path) -> None:
    with np.load(path, allow_pickle=False) as file:
        chosen = np.linspace(0, len(file["images"]) - 1, SLICES).astype(int)
        images = file["images"][chosen].astype(np.float32)
    side = (COLUMNS - images.shape[-1]) // 2
    images = np.pad(images, ((0, 0), (0, 0), (side, side)))
    images /= np.quantile(images, 0.995)
    whole = nested_masks(COLUMNS, (R,), seed=0)
    hole = np.zeros_like(whole)
    hole[0, HOLE + COLUMNS // 2] = True
    recover = open_recovery(locate("varnet-atlas"), device="cpu")
    rng, found = np.random.default_rng(0), {"with the hole": [], "without": []}
    maps = coil_sensitivities(COILS, *images.shape[1:], rng=rng)
    for image in images:
        coils = simulate_coils(torch.as_tensor(image), maps, smooth_phase(*image.shape, rng=rng))
        for name, mask in zip(found, (hole, whole), strict=True):
            scan = MultiCoilMRI(mask, (R,))(coils, R)
            reported = recover(scan, samples=1, seed=0)[0]
            found[name].append(float(PSNR().compare(reported, rss(coils)[None])[0]))
    for name, values in found.items():
        error = np.std(values, ddof=1) / len(values) ** 0.5
        print(f"{name}: {np.mean(values):.1f} ± {error:.1f} dB over {SLICES} slices")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m studies.mask_hole LGG.npz")
    main(Path(sys.argv[1]))
