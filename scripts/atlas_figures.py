"""Draw the learning curves and the image quality of the embedded experiment's networks.

    python -m scripts.atlas_figures

Reads docs/curves: the metrics.csv of each training, and quality.json as ``taskuq quality`` wrote
it. Draws docs/figures/atlas-*.svg and prints the numbers behind them, and how far the task's
outputs on posterior samples of the stored table are off on average.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

from taskuq.report.figure import Figure, Series
from taskuq.report.ink import draw
from taskuq.report.networks import quality_figures
from taskuq.runs.stored import stored_table

DOCS = Path(__file__).resolve().parents[1] / "docs"
LOSSES = {"varnet": "1 - SSIM", "flow": "bits per dimension", "sampler": "score"}


def learning(kind: str) -> Figure:
    with (DOCS / "curves" / f"{kind}-atlas.csv").open() as file:
        rows = list(csv.DictReader(file))
    epochs = tuple(float(row["epoch"]) + 1 for row in rows)
    return Figure(
        name=f"atlas-learning-{kind}",
        caption=f"The {kind} of the embedded experiment while it is trained.",
        x_label="epoch",
        y_label=LOSSES[kind],
        series=tuple(
            Series(part, epochs, tuple(float(row[f"{part}_loss"]) for row in rows))
            for part in ("training", "validation")
        ),
    )


def main() -> None:
    record = json.loads((DOCS / "curves" / "quality.json").read_text())
    there = [kind for kind in LOSSES if (DOCS / "curves" / f"{kind}-atlas.csv").exists()]
    figures = [*map(learning, there), *quality_figures(record)]
    for figure in figures:
        name = figure.name if figure.name.startswith("atlas") else f"atlas-{figure.name}"
        print(draw(figure, DOCS / "figures" / f"{name}.svg"))
    print("| R | method | PSNR | SSIM | spread and error, pixels | blocks | sizes |")
    print("|---|---|---|---|---|---|---|")
    for row in record["results"]:
        pixels, blocks, sizes = (
            f"{row[key]:.2f}" if key in row else ""
            for key in ("spread_error_correlation", "spread_error_blocks", "spread_error_ratio")
        )
        print(
            f"| {row['acceleration']:g} | {row['method']} | {row['psnr']['mean']:.1f} | "
            f"{row['ssim']['mean']:.3f} | {pixels} | {blocks} | {sizes} |"
        )
    pooled = record.get("spread_error_pooled", float("nan"))
    print(f"over pixels of all slices and accelerations: {pooled:.2f}")
    table = stored_table("atlas-sampler")
    for R, outputs in zip(table.accelerations, table.outputs, strict=True):
        bias = (outputs.mean(axis=-1) - table.targets).mean()
        print(f"R = {R:g}: outputs on samples are larger than their targets by {bias:.2f}")


if __name__ == "__main__":
    main()
