"""Coverage within classes and within ranges of width: the paper's conditional coverage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from taskuq.calibration.units import Unit
from taskuq.evaluation.result import Evaluation, Stratum
from taskuq.experiments.inputs import ClaimSettings, Experiment, Inputs, nearest_acceleration, units
from taskuq.experiments.judging import judge_scores, point_source
from taskuq.experiments.wording import Account, shortage, title
from taskuq.report.figures.evaluation import coverage_within

CLAIM = (
    "Coverage within each class is close to 1 - alpha for every score, with AR the furthest below "
    "it; coverage by interval width is much more even with LWR than with CQR."
)
# Coverage of a handful of test cases says little; such ranges are shown, not judged.
ENOUGH_CASES = 5.0
CLOSE = 0.03
# What strata are called in names, and in words.
STRATA = {"class": ("class", "class"), "size": ("width", "interval width")}


def conditional_coverage(inputs: Inputs, settings: ClaimSettings) -> dict[str, Any]:
    r"""Measure coverage within each class and within each range of interval width.

    .. math:: \mathbb P(z \in \mathcal C \mid \text{class } c), \qquad
        \mathbb P(z \in \mathcal C \mid |\mathcal C| \in \mathcal S)

    Neither is guaranteed. A range that is empty in a split is left out of its mean.

    Arguments:
        inputs: A table of posterior samples, with labels for classes.
        settings: Error rate, acceleration, scores, trials and seed.

    Example:
        >>> from taskuq.experiments.inputs import synthetic_inputs
        >>> record = conditional_coverage(synthetic_inputs(volumes=20), ClaimSettings(trials=200))
        >>> [figure["name"] for figure in record["figures"]][:2]
        ['class-coverage-by-case', 'width-coverage-by-case']
    """
    R = nearest_acceleration(inputs.table, settings.coverage_acceleration)
    account = Account("conditional-coverage", "Coverage within classes and widths", CLAIM)
    lowest: list[tuple[float, str]] = []
    for unit in units(inputs):
        found = judge_scores(inputs, settings, unit, accelerations=[R])
        for strata, (name, label) in STRATA.items():
            if any(_strata(r, strata) for r in found):
                account.figures.append(
                    replace(
                        coverage_within([r.to_dict() for r in found], strata),
                        name=f"{name}-coverage-by-{unit.counted}",
                        caption=f"Coverage within each {label} at R = {R:g}, splits by "
                        f"{unit.counted}; measured, not guaranteed. What is always empty is left "
                        "out.",
                    )
                )
                account.tables.append(_table(found, strata, unit))
        if (reason := shortage(found)) is not None:
            account.lack(unit, reason)
            continue
        account.find(unit, *_compared(found))
        lowest += [(s.coverage, r.score) for r in found for s in _judged(r.class_coverage)]
    said = number = None
    if account.parts:
        low, score = min(lowest, default=(math.nan, ""))
        number = f"lowest class {low:.3f} ({title(score)})" if lowest else "widths alone"
        said = f"the lowest coverage of a class is {low:.3f}, with {title(score)}"
        said = said if lowest else "there are no classes, so widths alone are compared"
    return account.record(
        settings.used("alpha", "scores", "ours", "coverage_acceleration", "trials", "seed")
        | {"acceleration": R, "enough_cases": ENOUGH_CASES, "close": CLOSE,
           "table": repr(inputs.table), "point": repr(inputs.point)},
        said,
        number,
        note=f"Measured, not guaranteed. AR takes {point_source(inputs)}.",
    )  # fmt: skip


def _strata(result: Evaluation, strata: str) -> Sequence[Stratum]:
    return result.class_coverage if strata == "class" else result.size_coverage


def _table(found: Sequence[Evaluation], strata: str, unit: Unit) -> dict[str, Any]:
    name, label = STRATA[strata]
    return {
        "name": f"{name}-by-{unit.counted}",
        "caption": f"Coverage within each {label} over {found[0].trials} random splits by "
        f"{unit.counted}; cases are the mean number of test cases there.",
        "columns": ["score", label, "coverage", "cases"],
        "rows": [[r.score, s.name, s.coverage, s.cases] for r in found for s in _strata(r, strata)],
    }


def _compared(found: Sequence[Evaluation]) -> tuple[dict[str, float], dict[str, bool]]:
    """The lowest coverage of a class and how uneven widths are, and what held of the claim."""
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
    said = {f"lowest coverage of a class, {title(s)}": low for s, low in lowest.items()}
    return said | {f"difference between widths, {title(s)}": v for s, v in spread.items()}, parts


def _judged(strata: Sequence[Stratum]) -> list[Stratum]:
    return [s for s in strata if s.trials and s.cases >= ENOUGH_CASES]


EXPERIMENT = Experiment(conditional_coverage, ("samples",), "coverage within classes and widths")
