"""Interval length against the number of posterior samples: the paper's figure versus p."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from taskuq.calibration.units import Unit
from taskuq.evaluation.result import Evaluation
from taskuq.experiments.inputs import ClaimSettings, Experiment, Inputs, nearest_acceleration, units
from taskuq.experiments.judging import judge_scores, length_figure
from taskuq.experiments.wording import Account, between, shortage, title

CLAIM = (
    "Intervals get shorter as posterior samples are added, and LWR is much more sensitive to few "
    "samples than CQR. We add: LWR suffers from few samples, CQR does not, nor does MLWR."
)
# A score suffers when few samples make its intervals longer by half or more.
SUFFERS = 1.5


def sample_count(inputs: Inputs, settings: ClaimSettings) -> dict[str, Any]:
    """Compare mean interval lengths at several numbers of posterior samples.

    A score's sensitivity is its mean length with the fewest samples over that with the most. It is
    taken without cutting intervals to the task's range, which would hide how long LWR's get.

    Arguments:
        inputs: A table of several posterior samples.
        settings: Numbers of samples, acceleration, error rate, trials and seed.

    Example:
        >>> from taskuq.experiments.inputs import synthetic_inputs
        >>> record = sample_count(synthetic_inputs(), ClaimSettings(trials=100))
        >>> [row[:2] for row in record["tables"][0]["rows"]][:2]
        [[2, 'lwr'], [4, 'lwr']]
    """
    table = inputs.table
    counts = [p for p in settings.samples if p <= table.samples] or [table.samples]
    R = nearest_acceleration(table, settings.samples_acceleration)
    # Scores that look at samples; AR's estimate is another one, and learning takes all samples.
    chosen = replace(settings, scores=("lwr", "cqr"), ours=("mlwr",))
    at = "" if math.isnan(R) else f" at R = {R:g}"
    account = Account(
        "sample-count", "Interval length against the number of posterior samples", CLAIM
    )
    ratios: dict[str, dict[str, float]] = {}
    for unit in units(inputs):
        cut, whole = (
            judge_scores(
                inputs, chosen, unit, accelerations=[R], samples=counts, exact=True, clip=clip
            )
            for clip in (True, False)
        )
        caption = (
            f"Mean interval length against the number p of posterior samples{at}, splits by "
            f"{unit.counted}; intervals are cut to the task's range."
        )
        account.figures.append(length_figure(cut, "samples", unit, caption))
        account.tables.append(_table(cut, whole, unit))
        if (reason := shortage(whole)) is not None:
            account.lack(unit, reason)
        elif len(counts) < 2:
            account.lack(unit, f"there is only one number of samples, {counts[0]}")
        else:
            ratios[unit.counted] = _ratios(whole)
            account.find(unit, _said(whole, ratios[unit.counted]), _parts(ratios[unit.counted]))
    said = number = None
    if ratios:
        lwr, cqr = (between([of[name] for of in ratios.values()]) for name in ("lwr", "cqr"))
        few, most = min(counts), max(counts)
        said = f"from p = {most} down to {few} LWR's length grows {lwr} times, CQR's {cqr} times"
        number = f"LWR {lwr} times longer at p = {few}"
    return account.record(
        settings.used("alpha", "samples", "samples_acceleration", "trials", "seed")
        | {"acceleration": R, "suffers": SUFFERS, "table": repr(table)},
        said,
        number,
        note=f"Lengths are not cut; one suffers that grows {SUFFERS:g} times or more.",
    )


def _table(cut: Sequence[Evaluation], whole: Sequence[Evaluation], unit: Unit) -> dict[str, Any]:
    first = cut[0]
    how = "all splits, exactly" if first.trials is None else f"{first.trials} random splits"
    return {
        "name": f"by-{unit.counted}",
        "caption": f"Mean length over {how}, by {unit.counted}, cut to the task's range and not. "
        "Without a finite length some case had identical samples. Measured.",
        "columns": ["p", "score", "coverage", "length", "length sd", "length not cut"],
        "rows": [
            [r.samples, r.score, r.coverage.mean, r.width.mean, r.width.sd, s.width.mean]
            for r, s in zip(cut, whole, strict=True)
        ],
    }


def _ratios(whole: Sequence[Evaluation]) -> dict[str, float]:
    """The length with the fewest samples over that with the most, of each score."""
    ratio = {}
    for score in dict.fromkeys(r.score for r in whole):
        mine = sorted((r for r in whole if r.score == score), key=lambda r: r.samples)
        ratio[score] = mine[0].width.mean / mine[-1].width.mean
    return ratio


def _said(whole: Sequence[Evaluation], ratio: dict[str, float]) -> dict[str, str]:
    few, most = min(r.samples for r in whole), max(r.samples for r in whole)
    grown = {
        f"{title(s)}'s length at p = {few} over that at {most}": between([r])
        for s, r in ratio.items()
    }
    return grown | {f"shortest at p = {p}": _shortest(whole, p) for p in (few, most)}


def _parts(ratio: dict[str, float]) -> dict[str, bool]:
    return {
        "LWR is more sensitive than CQR": ratio["lwr"] > ratio["cqr"],
        "every length falls with p": min(ratio.values()) > 1,
        "LWR suffers": ratio["lwr"] >= SUFFERS,
        "CQR does not suffer": ratio["cqr"] < SUFFERS,
        "MLWR does not suffer": ratio["mlwr"] < SUFFERS,
    }


def _shortest(whole: Sequence[Evaluation], p: int) -> str:
    best = min((r for r in whole if r.samples == p), key=lambda r: r.width.mean)
    return f"{title(best.score)} ({best.width.mean:.3g})"


EXPERIMENT = Experiment(
    sample_count, ("samples", "several samples"), "interval length against posterior samples"
)
