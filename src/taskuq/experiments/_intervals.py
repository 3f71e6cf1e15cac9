"""Tests of claims about interval length and about coverage, overall and within strata."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from taskuq.conformal._exact import HONESTLY, Evaluation, StratumCoverage
from taskuq.conformal._quantiles import CoverageLaw, coverage_rank
from taskuq.conformal._units import CaseUnit, Unit
from taskuq.experiments import _claims as claims
from taskuq.experiments._claims import ClaimInputs, ClaimSettings, Experiment, FindingWriter
from taskuq.report.figures import Figure
from taskuq.report.figures._evaluation import coverage_histogram, coverage_within

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
        unnamed = None if settings.scores else "no score of the paper was chosen"
        if (reason := claims.no_finite_interval(found) or unnamed) is not None:
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
            account.find(unit, _count_rows(whole, ratio), _count_parts(ratio))
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


def _count_parts(ratio: dict[str, float]) -> dict[str, bool]:
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


CONDITIONAL_CLAIM = (
    "Coverage within each class is close to 1 - alpha for every score, with AR the furthest below "
    "it; coverage by interval width is much more even with LWR than with CQR."
)
# Strata with fewer test cases are shown but not compared.
ENOUGH_CASES = 5.0
CLOSE = 0.03
STRATA = {"class": ("class", "class"), "size": ("width", "interval width")}


def _conditional_coverage(inputs: ClaimInputs, settings: ClaimSettings) -> dict[str, Any]:
    R = claims.nearest_acceleration(inputs.table, settings.coverage_acceleration)
    account = FindingWriter(
        "conditional-coverage", "Coverage within classes and widths", CONDITIONAL_CLAIM,
        f"No class is more than {CLOSE:g} below 1 − α, AR has the lowest class, and coverage over "
        "widths varies less for LWR than for CQR.",
    )  # fmt: skip
    lowest: list[tuple[float, str]] = []
    for unit in claims.units(inputs):
        found = claims.evaluate_scores(inputs, settings, unit, accelerations=[R])
        for strata, (name, label) in STRATA.items():
            if any(_strata(r, strata) for r in found):
                account.figures.append(
                    replace(
                        coverage_within([r.to_dict() for r in found], strata),
                        name=f"{name}-coverage-by-{unit.counted}",
                        caption=f"Coverage within each {label} at R = {R:g}, splits by "
                        f"{unit.counted}; measured, not guaranteed. Empty bins are omitted.",
                    )
                )
                account.tables.append(_conditional_table(found, strata, unit))
        if (reason := claims.no_finite_interval(found)) is not None:
            account.lack(unit, reason)
            continue
        account.find(unit, *_compared_strata(found))
        lowest += [(s.coverage, r.score) for r in found for s in _judged(r.class_coverage)]
    compared = number = None
    if account.parts:
        low, score = min(lowest, default=(math.nan, ""))
        number = f"lowest class {low:.3f} ({claims.title(score)})" if lowest else "widths alone"
        compared = f"the lowest coverage of a class is {low:.3f}, with {claims.title(score)}"
        compared = compared if lowest else "there are no classes, so widths alone are compared"
    return account.record(
        settings.used("alpha", "scores", "ours", "coverage_acceleration", "trials", "seed")
        | {"acceleration": R, "enough_cases": ENOUGH_CASES, "close": CLOSE,
           "table": repr(inputs.table), "point": repr(inputs.point)},
        compared,
        number,
        note=f"Measured, not guaranteed. AR uses {claims.point_source(inputs)}.",
    )  # fmt: skip


def _strata(result: Evaluation, strata: str) -> Sequence[StratumCoverage]:
    return result.class_coverage if strata == "class" else result.size_coverage


def _conditional_table(found: Sequence[Evaluation], strata: str, unit: Unit) -> dict[str, Any]:
    name, label = STRATA[strata]
    return {
        "name": f"{name}-by-{unit.counted}",
        "caption": f"Coverage within each {label} over {found[0].splits} random splits by "
        f"{unit.counted}; cases are the mean number of test cases there.",
        "columns": ["score", label, "coverage", "cases"],
        "rows": [[r.score, s.name, s.coverage, s.cases] for r in found for s in _strata(r, strata)],
    }


def _compared_strata(found: Sequence[Evaluation]) -> tuple[dict[str, float], dict[str, bool]]:
    target = 1 - found[0].alpha
    classes = {r.score: _judged(r.class_coverage) for r in found if _judged(r.class_coverage)}
    lowest = {name: min(s.coverage for s in of) for name, of in classes.items()}
    sizes = {r.score: _judged(r.size_coverage) for r in found}
    spread = {
        name: max(s.coverage for s in of) - min(s.coverage for s in of)
        for name, of in sizes.items()
        if len(of) > 1
    }
    paper = [lowest[name] for name in ("ar", "lwr", "cqr") if name in lowest]
    parts = {}
    if classes:
        parts[f"every class is at most {CLOSE:g} below {target:g}"] = (
            min(paper, default=0.0) >= target - CLOSE
        )
    if "ar" in lowest:
        parts["AR has the lowest class"] = lowest["ar"] <= min(paper)
    if {"lwr", "cqr"} <= set(spread):
        parts["LWR is more even over widths than CQR"] = spread["lwr"] < spread["cqr"]
    compared = {f"lowest coverage of a class, {claims.title(s)}": low for s, low in lowest.items()}
    return compared | {
        f"difference between widths, {claims.title(s)}": v for s, v in spread.items()
    }, parts


def _judged(strata: Sequence[StratumCoverage]) -> list[StratumCoverage]:
    return [s for s in strata if s.splits and s.cases >= ENOUGH_CASES]


CONDITIONAL_COVERAGE = Experiment(
    _conditional_coverage, ("samples",), "coverage within classes and widths"
)

LAW_CLAIM = (
    "Over random splits the coverage of the test fold follows its theoretical law, and its mean is "
    "very close to 1 - alpha, for every score."
)
# A right law fails this in one of a thousand experiments of ten histograms.
SMALLEST_P = 1e-4


def _coverage_law(inputs: ClaimInputs, settings: ClaimSettings) -> dict[str, Any]:
    table = inputs.table
    R = claims.nearest_acceleration(table, settings.coverage_acceleration)
    by_unit = {
        unit: claims.evaluate_scores(inputs, settings, unit, accelerations=[R])
        for unit in claims.units(inputs)
    }
    law = _law(next(iter(by_unit.values()))[0])
    account = FindingWriter(
        "coverage-law", "Empirical coverage and its exact law", LAW_CLAIM,
        f"By case, every histogram fits the law (p > {SMALLEST_P:g}) and every mean agrees within "
        "5 standard errors; by group, mean coverage reaches 1 − α.",
    )  # fmt: skip
    for unit, found in by_unit.items():
        account.figures += [_histogram(r, R) for r in found if r.histogram is not None]
        account.tables.append(_law_table(found, unit, law))
        if (reason := claims.no_finite_interval(found)) is not None:
            account.lack(unit, reason)
        else:
            account.find(unit, _law_rows(found, unit, law), _law_parts(found, unit, law))
    by_case = account.parts.get("by case") and [r.coverage.mean for r in by_unit[CaseUnit()]]
    near = claims.format_range(by_case, 3) if by_case else None
    return account.record(
        settings.used("alpha", "scores", "ours", "coverage_acceleration", "trials", "seed")
        | {"acceleration": R, "table": repr(table), "point": repr(inputs.point)},
        near and f"mean coverage by case is {near}; the exact law gives {law.mean:.3f}",
        near and f"{near}; law {law.mean:.3f}",
        note=f"{HONESTLY} AR uses {claims.point_source(inputs)}.",
    )


def _law(result: Evaluation) -> CoverageLaw:
    rank = coverage_rank(result.n_calibration, result.alpha)
    return CoverageLaw(result.n_calibration, rank, result.n_test)


def _histogram(result: Evaluation, R: float) -> Figure:
    histogram = result.histogram
    assert histogram is not None
    at = "" if math.isnan(R) else f" at R = {R:g}"
    return replace(
        coverage_histogram(result.to_dict()),
        name=f"coverage-{result.score}",
        caption=f"Coverage of {claims.title(result.score)}{at} in {result.splits} random splits, "
        f"mean {result.coverage.mean:.3f}, against its exact law (goodness of fit "
        f"p = {histogram.p_value:.2g}).",
    )


def _law_table(found: Sequence[Evaluation], unit: Unit, law: CoverageLaw) -> dict[str, Any]:
    first = found[0]
    theory = (
        f" The exact law has mean {law.mean:.3g} and standard deviation {law.sd:.3g}."
        if not unit.is_group
        else " No exact law is known by group; a whole group is covered if each of its cases is."
    )
    return {
        "name": f"by-{unit.counted}",
        "caption": f"Coverage over {first.splits} random splits by {unit.counted}: "
        f"{first.n_calibration} to calibrate, {first.n_test} to test.{theory}",
        "columns": ["score", "coverage", "sd", "whole groups" if unit.is_group else "fit p"],
        "rows": [
            [
                r.score, r.coverage.mean, r.coverage.sd,
                r.whole_group_coverage if unit.is_group else r.histogram and r.histogram.p_value,
            ]
            for r in found
        ],
    }  # fmt: skip


def _law_rows(found: Sequence[Evaluation], unit: Unit, law: CoverageLaw) -> dict[str, Any]:
    compared: dict[str, Any] = {
        f"mean coverage, {claims.title(r.score)}": r.coverage.mean for r in found
    }
    compared["guaranteed coverage"] = 1 - found[0].alpha
    fits = [r.histogram.p_value for r in found if r.histogram is not None]
    if not unit.is_group:
        compared["mean of the exact law"] = law.mean
        compared[f"smallest goodness-of-fit p-value of {len(fits)}"] = min(fits, default=None)
    return compared


def _law_parts(found: Sequence[Evaluation], unit: Unit, law: CoverageLaw) -> dict[str, bool]:
    if unit.is_group:
        target = 1 - found[0].alpha
        return {
            f"{claims.title(r.score)} covers {target:g} on average": r.coverage.mean
            + 5 * r.coverage.sd / math.sqrt(r.splits or 1)
            >= target
            for r in found
        }
    # A score that learns calibrates on fewer cases and follows another law.
    parts = {}
    for r in found:
        if r.histogram is None:
            continue
        error = law.sd / math.sqrt(r.splits or 1)
        parts[f"{claims.title(r.score)}'s histogram follows the law"] = (
            r.histogram.p_value > SMALLEST_P
        )
        parts[f"{claims.title(r.score)}'s mean is the law's"] = (
            abs(r.coverage.mean - law.mean) <= 5 * error
        )
    return parts


COVERAGE_LAW = Experiment(_coverage_law, ("samples",), "coverage against its exact law")
