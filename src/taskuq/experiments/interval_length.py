"""Interval length against acceleration: the paper's figure of mean interval length versus R."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taskuq.calibration.units import Unit
from taskuq.evaluation.result import Evaluation
from taskuq.experiments.inputs import ClaimSettings, Experiment, Inputs, units
from taskuq.experiments.judging import judge_scores, length_figure, point_source
from taskuq.experiments.wording import Account, falls, listing, shortage, title

CLAIM = (
    "Intervals get shorter as more is measured, and LWR and CQR on posterior samples give shorter "
    "intervals than AR on a point estimate at every acceleration."
)


def interval_length(inputs: Inputs, settings: ClaimSettings) -> dict[str, Any]:
    r"""Compare mean interval lengths at every acceleration, by case and by group.

    .. math:: \overline{\mathrm{MIL}} = \frac1T \sum_t \frac1m \sum_{i \in \text{test}_t}
        |\mathcal C(\{\hat x_i^{(j)}\}; d_t)|

    By case the mean is over all splits, exactly; by group over random ones.

    Arguments:
        inputs: A table of posterior samples with several rounds; AR takes the point estimates.
        settings: Error rate, scores, trials and seed.

    Example:
        >>> from taskuq.experiments.inputs import synthetic_inputs
        >>> record = interval_length(synthetic_inputs(), ClaimSettings(trials=100))
        >>> record["finding"][:5], [t["name"] for t in record["tables"]]
        ('Held:', ['by-case', 'by-group'])
    """
    account = Account("interval-length", "Interval length against acceleration", CLAIM)
    for unit in units(inputs):
        found = judge_scores(inputs, settings, unit, exact=True)
        caption = (
            f"Mean interval length against acceleration, splits by {unit.counted}; bars are one "
            "standard deviation over splits."
        )
        account.figures.append(length_figure(found, "acceleration", unit, caption))
        table = _table(found, unit)
        if not unit.is_group:
            whole = judge_scores(inputs, settings, unit, exact=True, clip=False)
            table["columns"].append("length not cut")
            for row, r in zip(table["rows"], whole, strict=True):
                row.append(r.width.mean)
        account.tables.append(table)
        account.find(unit, *_finding(found, settings))
    return account.record(
        settings.used("alpha", "scores", "ours", "trials", "seed")
        | {"table": repr(inputs.table), "point": repr(inputs.point)},
        end=f" AR takes {point_source(inputs)}.",
    )


def _table(found: Sequence[Evaluation], unit: Unit) -> dict[str, Any]:
    first = found[0]
    how = "all splits, exactly" if first.trials is None else f"{first.trials} random splits"
    return {
        "name": f"by-{unit.counted}",
        "caption": f"Coverage and length over {how}, by {unit.counted}: {first.n_calibration} to "
        f"calibrate, {first.n_test} to test. Intervals are cut to the task's range, unless a "
        "column says otherwise: the paper does not cut them. Measured.",
        "columns": ["R", "score", "p", "coverage", "length", "length sd"],
        "rows": [
            [r.acceleration, r.score, r.samples, r.coverage.mean, r.width.mean, r.width.sd]
            for r in found
        ],
    }


def _finding(found: Sequence[Evaluation], settings: ClaimSettings) -> tuple[str, list[bool]]:
    if (reason := shortage(found)) is not None:
        return reason, []
    lengths: dict[str, dict[float | None, float]] = {}
    for r in found:
        lengths.setdefault(r.score, {})[r.acceleration] = r.width.mean
    fall = {score: falls(by_rate.values()) for score, by_rate in lengths.items()}
    sentence = (
        "every score's length falls with R"
        if all(fall.values())
        else f"the length does not fall with R for {listing(title(s) for s in fall if not fall[s])}"
    )
    held = [fall[s] for s in settings.scores if s in fall]
    residual = lengths.get("ar", {})
    for score in (s for s in settings.scores if s != "ar" and s in lengths):
        shared = [R for R in lengths[score] if R in residual]
        ratios = [lengths[score][R] / residual[R] for R in shared]
        if not ratios:
            continue
        longer = [R for R, ratio in zip(shared, ratios, strict=True) if not ratio < 1]
        held.append(not longer)
        sentence += (
            f"; {title(score)} takes {min(ratios):.2f} to {max(ratios):.2f} of AR's length"
            + (f", longer at R = {listing(f'{R:g}' for R in longer)}" if longer else "")
        )
    paper = [s for s in settings.scores if s in lengths]
    for score in (s for s in settings.ours if s in lengths):
        ratios = [
            length / min(lengths[s].get(R, float("inf")) for s in paper)
            for R, length in lengths[score].items()
        ]
        sentence += (
            f"; {title(score)} takes {min(ratios):.2f} to {max(ratios):.2f} of the shortest of "
            "the paper's"
        )
    return f"{sentence}.", held


EXPERIMENT = Experiment(
    interval_length, ("samples", "rounds"), "interval length against acceleration"
)
