"""Claims about interval length against acceleration R and number of samples p."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from taskuq.conformal._exact import Evaluation
from taskuq.conformal._units import Unit
from taskuq.experiments import _claims as claims
from taskuq.experiments._claims import ClaimInputs, ClaimSettings, Experiment, FindingWriter

LENGTH_CLAIM = (
    "Intervals get shorter as more is measured, and LWR and CQR on posterior samples give shorter "
    "intervals than AR on a point estimate at every acceleration."
)


def _interval_length(inputs: ClaimInputs, settings: ClaimSettings) -> dict[str, Any]:
    account = FindingWriter(
        "interval-length", "Interval length against acceleration", LENGTH_CLAIM,
        "Every length falls with R, and LWR and CQR are shorter than AR at every R.",
    )  # fmt: skip
    ratios: list[float] = []
    for unit in claims.units(inputs):
        found = claims.evaluate_scores(inputs, settings, unit, exact=True)
        caption = (
            f"Mean interval length against acceleration, splits by {unit.counted}; bars are one "
            "standard deviation over splits."
        )
        account.figures.append(claims.length_figure(found, "acceleration", unit, caption))
        table = _length_table(found, unit)
        if not unit.is_group:
            whole = claims.evaluate_scores(inputs, settings, unit, exact=True, clip=False)
            table["columns"].append("unclipped length")
            for row, r in zip(table["rows"], whole, strict=True):
                row.append(r.width.mean)
        account.tables.append(table)
        if (reason := claims.no_finite_interval(found)) is not None:
            account.lack(unit, reason)
            continue
        compared, parts, adaptive = _length_ratios(found, settings)
        account.find(unit, compared, parts)
        ratios += adaptive
    shorter = claims.format_range(ratios)
    return account.record(
        settings.used("alpha", "scores", "ours", "trials", "seed")
        | {"table": repr(inputs.table), "point": repr(inputs.point)},
        f"LWR and CQR have {shorter} of AR's length over all accelerations" if ratios else None,
        f"{shorter} times AR's" if ratios else None,
        note=f"AR uses {claims.point_source(inputs)}; ranges are over all accelerations.",
    )


def _length_table(found: Sequence[Evaluation], unit: Unit) -> dict[str, Any]:
    first = found[0]
    how = "all splits, exactly" if first.splits is None else f"{first.splits} random splits"
    return {
        "name": f"by-{unit.counted}",
        "caption": f"Coverage and length over {how}, by {unit.counted}: {first.n_calibration} to "
        f"calibrate, {first.n_test} to test. Intervals are clipped to the task's range; the paper "
        "does not clip them (unclipped length). Measured.",
        "columns": ["R", "score", "p", "coverage", "length", "length sd"],
        "rows": [
            [r.acceleration, r.score, r.samples, r.coverage.mean, r.width.mean, r.width.sd]
            for r in found
        ],
    }


def _length_ratios(
    found: Sequence[Evaluation], settings: ClaimSettings
) -> tuple[dict[str, str], dict[str, bool], list[float]]:
    """Return the ratios to report, the parts of the claim, and all ratios to AR."""
    lengths: dict[str, dict[float | None, float]] = {}
    for r in found:
        lengths.setdefault(r.score, {})[r.acceleration] = r.width.mean
    paper = [s for s in settings.scores if s in lengths]
    parts = {
        f"{claims.title(s)}'s length falls with R": claims.is_decreasing(lengths[s].values())
        for s in paper
    }
    compared: dict[str, str] = {}
    adaptive: list[float] = []
    residual = lengths.get("ar", {})
    for score in (s for s in paper if s != "ar"):
        ratios = {R: lengths[score][R] / residual[R] for R in lengths[score] if R in residual}
        if not ratios:
            continue
        longer = [f"{R:g}" for R, ratio in ratios.items() if R is not None and not ratio < 1]
        where = f"R = {claims.listing(longer)}" if longer else "every R"
        parts[f"{claims.title(score)} is shorter than AR at {where}"] = not longer
        compared[f"{claims.title(score)}'s length over AR's"] = claims.format_range(ratios.values())
        adaptive += ratios.values()
    for score in (s for s in settings.ours if s in lengths):
        ours = [
            length / min(lengths[s].get(R, float("inf")) for s in paper)
            for R, length in lengths[score].items()
        ]
        compared[f"{claims.title(score)}'s length over the shortest of the paper's"] = (
            claims.format_range(ours)
        )
    return compared, parts, adaptive


INTERVAL_LENGTH = Experiment(
    _interval_length, ("samples", "rounds"), "interval length against acceleration"
)

COUNT_CLAIM = (
    "Intervals get shorter as posterior samples are added, and LWR is much more sensitive to few "
    "samples than CQR. We add: LWR degrades with few samples, CQR and MLWR do not."
)
# A score degrades if few samples make its intervals longer by this factor or more.
DEGRADED = 1.5


def _sample_count(inputs: ClaimInputs, settings: ClaimSettings) -> dict[str, Any]:
    table = inputs.table
    counts = [p for p in settings.samples if p <= table.samples] or [table.samples]
    R = claims.nearest_acceleration(table, settings.samples_acceleration)
    # Scores of samples; AR uses a point estimate, and the learned score all samples.
    chosen = replace(settings, scores=("lwr", "cqr"), ours=("mlwr",))
    at = "" if math.isnan(R) else f" at R = {R:g}"
    account = FindingWriter(
        "sample-count", "Interval length against posterior samples", COUNT_CLAIM,
        f"Every length falls with p; with few samples LWR grows more than CQR and {DEGRADED:g}x or "
        "more, CQR and MLWR less.",
    )  # fmt: skip
    ratios: dict[str, dict[str, float]] = {}
    for unit in claims.units(inputs):
        clipped, whole = (
            claims.evaluate_scores(
                inputs, chosen, unit, accelerations=[R], samples=counts, exact=True, clip=clip
            )
            for clip in (True, False)
        )
        caption = (
            f"Mean interval length against the number p of posterior samples{at}, splits by "
            f"{unit.counted}; unclipped."
        )
        account.figures.append(claims.length_figure(whole, "samples", unit, caption))
        account.tables.append(_count_table(clipped, whole, unit))
        if (reason := claims.no_finite_interval(whole)) is not None:
            account.lack(unit, reason)
        elif len(counts) < 2:
            account.lack(unit, f"there is only one number of samples, {counts[0]}")
        else:
            ratio = ratios[unit.counted] = _count_ratios(whole)
            account.find(unit, _count_rows(whole, ratio), _parts(ratio))
    compared = number = None
    if ratios:
        lwr, cqr = (
            claims.format_range([of[name] for of in ratios.values()]) for name in ("lwr", "cqr")
        )
        few, most = min(counts), max(counts)
        compared = (
            f"from p = {most} to {few} LWR's unclipped length grows {lwr}-fold, CQR's {cqr}-fold"
        )
        number = f"LWR {lwr} times at p = {few}"
    return account.record(
        settings.used("alpha", "samples", "samples_acceleration", "trials", "seed")
        | {"acceleration": R, "degraded": DEGRADED, "table": repr(table)},
        compared,
        number,
        note=f"Lengths are unclipped. A score is counted as degraded if its length grows by "
        f"{DEGRADED:g}x or more.",
    )


def _count_table(
    clipped: Sequence[Evaluation], whole: Sequence[Evaluation], unit: Unit
) -> dict[str, Any]:
    first = clipped[0]
    how = "all splits, exactly" if first.splits is None else f"{first.splits} random splits"
    return {
        "name": f"by-{unit.counted}",
        "caption": f"Mean length over {how}, by {unit.counted}, clipped to the task's range and "
        "unclipped. A length is infinite if some case had identical samples. Measured.",
        "columns": ["p", "score", "coverage", "length", "length sd", "unclipped length"],
        "rows": [
            [r.samples, r.score, r.coverage.mean, r.width.mean, r.width.sd, s.width.mean]
            for r, s in zip(clipped, whole, strict=True)
        ],
    }


def _count_ratios(whole: Sequence[Evaluation]) -> dict[str, float]:
    """Return, for each score, the length with the fewest samples over that with the most."""
    ratio = {}
    for score in dict.fromkeys(r.score for r in whole):
        mine = sorted((r for r in whole if r.score == score), key=lambda r: r.samples)
        ratio[score] = mine[0].width.mean / mine[-1].width.mean
    return ratio


def _count_rows(whole: Sequence[Evaluation], ratio: dict[str, float]) -> dict[str, str]:
    few, most = min(r.samples for r in whole), max(r.samples for r in whole)
    grown = {
        f"{claims.title(s)}'s length at p = {few} over that at {most}": claims.format_range([r])
        for s, r in ratio.items()
    }
    for p in (few, most):
        best = min((r for r in whole if r.samples == p), key=lambda r: r.width.mean)
        grown[f"shortest at p = {p}"] = f"{claims.title(best.score)} ({best.width.mean:.3g})"
    return grown


def _parts(ratio: dict[str, float]) -> dict[str, bool]:
    return {
        "LWR is more sensitive than CQR": ratio["lwr"] > ratio["cqr"],
        "every length falls with p": min(ratio.values()) > 1,
        "LWR degrades with few samples": ratio["lwr"] >= DEGRADED,
        "CQR does not degrade": ratio["cqr"] < DEGRADED,
        "MLWR does not degrade": ratio["mlwr"] < DEGRADED,
    }


SAMPLE_COUNT = Experiment(
    _sample_count, ("samples", "several samples"), "interval length against posterior samples"
)
