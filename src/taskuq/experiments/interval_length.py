"""Interval length against acceleration: the paper's figure of mean interval length versus R."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from taskuq.calibration.units import Unit
from taskuq.evaluation.result import Evaluation
from taskuq.experiments.inputs import ClaimSettings, Experiment, Inputs, units
from taskuq.experiments.judging import judge_scores, length_figure, point_source
from taskuq.experiments.wording import Account, between, falls, listing, shortage, title

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
        ('Held:', ['by-case', 'by-group', 'summary'])
    """
    account = Account("interval-length", "Interval length against acceleration", CLAIM)
    ratios: list[float] = []
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
        if (reason := shortage(found)) is not None:
            account.lack(unit, reason)
            continue
        found_ratios = _ratios(found, settings)
        account.find(unit, found_ratios.said, found_ratios.parts)
        ratios += found_ratios.adaptive
    shorter = between(ratios)
    return account.record(
        settings.used("alpha", "scores", "ours", "trials", "seed")
        | {"table": repr(inputs.table), "point": repr(inputs.point)},
        f"LWR and CQR take {shorter} of AR's length over all accelerations" if ratios else None,
        f"{shorter} of AR's length" if ratios else None,
        note=f"AR takes {point_source(inputs)}; ratios go over all accelerations.",
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


class _Ratios(NamedTuple):
    """Lengths against each other: in words, which parts of the claim held, the paper's to AR's."""

    said: dict[str, str]
    parts: dict[str, bool]
    adaptive: list[float]


def _ratios(found: Sequence[Evaluation], settings: ClaimSettings) -> _Ratios:
    lengths: dict[str, dict[float | None, float]] = {}
    for r in found:
        lengths.setdefault(r.score, {})[r.acceleration] = r.width.mean
    paper = [s for s in settings.scores if s in lengths]
    parts = {f"{title(s)}'s length falls with R": falls(lengths[s].values()) for s in paper}
    said: dict[str, str] = {}
    adaptive: list[float] = []
    residual = lengths.get("ar", {})
    for score in (s for s in paper if s != "ar"):
        ratios = {R: lengths[score][R] / residual[R] for R in lengths[score] if R in residual}
        if not ratios:
            continue
        longer = [f"{R:g}" for R, ratio in ratios.items() if R is not None and not ratio < 1]
        where = f"R = {listing(longer)}" if longer else "every R"
        parts[f"{title(score)} is shorter than AR at {where}"] = not longer
        said[f"{title(score)}'s length over AR's"] = between(ratios.values())
        adaptive += ratios.values()
    for score in (s for s in settings.ours if s in lengths):
        ours = [
            length / min(lengths[s].get(R, float("inf")) for s in paper)
            for R, length in lengths[score].items()
        ]
        said[f"{title(score)}'s length over the shortest of the paper's"] = between(ours)
    return _Ratios(said, parts, adaptive)


EXPERIMENT = Experiment(
    interval_length, ("samples", "rounds"), "interval length against acceleration"
)
