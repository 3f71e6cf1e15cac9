"""Claims about coverage: its exact law, and coverage by class and width."""

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

CONDITIONAL_CLAIM = (
    "Coverage within each class is close to 1 - alpha for every score, with AR the furthest below "
    "it; coverage by interval width is much more even with LWR than with CQR."
)
# Strata with fewer test cases are shown but not compared.
ENOUGH_CASES = 5.0
CLOSE = 0.03
# Names of strata in files and in sentences.
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
        account.find(unit, *_compared(found))
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


def _compared(found: Sequence[Evaluation]) -> tuple[dict[str, float], dict[str, bool]]:
    """Return the lowest class coverage, the variation over widths, and the parts of the claim."""
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
            account.find(unit, _law_rows(found, unit, law), _parts(found, unit, law))
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
        else " No exact law is known for these; whole groups are those with every case covered."
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


def _parts(found: Sequence[Evaluation], unit: Unit, law: CoverageLaw) -> dict[str, bool]:
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
