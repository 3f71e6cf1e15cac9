"""What calibrated thresholds come to where no scan stops early, or every one at once; and why."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from taskuq.calibration.guarantee import Guarantee
from taskuq.decide.rules import LEAST, Examination
from taskuq.decide.stopping import Calibrator
from taskuq.interval import FloatArray

GOES_ON = "every scan goes on to the end"


def with_shortage(
    calibrator: Calibrator, thresholds: FloatArray, accelerations: FloatArray
) -> Guarantee:
    """Return the promise of a policy with the reason why no scan may stop, where none may.

    Arguments:
        calibrator: What found the thresholds of one calibration set, with its promise.
        thresholds: The threshold of each round (round,); at infinity no scan stops.
        accelerations: Of the rounds.
    """
    promise, closed = calibrator.promise, np.isposinf(thresholds)
    if not closed.any():
        return promise
    # Scores of zero, all finite: if they have no finite quantile either, the units are too few.
    least = calibrator.quantiles(np.zeros((1, len(calibrator.index))))
    if np.isposinf(least).all():
        reason = promise.too_few()
    elif promise.given:
        reason = (
            f"too few calibration scans stop early, or too many of those are missed, to certify "
            f"{promise.asked} among them"
        )
    else:
        reason = (
            f"too many calibration cases for {promise.asked} would be missed at any threshold "
            "(as where all samples agree and are wrong)"
        )
    rounds = ", ".join(f"{R:g}" for R in accelerations[closed])
    what = GOES_ON if closed.all() else f"no scan stops at R = {rounds}"
    return replace(promise, shortage=f"{reason}: {what}")


def outlook(
    seen: Examination, calibrator: Calibrator, thresholds: FloatArray, asked: str
) -> str | None:
    """Say where no calibration scan stops early, or every one at once; nothing in between.

    Arguments:
        seen: The calibration cases in the light of the rules.
        calibrator: What found the thresholds, and knows what stops together.
        thresholds: The threshold of each round (round,).
        asked: The error rates that were asked for.
    """
    lowest, largest = seen.lowest, seen.largest
    if calibrator.unit.stops_together:
        largest = seen.allowance(calibrator.index)
        lowest = np.full(largest.shape, -np.inf)
    level = np.asarray(thresholds)[:, None]
    stops = (lowest <= level) & (level < largest)
    if not stops.any():
        return None if np.isposinf(thresholds).all() else (
            f"No scan of the {stops.shape[1]} calibration {calibrator.unit.counted}s stops early."
        )  # fmt: skip
    if thresholds[0] > LEAST:
        return None
    easy = f"The threshold is minus infinity: no more is missed without one than {asked} allows"
    if stops[0].all():
        return f"{easy}, so every scan stops in the first round."
    return (
        f"{easy}, so every scan stops in the first round whose report can achieve the goal, "
        f"{stops[0].mean():.0%} of the calibration scans in the first of all."
    )
