r"""Filtered back-projection, an unrolled network and a sampler with few views.

    python -m studies.tomography FILE.npz [--unrolled BEST] [--sampler BEST] [--cases 60]
    python -m studies.tomography FILE.npz --sampler BEST --tables BACK-PROJECTION SAMPLER \
        [--splits 500] [--into docs/how-to/tomography.md --as luna]

FILE holds images (uint8, 0 air to 255 bone), as studies/split.py writes them. For each number of
views: the PSNR in dB (peak 1) and the mean error of the air fraction; for a sampler, those of
the mean image and of the mean fraction.

The second form adds results of the two tables that ``taskuq run`` made of the same file: errors on
all slices, lengths of intervals, coverage by slice (over all splits, exactly) and by scan (over
random splits), and the mean acceleration of stopping rules at widths of 0.02 and 0.04, split by
scan. ``--into`` replaces the block ``<!-- luna -->`` to ``<!-- end of luna -->``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from studies.paper import markdown, put

import taskuq as tq
from taskuq.data import air_fraction
from taskuq.measure import TomographyConfig
from taskuq.policy import Goal, PolicySpec, simulate
from taskuq.recover import FilteredBackProjection, open_recovery

SAMPLES = 32
ALPHA = 0.1
WIDTHS = (0.02, 0.04)
RULES = {
    "paper's rule, MLWR": {"kind": "paper"},
    "fixed-width": {"kind": "fixed-width"},
    "fixed-width, learned": {"kind": "fixed-width", "statistic": "learned"},
}
COLUMNS = (
    "views", "back-projection: dB", "sampler: dB", "back-projection: error", "sampler: error",
    "width", "coverage by slice", "coverage by scan",
)  # fmt: skip
Found = list[tuple[float, float]]


def main(
    file: Path,
    unrolled: Path | None,
    sampler: Path | None,
    cases: int,
    tables: Sequence[Path] | None = None,
    splits: int = 500,
    into: Path | None = None,
    name: str = "luna",
) -> None:
    with np.load(file, allow_pickle=False) as arrays:
        rows = np.linspace(0, len(arrays["images"]) - 1, cases).astype(int)
        images = torch.as_tensor(arrays["images"][rows] / np.float32(255))
    opened = [None if path is None else tq.TaskOutputs.load(path) for path in tables or ()]
    config = TomographyConfig() if not opened else measured(opened[0])
    quality = image_quality(config, images, unrolled, sampler)
    if len(opened) < 2:
        return
    text = "\n\n".join([table_of(config, quality, *opened, splits), rules_of(opened[1], splits)])
    print(text)
    if into is not None:
        put(text, into, name)


def measured(table: tq.TaskOutputs) -> TomographyConfig:
    """Return the views and accelerations of a table."""
    views = [int(label.split()[0]) for label in table.round_labels]
    return TomographyConfig(
        accelerations=tuple(table.accelerations.tolist()),
        views=round(views[0] * float(table.accelerations[0])),
    )


def image_quality(
    config: TomographyConfig, images: Any, unrolled: Path | None, sampler: Path | None
) -> dict[str, Found]:
    """Print and return PSNR and error of the air fraction, by method and round."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    methods: dict[str, tuple[str, Any]] = {
        "back-projection": ("taskuq", FilteredBackProjection()),
        "back-projection, hann": ("taskuq", FilteredBackProjection("hann")),
    }
    for name, weights in (("unrolled", unrolled), ("sampler's mean", sampler)):
        if weights is not None:
            methods[name] = ("taskuq", open_recovery(weights, device=device))
    truth = air_fraction(images.numpy())
    quality = {}
    for name, (operator, recover) in methods.items():
        system = TomographyConfig(config.accelerations, config.views, operator=operator)
        found = [judged(system, rate, recover, images, truth) for rate in system.accelerations]
        decibels, errors = (
            " ".join(f"{v:7.{d}f}" for v in part)
            for part, d in zip(zip(*found, strict=True), (2, 4), strict=True)
        )
        print(
            f"{name:32s} {', '.join(system.round_names)}: {decibels} dB, "
            f"error of the air fraction {errors}"
        )
        quality[name] = found
    return quality


def judged(
    config: TomographyConfig, rate: float, recover: Callable[..., Any], images: Any, truth: Any
) -> tuple[float, float]:
    scanner = config.scanner(images.shape[-1], noise=0.0, seed=0)
    decibels, errors = [], []
    for number, (image, share) in enumerate(zip(images, truth, strict=True)):
        samples = recover(scanner(image, rate), samples=SAMPLES, seed=number).cpu()
        decibels.append(-10 * float(torch.log10((samples.mean(0) - image).square().mean())))
        errors.append(abs(float(air_fraction(samples.numpy()).mean()) - share))
    return float(np.mean(decibels)), float(np.mean(errors))


def table_of(
    config: TomographyConfig,
    quality: dict[str, Found],
    simple: tq.TaskOutputs,
    drawn: tq.TaskOutputs,
    trials: int,
) -> str:
    """Return image quality, errors, intervals and coverage by number of views."""
    rows = []
    for k, R in enumerate(drawn.accelerations):
        by_scan = tq.evaluate(
            drawn, acceleration=R, alpha=ALPHA, splits=trials, seed=np.random.default_rng(0)
        )
        by_slice = tq.evaluate_exact(drawn, acceleration=R, alpha=ALPHA)
        decibels = [quality.get(m) for m in ("back-projection", "sampler's mean")]
        errors = [np.abs(t.outputs[k].mean(1) - t.targets_at(k)).mean() for t in (simple, drawn)]
        rows.append([
            f"{round(config.views / R)}",
            *("–" if d is None else f"{d[k][0]:.1f}" for d in decibels),
            *(f"{error:.4f}" for error in errors), f"{by_scan.width.mean:.4f}",
            f"{by_slice.coverage.mean:.3f}", f"{by_scan.coverage.mean:.3f}",
        ])  # fmt: skip
    return markdown(COLUMNS, rows)


def rules_of(drawn: tq.TaskOutputs, trials: int) -> str:
    """Return acceleration and coverage of stopping rules, split by scan."""
    columns = ["rule", "guarantee", *(f"R̄ (coverage) at {width}" for width in WIDTHS)]
    rows = []
    for name, rule in RULES.items():
        plans = [PolicySpec(alpha=ALPHA, goal=Goal(max_width=width), **rule) for width in WIDTHS]
        found = simulate(drawn, plans, splits=trials)
        errors = [one.standard_errors["mean_acceleration"] for one in found]
        spent = [
            f"{one.mean_acceleration:.2f}{f' ± {error:.2f}' if error >= 0 else ''} "
            f"({one.coverage:.3f})"
            for one, error in zip(found, errors, strict=True)
        ]
        rows.append([name, "guaranteed" if found[0].guaranteed else "measured", *spent])
    return markdown(columns, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--unrolled", type=Path)
    parser.add_argument("--sampler", type=Path)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--tables", type=Path, nargs=2, help="of back-projection and sampler")
    parser.add_argument("--splits", type=int, default=500)
    parser.add_argument("--into", type=Path, help="the document whose block is replaced")
    parser.add_argument("--as", dest="name", default="luna", help="the block's name")
    main(**vars(parser.parse_args()))
