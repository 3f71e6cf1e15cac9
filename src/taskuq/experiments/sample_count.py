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
from taskuq.experiments.wording import Account, listing, shortage, title

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
        account.find(unit, *_finding(whole))
    return account.record(
        settings.used("alpha", "samples", "samples_acceleration", "trials", "seed")
        | {"acceleration": R, "suffers": SUFFERS, "table": repr(table)},
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


def _finding(whole: Sequence[Evaluation]) -> tuple[str, list[bool]]:
    if (reason := shortage(whole)) is not None:
        return reason, []
    ratio = {}
    for score in dict.fromkeys(r.score for r in whole):
        mine = sorted((r for r in whole if r.score == score), key=lambda r: r.samples)
        ratio[score] = mine[0].width.mean / mine[-1].width.mean
    few, most = min(r.samples for r in whole), max(r.samples for r in whole)
    if few == most:
        return f"there is only one number of samples, {most}.", []
    said = ", ".join(
        f"{title(s)} {'without bound' if math.isinf(r) else f'{r:.2f} times'}"
        for s, r in ratio.items()
    )
    held = [
        ratio["lwr"] > ratio["cqr"],
        min(ratio.values()) > 1,
        ratio["lwr"] >= SUFFERS,
        ratio["cqr"] < SUFFERS,
        ratio["mlwr"] < SUFFERS,
    ]
    suffering = [title(s) for s, r in ratio.items() if r >= SUFFERS]
    return (
        f"from p = {most} down to p = {few} lengths become: {said}; longer by half or more: "
        f"{listing(suffering)}. At p = {few} the shortest is {_shortest(whole, few)}, at "
        f"p = {most} {_shortest(whole, most)}.",
        held,
    )


def _shortest(whole: Sequence[Evaluation], p: int) -> str:
    best = min((r for r in whole if r.samples == p), key=lambda r: r.width.mean)
    return f"{title(best.score)} ({best.width.mean:.3g})"


EXPERIMENT = Experiment(
    sample_count, ("samples", "several samples"), "interval length against posterior samples"
)
