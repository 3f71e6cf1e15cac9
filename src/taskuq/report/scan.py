"""One scan that stops: what was measured, reported and decided, round by round."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskuq.interval import FloatArray
from taskuq.report.explorer import Explorer
from taskuq.report.payload import brightness, thumbnail
from taskuq.report.tables import shown
from taskuq.words import Words


@dataclass(frozen=True)
class ScanRound:
    """What one round of a scan gave.

    Arguments:
        label: What the round is called.
        outputs: The task outputs of the samples.
        report: Both ends of what is reported; None where the scan goes on.
    """

    label: str
    outputs: tuple[float, ...]
    report: tuple[float, float] | None

    @property
    def stops(self) -> bool:
        """Whether the scan stops here."""
        return self.report is not None


@dataclass(frozen=True)
class OneScan:
    """A scan of one case, up to the round in which it stops.

    Arguments:
        case: The case.
        target: What the task says about the truth.
        rounds: The rounds that were measured.
        shown: Which of the explorer's slices it is, if it has pictures.
        task: Which of several tasks the rounds are about.
        calibrated: How many cases the policy was calibrated on, where this is one of them.
        without: How many the explorer calibrates on then, where this is none of them.
    """

    case: str
    target: float
    rounds: tuple[ScanRound, ...]
    shown: int | None
    task: str | None = None
    calibrated: int | None = None
    without: int | None = None

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
    every = [scan.target, *(v for r in scan.rounds for v in r.outputs)]
    every += [v for r in scan.rounds if r.report is not None for v in r.report]
    known = [v for v in every if math.isfinite(v)]
    low, high = min(known), max(known)
    span = (high - low) or 1.0

    def x(value: float) -> float:
        inside = min(max(value, low), high)
        return round(4 + 192 * (inside - low) / span, 2)

    rows = [
        {
            "label": one.label,
            "image": _picture(explorer, scan.shown, k),
            "dots": [x(v) for v in one.outputs],
            "decision": "stops here" if one.stops else "measure more",
            "stops": one.stops,
            **_reported(one, x),
        }
        for k, one in enumerate(scan.rounds)
    ]
    of = "" if scan.task is None else f" ({scan.task})"
    return {
        "caption": f"{words.title('case')} {scan.case}{of}: measuring {_ending(scan)}."
        f"{_calibration(scan, words)}",
        "rows": rows,
        "target": x(scan.target),
        "truth": {
            "label": words.title("truth"),
            "image": _picture(explorer, scan.shown, None),
            "text": shown(scan.target),
        },
    }


def _reported(one: ScanRound, x: Callable[[float], float]) -> dict[str, Any]:
    """The report of a round in words, and its bar where there is one."""
    if one.report is None:
        return {"text": "no report yet"}
    low, high = one.report
    text = f"{shown(low)} to {shown(high)}"
    return {"text": text, "from": x(low), "width": max(x(high) - x(low), 1.0)}


def _ending(scan: OneScan) -> str:
    """How the scan ends."""
    truth, last = shown(scan.target), scan.rounds[-1]
    if last.report is None:
        return f"goes on until the truth, {truth}, is known"
    low, high = last.report
    told = "holds" if low <= scan.target <= high else "misses"
    return f"stops at {last.label}; the report {told} the truth, {truth}"


def _calibration(scan: OneScan, words: Words) -> str:
    """That the policy knows the case already, where it does."""
    if scan.calibrated is None:
        return ""
    said = f" It is one of the policy's own {scan.calibrated} calibration {words.many('case')}"
    if scan.without is None:
        return f"{said}."
    return f"{said}; the explorer below calibrates on {scan.without}, without it."


def _picture(explorer: Explorer | None, s: int | None, k: int | None) -> str | None:
    if explorer is None or s is None:
        return None
    true: FloatArray = explorer.truth[s].astype(np.float32)
    return thumbnail(true if k is None else explorer.mean[s, k], *brightness(true))
