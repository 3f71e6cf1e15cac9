"""The figures of the data and the scan: masks, image quality, who is trained on and judged."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from taskuq.report.figure import Figure, Series

PARTS = {"train": "to train on", "tune": "to tune on", "judge": "to calibrate and test on"}


def masks_figure(masks: np.ndarray, accelerations: Any) -> Figure:
    """Return the figure of nested sampling masks.

    Arguments:
        masks: Which k-space columns each round measures (round, width).
        accelerations: Of the rounds.

    Example:
        >>> figure = masks_figure(np.array([[0, 1, 0, 0], [0, 1, 1, 0]], bool), [4, 2])
        >>> figure.series[1].name, figure.series[1].y
        ('R = 2: 2 of 4 lines', (0.0, 1.0, 1.0, 0.0))
    """
    width = masks.shape[1]
    nested = all((a <= b).all() for a, b in itertools.pairwise(masks))
    says = "Every round keeps what the rounds before it measured." if nested else (
        "The masks are not nested: a later round drops lines that an earlier one measured."
    )  # fmt: skip
    return Figure(
        name="masks",
        caption=f"Which of the {width} lines of k-space each round measures. {says}",
        x_label="line of k-space (phase encode)",
        y_label="measured",
        series=tuple(
            Series(
                f"R = {R:g}: {int(mask.sum())} of {width} lines",
                tuple(range(width)),
                tuple(map(float, mask)),
                style="strip",
            )
            for R, mask in zip(accelerations, masks, strict=True)
        ),
    )


def quality_figures(record: Mapping[str, Any]) -> list[Figure]:
    """Return the figures of image quality: PSNR and SSIM against acceleration.

    Arguments:
        record: A record ``taskuq.quality/1``.

    Example:
        >>> row = {"acceleration": 8.0, "method": "flow", "psnr": {"mean": 35.1,
        ...        "standard_error": 0.2}, "ssim": {"mean": 0.91, "standard_error": None}}
        >>> [figure.name for figure in quality_figures({"results": [row]})]
        ['psnr-against-acceleration', 'ssim-against-acceleration']
    """
    figures = []
    methods = list(dict.fromkeys(str(row["method"]) for row in record["results"]))
    for name, label in (("psnr", "PSNR (dB)"), ("ssim", "SSIM")):
        series = []
        for method in methods:
            rows = [r for r in record["results"] if str(r["method"]) == method and name in r]
            series.append(
                Series(
                    method,
                    tuple(float(r["acceleration"]) for r in rows),
                    tuple(r[name]["mean"] for r in rows),
                    tuple(r[name]["standard_error"] for r in rows),
                )
            )
        figures.append(
            Figure(
                name=f"{name}-against-acceleration",
                caption=f"{label.split()[0]} of whole volumes against acceleration, higher is "
                "better; bars are one standard error over volumes.",
                x_label="acceleration R",
                y_label=label,
                x_scale="log2",
                series=tuple(series),
            )
        )
    return [figure for figure in figures if not figure.is_empty]


def split_figure(record: Mapping[str, Any]) -> Figure:
    """Return the figure of a split: how many groups each part has.

    Arguments:
        record: A record ``taskuq.split/1``.

    Example:
        >>> split_figure({"train": ["a", "b"], "tune": ["c"], "judge": ["d"]}).series[0].y
        (2.0, 1.0, 1.0)
    """
    return Figure(
        name="split",
        caption="How many patients or volumes networks learn from, are tuned on, and are judged "
        "on. Nobody is in two parts.",
        x_label="part",
        y_label="groups",
        x_scale="category",
        series=(
            Series(
                "groups",
                tuple(PARTS.values()),
                tuple(float(len(record[part])) for part in PARTS),
                style="bars",
            ),
        ),
    )
