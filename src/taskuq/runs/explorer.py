"""What the page's explorer computes with: families of intervals and the calibration set."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from taskuq.calibration.family import AnchoredFamily, family_of
from taskuq.calibration.scores import resolve_score
from taskuq.calibration.tuning import is_steady, target_share, tuned_score, tuning_units
from taskuq.calibration.units import take_units, unit_named
from taskuq.decide.fixed_width import window_law, window_place
from taskuq.decide.goal import Goal
from taskuq.decide.kinds import POLICIES, PolicyPlan, Statistic
from taskuq.errors import InputError
from taskuq.interval import FloatArray, TaskRange
from taskuq.protocols import Score, SteadyScore
from taskuq.report.explorer import Explorer, OneTask

# Below this many calibration cases the learned score takes more than it gives.
FEWEST_FOR_LEARNED = 400
# More sample values than this would make the page too large to open.
MOST_SAMPLES = 3_000_000

# What the explorer knows to compute: stopping rules, and scores with their titles.
RULES: dict[str, dict[str, Any]] = {
    "fixed-width": {"kind": "fixed-width", "statistic": "spread", "name": "Fixed width"},
    "fixed-width-learned": {
        "kind": "fixed-width",
        "statistic": "learned-window",
        "name": "Fixed width, learned risk",
    },
    "adaptive": {"kind": "adaptive", "name": "Adaptive width"},
    "anytime": {"kind": "anytime", "name": "Any time"},
    "paper": {"kind": "paper", "name": "The paper's, round by round"},
}
# The statistics of windows, by what the explorer calls the score behind each.
WINDOWS: dict[str, Statistic] = {"spread": "spread", "learned-window": "learned"}
TITLES = {
    "ar": "AR, absolute residual",
    "lwr": "LWR, residual over spread",
    "cqr": "CQR, sample quantiles",
    "mlwr": "MLWR, steadied spread",
    "learned": "Learned location and scale",
}


def explorer_numbers(
    explorer: Explorer,
    *,
    alpha: float,
    max_widths: Sequence[float],
    unit: str,
    task_ranges: Sequence[TaskRange],
) -> dict[str, Any]:
    """Return what the explorer computes with, as values that JSON can hold.

    A score learns as in :func:`taskuq.calibrate`; cases that it has to set aside are those of the
    run's own error rate, and stay aside when the reader moves the slider.

    Arguments:
        explorer: The stored slices and calibration set.
        alpha: The run's error rate.
        max_widths: The run's width to stop at, of each task.
        unit: The run's unit, 'case' or 'group'.
        task_ranges: The range of each task, if it has one.
    """
    group = explorer.calibration_group
    unit = unit if group is not None else "case"
    tasks: list[dict[str, Any]] = []
    for k, (width, range_) in enumerate(zip(max_widths, task_ranges, strict=True)):
        one = explorer.of(k)
        plans = {
            name: PolicyPlan("fixed-width", alpha, Goal(max_width=width), statistic=statistic)
            for name, statistic in WINDOWS.items()
        }
        tasks.append(
            {
                "name": one.name,
                "range": None if range_ is None else [_word(v) for v in range_],
                "targets": packed(one.calibration_targets.astype("<f8")),
                "scores": _scores(explorer, one, plans, unit, range_),
            }
        )
    # Only what every task knows can be asked of all of them.
    scores = set.intersection(*(set(task["scores"]) for task in tasks))
    policies = {
        key: {**rule, "guaranteed": POLICIES[rule["kind"]].is_guaranteed}
        for key, rule in RULES.items()
        if rule.get("statistic", "spread") in scores
    }
    return {
        "alpha": f"{alpha!r}",
        "tau": ",".join(f"{width!r}" for width in max_widths),
        "unit": unit,
        "units": ["case"] if group is None else ["group", "case"],
        "samples": int(explorer.outputs.shape[2]),
        "accelerations": [float(R) for R in explorer.accelerations],
        "calibration_group": None if group is None else packed(_numbered(group)),
        "tasks": tasks,
        "score_names": {name: title for name, title in TITLES.items() if name in scores},
        "policies": policies,
    }


def packed(array: np.ndarray) -> str:
    """Return an array's bytes, little end first, as base64."""
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")


def learning_cases(
    score: Score, cases: int, alpha: float, group: np.ndarray | None, unit: str
) -> np.ndarray:
    """Return which calibration cases a score of the explorer learns from."""
    whom = unit_named(unit)
    index = whom.index(cases, group)
    take = tuning_units(score, whom, int(index.max()) + 1, alpha, None)
    return take_units(index, take, None)


def tuned_scores(
    score: Score,
    outputs: FloatArray,
    targets: FloatArray,
    aside: np.ndarray,
    task_range: TaskRange,
    group: np.ndarray | None,
) -> list[Score]:
    """Return the score of each round after learning from the cases set aside.

    Arguments:
        score: The score.
        outputs: Outputs of the calibration cases (round, case, sample).
        targets: Their targets.
        aside: Which of them it learns from.
        task_range: The task's range.
        group: Their groups.
    """
    members = None if group is None else group[aside]
    return [
        tuned_score(score, outputs[: k + 1, aside], targets[aside], task_range, members)
        for k in range(len(outputs))
    ]


