"""What filtered back-projection, an unrolled network and a sampler make of few views.

    python scripts/tomography.py FILE.npz [--unrolled BEST] [--sampler BEST] [--cases 60]

FILE holds images (uint8, 0 air to 255 bone), as scripts/luna.py writes them. For each number of
views: the PSNR in dB (peak 1) and the mean error of the share of air; of a sampler those of the
samples' mean image and of the mean of their shares.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from taskuq.data.air import air_share
from taskuq.measure.tomography import TomographyConfig
from taskuq.recover import open_recovery
from taskuq.recover.tomography.classical import BackProjection

SAMPLES = 32


def main(file: Path, unrolled: Path | None, sampler: Path | None, cases: int) -> None:
    with np.load(file, allow_pickle=False) as arrays:
        rows = np.linspace(0, len(arrays["images"]) - 1, cases).astype(int)
        images = torch.as_tensor(arrays["images"][rows] / np.float32(255))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    methods: dict[str, tuple[str, Any]] = {
        "back-projection": ("taskuq", BackProjection()),
        "back-projection, hann": ("taskuq", BackProjection("hann")),
        "back-projection, hat footprint": ("hat", BackProjection()),
    }
    for name, weights in (("unrolled", unrolled), ("sampler's mean", sampler)):
        if weights is not None:
            methods[name] = ("taskuq", open_recovery(weights, device=device))
    truth = air_share(images.numpy())
    for name, (operator, recover) in methods.items():
        config = TomographyConfig(operator=operator)
        rates = config.accelerations
        found = [judged(config, rate, recover, images, truth) for rate in rates]
        decibels, errors = (
            " ".join(f"{v:7.{d}f}" for v in part)
            for part, d in zip(zip(*found, strict=True), (2, 4), strict=True)
        )
        print(
            f"{name:32s} {', '.join(config.round_names)}: {decibels} dB, air share off by {errors}"
        )


def judged(
    config: TomographyConfig, rate: float, recover: Callable[..., Any], images: Any, truth: Any
) -> tuple[float, float]:
    scanner = config.scanner(images.shape[-1], noise=0.0, seed=0)
    decibels, errors = [], []
    for number, (image, share) in enumerate(zip(images, truth, strict=True)):
        samples = recover(scanner(image, rate), samples=SAMPLES, seed=number).cpu()
        decibels.append(-10 * float(torch.log10((samples.mean(0) - image).square().mean())))
        errors.append(abs(float(air_share(samples.numpy()).mean()) - share))
    return float(np.mean(decibels)), float(np.mean(errors))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--unrolled", type=Path)
    parser.add_argument("--sampler", type=Path)
    parser.add_argument("--cases", type=int, default=60)
    main(**vars(parser.parse_args()))
