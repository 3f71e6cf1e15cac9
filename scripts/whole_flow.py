"""Draw the learning curves of the flow of whole images, and print how good it is, and beside what.

    python -m scripts.whole_flow

Reads docs/curves: the metrics.csv of both trainings of configs/lgg/flow-whole.toml, what ``taskuq
quality configs/lgg/quality-whole.toml`` wrote, and what ``python -m scripts.samplers judge`` wrote
of the same patients. Draws docs/figures/whole-learning-*.svg and prints two tables of
docs/recovery.md: of this flow, and of it beside the flow around estimates and the samplers.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

from taskuq.report.figure import Figure, Series
from taskuq.report.ink import draw

DOCS = Path(__file__).resolve().parents[1] / "docs"
CURVES = {
    "unet": ("flow-whole-lgg-pretrain.csv", "share unexplained", "The U-Net, trained first"),
    "flow": ("flow-whole-lgg.csv", "bits per dimension", "The flow around what the U-Net says"),
}
# What is shown of the samplers that were judged, and how it is called.
SHOWN = {
    "flow": "flow around estimates",
    "sampler": "sampler",
    "sampler-task": "sampler with task terms",
    "ensemble": "both samplers in turn",
}
HEADER = (
    "| R | zero-filled PSNR, SSIM | flow PSNR, SSIM | gain | spread over error | blocks | "
    "rejected |",
    "|---|---|---|---|---|---|---|",
)


def learning(name: str) -> Figure:
    file, loss, caption = CURVES[name]
    with (DOCS / "curves" / file).open() as text:
        rows = list(csv.DictReader(text))
    epochs = tuple(float(row["epoch"]) + 1 for row in rows)
    return Figure(
        name=f"whole-learning-{name}",
        caption=f"{caption}, while it is trained on real heads.",
        x_label="epoch",
        y_label=loss,
        series=tuple(
            Series(part, epochs, tuple(float(row[f"{part}_loss"]) for row in rows))
            for part in ("training", "validation")
        ),
    )


def results() -> dict[tuple[float, str], dict[str, object]]:
    record = json.loads((DOCS / "curves" / "flow-whole-lgg-quality.json").read_text())
    return {(row["acceleration"], row["method"]): row for row in record["results"]}


def table() -> list[str]:
    lines, found = list(HEADER), results()
    for rate in sorted({rate for rate, _ in found}, reverse=True):
        zero, flow = found[rate, "zero-filled"], found[rate, "flow"]
        psnr = [row["psnr"]["mean"] for row in (zero, flow)]
        ssim = [row["ssim"]["mean"] for row in (zero, flow)]
        lines.append(
            f"| {rate:g} | {psnr[0]:.1f}, {ssim[0]:.3f} | {psnr[1]:.1f}, {ssim[1]:.3f} | "
            f"+{psnr[1] - psnr[0]:.1f} | {flow['spread_error_ratio']:.2f} | "
            f"{flow['spread_error_blocks']:.2f} | {flow['rejected']} |"
        )
    return lines


def beside() -> list[str]:
    """Both flows and the samplers on the same patients: decibels of means, spread over error."""
    found = results()
    rates = sorted({rate for rate, _ in found}, reverse=True)
    rows = {
        "zero-filled": ([found[rate, "zero-filled"]["psnr"]["mean"] for rate in rates], None),
        "flow of whole images": (
            [found[rate, "flow"]["psnr"]["mean"] for rate in rates],
            [found[rate, "flow"]["spread_error_ratio"] for rate in rates],
        ),
    }
    record = json.loads((DOCS / "curves" / "samplers-lgg.json").read_text())
    lines = {line["measure"]: line["samplers"] for line in record["lines"]}
    for name, shown in SHOWN.items():
        rows[shown] = (lines["psnr"][name]["value"], lines["spread"][name]["value"])
    at = " / ".join(f"{rate:g}" for rate in rates)
    written = [f"| R = {at} | PSNR of the mean, dB | spread over error |", "|---|---|---|"]
    for name, (psnr, spread) in rows.items():
        decibels = " / ".join(f"{x:.1f}" for x in psnr)
        ratios = "" if spread is None else " / ".join(f"{x:.2f}" for x in spread)
        written.append(f"| {name} | {decibels} | {ratios} |")
    return written


def main() -> None:
    for name in CURVES:
        figure = learning(name)
        print(draw(figure, DOCS / "figures" / f"{figure.name}.svg"))
    print("\n".join([*table(), "", *beside()]))


if __name__ == "__main__":
    main()
