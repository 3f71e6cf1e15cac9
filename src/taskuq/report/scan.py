"""One scan that stops: what was measured, reported and decided, round by round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskuq.interval import FloatArray
from taskuq.report.explorer import Explorer
from taskuq.report.payload import thumbnail
from taskuq.report.tables import shown
from taskuq.words import Words


@dataclass(frozen=True)
class ScanRound:
    """What one round of a scan gave.

    Arguments:
        label: What the round is called.
        outputs: The task outputs of the samples.
        lower: The lower end of what would be reported.
        upper: The upper end.
        stops: Whether the scan stops here.
    """

    label: str
    outputs: tuple[float, ...]
    lower: float
    upper: float
    stops: bool


@dataclass(frozen=True)
class OneScan:
    """A scan of one case, up to the round in which it stops.

    Arguments:
        case: The case.
        target: What the task says about the truth.
        rounds: The rounds that were measured.
        shown: Which of the explorer's slices it is, if it has pictures.
        task: Which of several tasks the rounds are about.
    """

    case: str
    target: float
    rounds: tuple[ScanRound, ...]
    shown: int | None
    task: str | None = None

    @property
    def is_early(self) -> bool:
        """Whether it stopped before everything was measured."""
        return self.rounds[-1].stops


def scan_picture(scan: OneScan, explorer: Explorer | None, words: Words) -> dict[str, Any]:
    """Return a scan as the template draws it: one row for each round, the truth last.

    Arguments:
        scan: The scan.
        explorer: Its pictures.
        words: What cases and pictures are called.
    """
    every = [scan.target, *(v for r in scan.rounds for v in (*r.outputs, r.lower, r.upper))]
    known = [v for v in every if math.isfinite(v)]
    low, high = min(known), max(known)
    span = (high - low) or 1.0

    def x(value: float) -> float:
        inside = min(max(value, low), high)
        return round(4 + 192 * (inside - low) / span, 2)

    rows = []
    for k, one in enumerate(scan.rounds):
        rows.append(
            {
                "label": one.label,
                "image": _picture(explorer, scan.shown, k),
                "text": f"{shown(one.lower)} to {shown(one.upper)}",
                "decision": "stops here" if one.stops else "measure more",
                "stops": one.stops,
                "from": x(one.lower),
                "width": max(x(one.upper) - x(one.lower), 1.0),
                "dots": [x(v) for v in one.outputs],
            }
        )
    last = scan.rounds[-1]
    holds = last.lower <= scan.target <= last.upper
    told = "holds" if holds else "misses"
    told = f"stops at {last.label}; the report {told} the truth, {shown(scan.target)}"
    goes_on = f"goes on until the truth, {shown(scan.target)}, is known"
    of = "" if scan.task is None else f" ({scan.task})"
    return {
        "caption": f"{words.title('case')} {scan.case}{of}: measuring "
        f"{told if last.stops else goes_on}.",
        "rows": rows,
        "target": x(scan.target),
        "truth": {
            "label": words.title("truth"),
            "image": _picture(explorer, scan.shown, None),
            "text": shown(scan.target),
        },
    }


def _picture(explorer: Explorer | None, s: int | None, k: int | None) -> str | None:
    if explorer is None or s is None:
        return None
    true: FloatArray = explorer.truth[s].astype(np.float32)
    top = float(true.max()) or 1.0
    return thumbnail(true if k is None else explorer.mean[s, k], top)