def _scores(
    explorer: Explorer,
    task: OneTask,
    plans: Mapping[str, PolicyPlan],
    unit: str,
    task_range: TaskRange,
) -> dict[str, Any]:
    alpha = next(iter(plans.values())).alpha
    x, shown = (np.moveaxis(v, 1, 0) for v in (task.calibration_outputs, task.outputs))
    z, group = task.calibration_targets, explorer.calibration_group
    scores: dict[str, Any] = {}
    for name in ("ar", "lwr"):
        scores[name] = _anchored([resolve_score(name, alpha)] * len(x), x, shown, None)
    if x.size * explorer.tasks <= MOST_SAMPLES:
        scores["cqr"] = {"calibration": _ordered(x), "shown": _ordered(shown)}
    bases = {
        "mlwr": resolve_score("mlwr", alpha),
        "spread": plans["spread"].base,
        "learned": resolve_score("learned", alpha),
        "learned-window": plans["learned-window"].base,
    }
    for name, base in bases.items():
        if target_share(base) and x.shape[1] < FEWEST_FOR_LEARNED:
            continue
        if is_steady(base):
            scores[name] = _steady(base, x, shown, group, task_range)
            if name in plans:
                places = [task_range] * len(x)
                scores[name] |= _windows(plans[name], places, explorer.accelerations)
            continue
        aside = learning_cases(base, x.shape[1], alpha, group, unit)
        try:
            tuned = tuned_scores(base, x, z, aside, task_range, group)
        except InputError:
            continue  # too few groups to learn from
        scores[name] = _anchored(tuned, x, shown, np.flatnonzero(~aside))
        if name in plans:
            places = [window_place(score, task_range) for score in tuned]
            laws = [window_law(score, x[: k + 1, aside], z[aside]) for k, score in enumerate(tuned)]
            scores[name] |= _windows(plans[name], places, explorer.accelerations)
            scores[name]["residuals"] = [law and law.quantiles for law in laws]
    return scores


def _steady(
    score: SteadyScore,
    x: FloatArray,
    shown: FloatArray,
    group: np.ndarray | None,
    task_range: TaskRange,
) -> dict[str, Any]:
    """Families of a score that learns from all calibration cases, for each unit of a promise."""
    everyone = np.ones(x.shape[1], dtype=bool)
    reads, seen = [score.read(of_round) for of_round in x], [score.read(r) for r in shown]
    scales: dict[str, dict[str, dict[str, str]]] = {"calibration": {}, "shown": {}}
    for unit in ("case",) if group is None else ("group", "case"):
        index = unit_named(unit).index(x.shape[1], group)
        learnt = [score.learner(read, task_range).learn(everyone, index) for read in reads]
        narrow, wide = (_scales([one[end] for one in learnt], reads) for end in (1, 2))
        scales["calibration"][unit] = {"scale": narrow, "wide": wide}
        scales["shown"][unit] = {"scale": _scales([one.score for one in learnt], seen)}
    return {
        "index": None,
        **{
            which: {
                "center": packed(np.stack([read.mean for read in some]).astype("<f8")),
                "scales": scales[which],
                "links": None,
            }
            for which, some in (("calibration", reads), ("shown", seen))
        },
    }


def _scales(scores: list[SteadyScore], reads: list[Any]) -> str:
    families = [score.grown(read) for score, read in zip(scores, reads, strict=True)]
    return packed(np.stack([f.scale for f in families]).astype("<f8"))  # type: ignore[attr-defined]  # anchored


def _windows(
    plan: PolicyPlan, places: list[TaskRange], accelerations: FloatArray
) -> dict[str, Any]:
    """Where windows are kept, and how much more late rounds tolerate."""
    return {
        "places": [None if place is None else [_word(v) for v in place] for place in places],
        "weights": [float(R**plan.lateness) for R in accelerations],
    }


def _anchored(
    scores: list[Score], x: FloatArray, shown: FloatArray, kept: np.ndarray | None
) -> dict[str, Any]:
    calibration = x if kept is None else x[:, kept]
    return {
        "index": None if kept is None else packed(kept.astype("<i4")),
        "calibration": _centers(scores, calibration),
        "shown": _centers(scores, shown),
    }


def _centers(scores: list[Score], outputs: FloatArray) -> Mapping[str, Any]:
    families = [family_of(score, outputs[: k + 1]) for k, score in enumerate(scores)]
    assert all(isinstance(f, AnchoredFamily) for f in families)
    center = np.stack([f.low for f in families])  # type: ignore[attr-defined]  # checked above
    scale = np.stack([f.scale for f in families])  # type: ignore[attr-defined]  # checked above
    links = [f.link for f in families]  # type: ignore[attr-defined]  # checked above
    is_plain = all(link.is_identity for link in links)
    return {
        "center": packed(center.astype("<f8")),
        "scale": None if (scale == 1).all() else packed(scale.astype("<f8")),
        "links": None
        if is_plain
        else [{"kind": link.kind, "low": link.low, "high": link.high} for link in links],
    }


def _ordered(outputs: FloatArray) -> dict[str, Any]:
    kind = "f4" if outputs.dtype == np.float32 else "f8"
    return {"ordered": {"type": kind, "data": packed(np.sort(outputs, axis=2).astype(f"<{kind}"))}}


def _numbered(group: np.ndarray) -> np.ndarray:
    return np.unique(group, return_inverse=True)[1].astype("<i4")


def _word(value: float) -> float | str:
    """A number as JavaScript reads it; JSON has none for infinity."""
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
