"""Effect of half precision on the images of the variational network, for atlas patients.

python -m benchmarks precision

The bundled network, fused, in each precision of the convolutions, on the CPU; a GPU rounds the
same way. PSNR against the truth, and of the difference to the plain network.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from taskuq.data import Atlas
from taskuq.measure import fft2c, nested_masks, rss
from taskuq.recover import RECOVERIES, central_lines
from taskuq.recover._compiled import half_varnet
from taskuq.training._weights import locate

RATES = (16.0, 8.0, 4.0, 2.0)
PATIENTS, SLICES = 2, (2, 5)


def decibels(found: Tensor, expected: Tensor, peak: Tensor) -> float:
    error = (found - expected).double().square().mean((1, 2)).sqrt()
    return float((20 * torch.log10(peak / error)).mean())


@torch.no_grad()
def main() -> None:
    net = RECOVERIES.load(locate("varnet-atlas")).eval()
    atlas = Atlas(patients=PATIENTS, seed=0, first=100_000)
    per_patient = len(atlas) // PATIENTS
    images = [atlas[per_patient * p + s].image for p in range(PATIENTS) for s in SLICES]
    x = torch.stack(images).to(torch.complex64)
    truth = rss(x)
    peak = truth.amax((1, 2))
    masks = torch.as_tensor(nested_masks(x.shape[-1], RATES, rng=np.random.default_rng(0)))
    print(f"{len(x)} slices; PSNR, and in brackets that of the difference to the plain network")
    for rate, row in zip(RATES, masks, strict=True):
        mask = row.expand(len(x), -1)
        arguments = fft2c(x) * row, mask, central_lines(mask)
        plain = net(*arguments)
        line = [f"R = {rate:<4g} plain {decibels(plain, truth, peak):.3f}"]
        for dtype in (torch.float16, torch.bfloat16):
            found = half_varnet(net, dtype)(*arguments)
            near = decibels(found, plain, peak)
            shown = "" if math.isinf(near) else f" ({near:.1f})"
            line.append(f"{str(dtype)[6:]} {decibels(found, truth, peak):.3f}{shown}")
        print("   ".join(line), flush=True)


if __name__ == "__main__":
    main()
