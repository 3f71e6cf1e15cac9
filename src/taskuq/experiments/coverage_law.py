"""Empirical coverage against its exact law: the paper's histograms of empirical coverage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from taskuq.calibration.law import CoverageLaw
from taskuq.calibration.rank import coverage_rank
from taskuq.calibration.units import NewCase, Unit
from taskuq.evaluation.exact import HONESTLY
from taskuq.evaluation.result import Evaluation
from taskuq.experiments.inputs import ClaimSettings, Experiment, Inputs, nearest_acceleration, units
from taskuq.experiments.judging import judge_scores, point_source
from taskuq.experiments.wording import Account, between, shortage, title
from taskuq.report.figures.evaluation import coverage_histogram
from taskuq.report.figures import Figure

CLAIM = (
    "Over random splits the coverage of the test fold follows its theoretical law, and its mean is "
    "very close to 1 - alpha, for every score."
)
# A right law fails this in one of a thousand experiments of ten histograms.
SMALLEST_P = 1e-4


def coverage_law(inputs: Inputs, settings: ClaimSettings) -> dict[str, Any]:
    r"""Compare the coverage of random test folds with its exact law.

    .. math:: \#\text{covered} \sim \mathrm{BetaBin}(m,\, k,\, n + 1 - k), \qquad
        k = \lceil (1 - \alpha)(n + 1) \rceil

    With groups, coverage is also measured over splits by group, where no such law is known.

    Arguments:
        inputs: A table of posterior samples; AR takes the point estimates.
        settings: Error rate, acceleration, scores, trials and seed.

    Example:
        >>> from taskuq.experiments.inputs import synthetic_inputs
        >>> record = coverage_law(synthetic_inputs(volumes=20), ClaimSettings(trials=500))
        >>> record["finding"][:4], len(record["figures"])
        ('Held', 4)
    """
    table = inputs.table
    R = nearest_acceleration(table, settings.coverage_acceleration)
    by_unit = {
        unit: judge_scores(inputs, settings, unit, accelerations=[R]) for unit in units(inputs)
    }
    law = _law(next(iter(by_unit.values()))[0])
    account = Account("coverage-law", "Empirical coverage and its exact law", CLAIM)
    for unit, found in by_unit.items():
        account.figures += [_histogram(r, R) for r in found if r.histogram is not None]
        account.tables.append(_table(found, unit, law))
        if (reason := shortage(found)) is not None:
            account.lack(unit, reason)
        else:
            account.find(unit, _said(found, unit, law), _parts(found, unit, law))
    by_case = account.parts.get("by case") and [r.coverage.mean for r in by_unit[NewCase()]]
    near = between(by_case, 4) if by_case else None
    return account.record(
        settings.used("alpha", "scores", "ours", "coverage_acceleration", "trials", "seed")
        | {"acceleration": R, "table": repr(table), "point": repr(inputs.point)},
        near and f"mean coverage by case is {near} where the exact law says {law.mean:.4f}",
        near and f"{near}, by the law {law.mean:.4f}",
        note=f"{HONESTLY} AR takes {point_source(inputs)}.",
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
        caption=f"Coverage of {title(result.score)}{at} in {result.trials} random splits, mean "
        f"{result.coverage.mean:.4f}, against its exact law (goodness of fit "
        f"p = {histogram.p_value:.2g}).",
    )


def _table(found: Sequence[Evaluation], unit: Unit, law: CoverageLaw) -> dict[str, Any]:
    first = found[0]
    theory = (
        f" The exact law has mean {law.mean:.5f} and standard deviation {law.sd:.5f}."
        if not unit.is_group
        else " No exact law is known for these; whole groups are those with every case covered."
    )
    return {
        "name": f"by-{unit.counted}",
        "caption": f"Coverage over {first.trials} random splits by {unit.counted}: "
        f"{first.n_calibration} to calibrate, {first.n_test} to test.{theory}",
        "columns": ["score", "coverage", "sd", "whole groups" if unit.is_group else "fit p"],
        "rows": [
            [
                r.score, r.coverage.mean, r.coverage.sd,
                r.whole_groups if unit.is_group else r.histogram and r.histogram.p_value,
            ]
            for r in found
        ],
    }  # fmt: skip


def _said(found: Sequence[Evaluation], unit: Unit, law: CoverageLaw) -> dict[str, Any]:
    said: dict[str, Any] = {f"mean coverage, {title(r.score)}": r.coverage.mean for r in found}
    said["what is promised"] = 1 - found[0].alpha
    fits = [r.histogram.p_value for r in found if r.histogram is not None]
    if not unit.is_group:
        said["what the exact law says"] = law.mean
        said[f"smallest goodness-of-fit p-value of {len(fits)}"] = min(fits, default=None)
    return said


def _parts(found: Sequence[Evaluation], unit: Unit, law: CoverageLaw) -> dict[str, bool]:
    """Which parts of the claim held: the law by case, at least the promise by group."""
    if unit.is_group:
        target = 1 - found[0].alpha
        return {
            f"{title(r.score)} covers {target:g} on average": r.coverage.mean
            + 5 * r.coverage.sd / math.sqrt(r.trials or 1)
            >= target
            for r in found
        }
    # A score that learns calibrates on fewer cases and has a law of its own.
    parts = {}
    for r in found:
        if r.histogram is None:
            continue
        error = law.sd / math.sqrt(r.trials or 1)
        parts[f"{title(r.score)}'s histogram follows the law"] = r.histogram.p_value > SMALLEST_P
        parts[f"{title(r.score)}'s mean is the law's"] = (
            abs(r.coverage.mean - law.mean) <= 5 * error
        )
    return parts


EXPERIMENT = Experiment(coverage_law, ("samples",), "coverage against its exact law")
