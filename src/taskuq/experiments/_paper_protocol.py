"""Multi-round protocol of the paper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from taskuq.conformal._family import clipped, interval_family
from taskuq.conformal._quantiles import conformal_quantile
from taskuq.conformal._splits import center_distance
from taskuq.conformal.scores import resolve_score
from taskuq.experiments import _claims as claims
from taskuq.experiments._claims import ClaimInputs, ClaimSettings, Experiment
from taskuq.interval import BoolArray, FloatArray
from taskuq.protocols import IntervalFamily
from taskuq.report._records import SUPPORTED, experiment_record
from taskuq.report.figures import Figure
from taskuq.report.figures._policy import accepted
from taskuq.table._table import TaskOutputs

CLAIM = (
    "With a few whole volumes to test on and all slices of the others to calibrate, LWR and CQR "
    "reach a higher average acceleration than AR, coverage stays close to 1 - alpha, and the "
    "average maximum centre error of LWR is below that of AR."
)


@dataclass(frozen=True)
class _ProtocolDraw:
    acceleration: float
    coverage: float
    center_error: float
    stopped: FloatArray


def _paper_protocol(inputs: ClaimInputs, settings: ClaimSettings) -> dict[str, Any]:
    alpha, max_width = settings.goals[0]
    table = inputs.table
    groups = np.unique(np.asarray(table.group))
    count = min(settings.test_groups, len(groups) // 3)
    tests = list(_draws(table, count, settings))
    found = {}
    for name in settings.scores:
        source = claims.table_for_score(inputs, name)
        families = _families(source, name, alpha)
        found[name] = [_scan(source, families, is_test, alpha, max_width) for is_test in tests]
    outcome = _found(found, alpha)
    return experiment_record(
        "paper-protocol",
        "The paper's multi-round protocol",
        CLAIM,
        str(outcome.pop("finding")),
        settings.used("goals", "scores", "test_groups", "seed")
        | {"draws": settings.draws, "alpha": alpha, "max_width": max_width,
           "table": repr(table), "point": repr(inputs.point)},
        [_accepted(found, table, alpha, max_width)],
        [_table(found, alpha, max_width, count, inputs)],
        **outcome,
    )  # fmt: skip


def _draws(table: TaskOutputs, count: int, settings: ClaimSettings) -> Iterator[BoolArray]:
    group = np.asarray(table.group)
    groups = np.unique(group)
    rng = np.random.default_rng(settings.seed)
    positive = np.zeros(len(groups), dtype=bool)
    if table.label is not None and len(np.unique(table.label)) == 2:
        ill = group[table.label == np.unique(table.label)[1]]
        positive = np.isin(groups, ill)
    for _ in range(settings.draws):
        half = min(count // 2, int(positive.sum()), count)
        rest = count - half
        if half and (~positive).sum() >= rest:
            parts = (groups[positive], half), (groups[~positive], rest)
            chosen = np.concatenate([rng.choice(of, k, replace=False) for of, k in parts])
        else:
            chosen = rng.choice(groups, count, replace=False)
        yield np.isin(group, chosen)


def _families(
    table: TaskOutputs, name: str, alpha: float
) -> list[tuple[IntervalFamily, FloatArray]]:
    """Return the nested intervals of all cases in each round, and the scores of the targets."""
    score = resolve_score(name, alpha)
    families = [interval_family(score, np.asarray(outputs)) for outputs in table.outputs]
    return [(family, family.score(table.targets_at(k))) for k, family in enumerate(families)]


def _scan(
    table: TaskOutputs,
    families: list[tuple[IntervalFamily, FloatArray]],
    is_test: BoolArray,
    alpha: float,
    max_width: float,
) -> _ProtocolDraw:
    test = np.flatnonzero(is_test)
    group = np.unique(np.asarray(table.group)[test], return_inverse=True)[1]
    scanning = np.ones(len(test), dtype=bool)
    covered = np.ones(len(test), dtype=bool)
    cost, worst = np.ones(len(test)), np.full(len(test), -np.inf)
    stopped = np.zeros(table.rounds + 1)
    for k, (family, scores) in enumerate(families):
        quantile = conformal_quantile(scores[~is_test], alpha)
        interval = clipped(family.select(test).interval(quantile), table.task_range)
        # A crossed interval is empty.
        stops = scanning & (interval.width < max_width) & ~interval.is_empty
        targets = table.targets_at(k)[test]
        covered[stops] = interval.contains(targets)[stops]
        worst[stops] = center_distance(interval, targets, table.task_range)[stops]
        cost[stops] = 1 / table.accelerations[k]
        stopped[k] = stops.mean()
        scanning &= ~stops
    stopped[-1] = scanning.mean()
    sizes = np.bincount(group)
    largest = np.full(len(sizes), -np.inf)
    np.maximum.at(largest, group, worst)
    early = np.isfinite(largest)
    return _ProtocolDraw(
        acceleration=float(1 / cost.mean()),
        coverage=float((np.bincount(group, covered) / sizes).mean()),
        center_error=float(largest[early].mean()) if early.any() else float("nan"),
        stopped=stopped,
    )


Draws = dict[str, list[_ProtocolDraw]]


def _summary(draws: list[_ProtocolDraw], name: str) -> tuple[float, float]:
    values = np.array([getattr(one, name) for one in draws])
    known = values[~np.isnan(values)]
    return (float(known.mean()), float(known.std())) if known.size else (np.nan, np.nan)


def _table(
    found: Draws, alpha: float, width: float, count: int, inputs: ClaimInputs
) -> dict[str, Any]:
    draws, groups = len(next(iter(found.values()))), len(np.unique(np.asarray(inputs.table.group)))
    return {
        "name": "protocol",
        "caption": f"Error rate {alpha:g}, stop below width {width:g}: {groups - count} groups to "
        f"calibrate, {count} to test, mean over {draws} draws; sd is that of a single draw such as "
        f"the paper's. AR uses {claims.point_source(inputs)}. No guarantee.",
        "columns": [
            "score", "average R", "sd R", "coverage", "sd coverage", "max centre error",
            "sd max centre error",
        ],
        "rows": [
            [name, *(v for what in ("acceleration", "coverage", "center_error")
                     for v in _summary(drawn, what))]
            for name, drawn in found.items()
        ],
    }  # fmt: skip


def _accepted(found: Draws, table: TaskOutputs, alpha: float, width: float) -> Figure:
    rates = (*table.accelerations, 1.0)
    stops = {
        name: [
            {"acceleration": R, "fraction": float(v)}
            for R, v in zip(rates, np.mean([one.stopped for one in drawn], axis=0), strict=True)
        ]
        for name, drawn in found.items()
    }
    return replace(
        accepted(stops),
        name="accepted",
        caption=f"Fraction of slices accepted after each acceleration, error rate {alpha:g}, width "
        f"below {width:g}; R = 1 is a full scan.",
    )


def _found(found: Draws, alpha: float) -> dict[str, str | None]:
    mean = {
        what: {name: _summary(drawn, what) for name, drawn in found.items()}
        for what in ("acceleration", "coverage", "center_error")
    }
    if all(drawn.acceleration == 1 for of in found.values() for drawn in of):
        never = (
            f"no interval is ever narrow enough at an error rate of {alpha:g}, or there are too "
            "few cases to calibrate it, so every scan is measured in full"
        )
        return {
            "verdict": claims.verdict([]),
            "finding": claims.finding(claims.verdict([]), None, never),
        }
    # Close: within two standard deviations of a single draw, as the paper's single draw could be.
    coverage = mean["coverage"].values()
    close = f"coverage stays close to {1 - alpha:g}"
    parts = {close: all(abs(m - (1 - alpha)) <= 2 * s for m, s in coverage)}
    R, error = mean["acceleration"], mean["center_error"]
    for name in found:
        if name != "ar" and "ar" in found:
            parts[f"{claims.title(name)} is faster than AR"] = R[name][0] > R["ar"][0]
    if {"ar", "lwr"} <= {name for name in found if not np.isnan(error[name][0])}:
        parts["LWR's maximum centre error is below AR's"] = error["lwr"][0] < error["ar"][0]
    side = "above" if all(m > 1 - alpha for m, _ in coverage) else "not close to"
    measured = (
        f"coverage was {claims.format_range((m for m, _ in coverage), 3)}, {side} {1 - alpha:g}"
    )
    wrong = claims.listing(
        measured if part == close else f"that {part}" for part, right in parts.items() if not right
    )
    outcome = claims.verdict(parts.values())
    each = claims.listing(f"{R[n][0]:.2f} with {claims.title(n)}" for n in found)
    return {
        "verdict": outcome,
        "criterion": "Coverage is within two standard deviations of 1 − α, LWR and CQR are faster "
        "than AR, and LWR has a smaller maximum centre error.",
        "finding": claims.finding(
            outcome, f"the average acceleration is {each}",
            "" if outcome == SUPPORTED else f"not confirmed: {wrong}",
        ),
        "number": "R̄ " + ", ".join(f"{claims.title(n)} {R[n][0]:.2f}" for n in found),
    }  # fmt: skip


EXPERIMENT = Experiment(
    _paper_protocol,
    ("samples", "rounds", "several samples", "groups"),
    "the paper's multi-round protocol",
)
