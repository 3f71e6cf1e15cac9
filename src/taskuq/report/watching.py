"""The figure of a watch over exchangeability: how the evidence against it has grown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from taskuq.report.figure import Figure, FigureKind, Series
from taskuq.report.records import MONITOR

# So many units of a long watch are drawn, the last among them.
POINTS = 400


def _evidence(record: Mapping[str, Any]) -> Figure:
    each = record["statistics"]
    return Figure(
        name="evidence",
        caption=f"Evidence against exchangeability after each new {record['unit']}, for each "
        f"statistic that is watched. Were all {record['unit']}s exchangeable, any of them would "
        f"ever reach the line with probability at most {record['delta']:g}.",
        x_label=f"new {record['unit']}s",
        y_label="evidence",
        y_scale="log",
        reference=(("the promise is withdrawn", len(each) / float(record["delta"])),),
        series=tuple(_series(str(one["name"]), one["evidence"]) for one in each if one["evidence"]),
    )


def _series(name: str, evidence: list[float]) -> Series:
    last = len(evidence) - 1
    drawn = np.unique(np.linspace(0, last, min(last + 1, POINTS)).astype(int)).tolist()
    return Series(name, tuple(k + 1 for k in drawn), tuple(float(evidence[k]) for k in drawn))


EVIDENCE = FigureKind(
    MONITOR,
    lambda record: [_evidence(record)],
    heading="Whether the promise still stands",
    title="Evidence against exchangeability",
    reading=lambda record: str(record["sentence"]),
)
