r"""Comparison of filtered back-projection and a sampler at few views.

    python -m studies.tomography FILE.npz --sampler BEST --tables BACK-PROJECTION SAMPLER \
        [--cases 60] [--splits 500] [--into docs/how-to/tomography.md --as luna]

FILE holds images (uint8, 0 air to 255 bone) written by studies/split.py, from which ``taskuq run``
computed the tables. For each number of views, the script prints the PSNR in dB (peak 1) on some
slices; for the sampler, this is the PSNR of the mean image. On all slices, it prints the mean error
of the air fraction, the interval width, exact coverage by slice, and coverage by scan over random
splits. It also prints the mean acceleration of stopping rules at widths of 0.02 and 0.04, in splits
by scan. ``--into`` replaces the block ``<!-- luna -->`` to ``<!-- end of luna -->``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from studies.paper import markdown, put

import taskuq as tq
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


def main(file, sampler, tables, cases=60, splits=500, into=None, name="luna"):
    with np.load(file, allow_pickle=False) as arrays:
        rows = np.linspace(0, len(arrays["images"]) - 1, cases).astype(int)
        images = torch.as_tensor(arrays["images"][rows] / np.float32(255))
    simple, drawn = map(tq.TaskOutputs.load, tables)
    views = int(drawn.round_labels[0].split()[0]) * drawn.accelerations[0]
    config = TomographyConfig(tuple(drawn.accelerations.tolist()), round(views))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    methods = FilteredBackProjection(), open_recovery(sampler, device=device)
    quality = [decibels(config, recover, images) for recover in methods]
    text = f"{table_of(config, quality, simple, drawn, splits)}\n\n{rules_of(drawn, splits)}"
    print(text)
    if into is not None:
        put(text, into, name)


def decibels(config, recover, images):
    """Return the PSNR of the mean image in each round, averaged over images."""
    scanner, found = config.scanner(images.shape[-1], noise=0.0, seed=0), []
    for R in config.accelerations:
        means = [
            recover(scanner(image, R), samples=SAMPLES, seed=number).cpu().mean(0)
            for number, image in enumerate(images)
        ]
        errors = (torch.stack(means) - images).square().mean((1, 2))
        found.append(float((-10 * torch.log10(errors)).mean()))
    return found


def table_of(config, quality, simple, drawn, trials):
    """Return a table of image quality, errors, interval widths and coverage by number of views."""
    rows = []
    for k, R in enumerate(drawn.accelerations):
        by_scan = tq.evaluate(
            drawn, acceleration=R, alpha=ALPHA, splits=trials, seed=np.random.default_rng(0)
        )
        by_slice = tq.evaluate_exact(drawn, acceleration=R, alpha=ALPHA)
        errors = [np.abs(t.outputs[k].mean(1) - t.targets_at(k)).mean() for t in (simple, drawn)]
        rows.append([
            f"{round(config.views / R)}",
            *(f"{found[k]:.1f}" for found in quality),
            *(f"{error:.4f}" for error in errors), f"{by_scan.width.mean:.4f}",
            f"{by_slice.coverage.mean:.3f}", f"{by_scan.coverage.mean:.3f}",
        ])  # fmt: skip
    return markdown(COLUMNS, rows)


def rules_of(drawn, trials):
    """Return a table of mean acceleration and coverage of stopping rules over splits by scan."""
    columns = ["rule", "guarantee", *(f"R̄ (coverage), width {width}" for width in WIDTHS)]
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
    parser.add_argument("--sampler", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--tables", type=Path, nargs=2, required=True)
    parser.add_argument("--splits", type=int, default=500)
    parser.add_argument("--into", type=Path, help="the document whose block is replaced")
    parser.add_argument("--as", dest="name", default="luna", help="the block's name")
    main(**vars(parser.parse_args()))
