"""Arrays, settings and images for the explorer of a report."""

from __future__ import annotations

import base64
import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from taskuq._arrays import as_array, as_ids, as_task_range, require_finite
from taskuq._io import atomic_write, open_npz
from taskuq.conformal._calibrate import is_self_tuned, tuned_score, tuning_fraction, tuning_units
from taskuq.conformal._family import LinearFamily, interval_family
from taskuq.conformal._units import case_contents, choose_units, make_unit
from taskuq.conformal.scores import resolve_score
from taskuq.errors import InputError
from taskuq.interval import FloatArray, TaskRange
from taskuq.policy._goal import Goal
from taskuq.policy._kinds import POLICIES, PolicySpec, Statistic, window_distribution
from taskuq.policy._rules import window_place
from taskuq.protocols import Score, SelfTunedScore
from taskuq.report.figures import method_colour
from taskuq.table._terminology import Terminology, round_label

_Ids = np.ndarray | None
SEEN = ("truth", "estimate", "mean", "sd", "samples", "point")


class _OneTask(NamedTuple):
    """Range, outputs and targets of one task, without the task axis."""

    name: str
    task_range: TaskRange
    outputs: FloatArray  # (S, T, p)
    targets: FloatArray  # (S,)
    point_outputs: FloatArray | None  # (S, T)
    calibration_outputs: FloatArray  # (n, T, p)
    calibration_targets: FloatArray  # (n,)


@dataclass(frozen=True, eq=False)
class Explorer:
    """Arrays that the explorer of a report needs: displayed slices and calibration set."""

    case: np.ndarray  # (S,)
    group: np.ndarray  # (S,), patient or volume
    accelerations: FloatArray  # (T,), decreasing
    truth: FloatArray  # (S, H, W)
    mean: FloatArray  # (S, T, H, W)
    sd: FloatArray  # (S, T, H, W)
    outputs: FloatArray
    targets: FloatArray
    calibration_outputs: FloatArray
    calibration_targets: FloatArray
    estimate: FloatArray | None = None  # (S, T, H, W): zero-filled, back-projected
    label: np.ndarray | None = None  # (S,), class
    masks: np.ndarray | None = None  # (T, line), or (S, T, line) where a rule chose
    samples: FloatArray | None = None  # (S, T, J, H, W)
    point: FloatArray | None = None  # (S, T, H, W), a second recovery
    point_outputs: FloatArray | None = None
    calibration_group: np.ndarray | None = None  # (n,)
    calibration_label: np.ndarray | None = None  # (n,), class
    task_range: tuple[float, float] | None = None
    round_names: np.ndarray | None = None  # (T,)
    task_names: np.ndarray | None = None  # (task,)
    task_ranges: FloatArray | None = None  # (task, 2), infinite if unbounded

    @property
    def tasks(self) -> int:
        return 1 if self.outputs.ndim == 3 else int(self.outputs.shape[3])

    def for_task(self, task: int) -> _OneTask:
        def part(values: FloatArray | None) -> Any:
            return values if values is None or self.outputs.ndim == 3 else values[..., task]

        name = f"task {task + 1}" if self.tasks > 1 else "task"
        own = None if self.task_ranges is None else tuple(map(float, self.task_ranges[task]))
        return _OneTask(
            name if self.task_names is None else str(self.task_names[task]),
            self.task_range if own is None or not np.isfinite(own).any() else (own[0], own[1]),
            *map(part, (self.outputs, self.targets, self.point_outputs, self.calibration_outputs,
                        self.calibration_targets)),
        )  # fmt: skip

    @property
    def labels(self) -> list[str]:
        names = [None] * self.rounds if self.round_names is None else self.round_names.tolist()
        return [round_label(float(R), n) for R, n in zip(self.accelerations, names, strict=True)]

    @property
    def slices(self) -> int:
        return len(self.truth)

    @property
    def rounds(self) -> int:
        return len(self.accelerations)


NAMES = tuple(field.name for field in fields(Explorer))
NEEDED = tuple(field.name for field in fields(Explorer) if field.default is MISSING)
IDS = ("case", "group", "label", "calibration_group", "calibration_label", "round_names",
       "task_names")  # fmt: skip


def save_explorer(path: str | os.PathLike[str], **arrays: Any) -> Path:
    """Validate the arrays of an explorer and write them as an ``.npz`` file.

    There are S slices, T rounds, p posterior samples and n calibration cases; images have H rows
    and W columns. Required arrays are ``case`` and ``group`` (S,), ``accelerations`` (T,),
    ``truth`` (S, H, W), ``mean`` and ``sd`` (S, T, H, W), ``outputs`` (S, T, p), ``targets`` (S,),
    ``calibration_outputs`` (n, T, p) and ``calibration_targets`` (n,). All other arrays of
    :class:`Explorer` are optional.

    Args:
        path: Output file, ``explorer.npz`` in a run's folder.
        arrays: Arrays or tensors by name.

    Example:
        >>> import tempfile
        >>> picture, outputs = np.zeros((1, 2, 8, 8)), rng.random((1, 2, 4))
        >>> path = save_explorer(
        ...     tempfile.mkdtemp() + "/explorer.npz", case=["slice 3"], group=["patient 1"],
        ...     accelerations=[8, 4], truth=picture[:, 0], estimate=picture, mean=picture,
        ...     sd=picture, outputs=outputs, targets=[0.4],
        ...     calibration_outputs=rng.random((20, 2, 4)), calibration_targets=rng.random(20))
        >>> load_explorer(path).slices
        1
    """
    kept = {name: v for name, v in vars(_check_explorer(arrays)).items() if v is not None}
    target = Path(path)
    with atomic_write(target) as partial, partial.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **kept)
    return target


def load_explorer(path: str | os.PathLike[str]) -> Explorer:
    with open_npz(path, "pictures") as archive:
        return _check_explorer({name: archive[name] for name in archive if name in NAMES})


def _check_explorer(arrays: Mapping[str, Any]) -> Explorer:
    """Check that the arrays fit together, and return them as an explorer."""
    unknown = sorted(set(arrays) - set(NAMES))
    missing = [name for name in NEEDED if arrays.get(name) is None]
    if unknown or missing:
        what = f"has no array {unknown[0]!r}" if unknown else f"needs {', '.join(missing)}"
        text = f"the explorer {what}; pass the arrays that save_explorer lists"
        raise InputError(text, code="option.missing")
    given = {name: value for name, value in arrays.items() if value is not None}
    x = {n: as_array(given[n], n) for n in given if n not in IDS}
    outputs, truth, n = x["outputs"], x["truth"], len(x["calibration_outputs"])
    if outputs.ndim not in (3, 4) or truth.ndim not in (3, 4) or truth.shape[3:] not in ((), (3,)):
        text = f"outputs {outputs.shape} must be (slice, round, sample[, task]) and truth "
        text += f"{truth.shape} (slice, height, width), with a last axis of 3 for colours"
        raise InputError(text, code="shape.axes")
    S, T, p, *tasks = outputs.shape
    pixels = truth.shape[1:]
    picture = (S, T, *pixels)
    samples = x["samples"].shape[2:3] if "samples" in x else ()
    masks = x["masks"].shape if "masks" in x else ()
    expected: dict[str, tuple[int, ...]] = {
        "accelerations": (T,), "truth": (S, *pixels), "outputs": (S, T, p, *tasks),
        "targets": (S, *tasks), "calibration_outputs": (n, T, p, *tasks),
        "calibration_targets": (n, *tasks), "point_outputs": (S, T, *tasks),
        "samples": (S, T, *samples, *pixels), "task_range": (2,),
        "task_ranges": (*(tasks or (1,)), 2), "estimate": picture, "mean": picture,
        "point": picture, "sd": picture[:4], "masks": ((T,) if len(masks) < 3 else (S, T))
        + masks[-1:],
    }  # fmt: skip
    for name, value in x.items():
        if value.shape != expected[name]:
            text = f"{name} has shape {value.shape}, but outputs and truth require {expected[name]}"
            raise InputError(text, code="shape.mismatch")
    if min(outputs.shape + pixels) < 1 or n < 2:
        text = f"the explorer needs slices and calibration cases, got {S} and {n}"
        raise InputError(text, code="units.few")
    for name, value in x.items():
        if name in SEEN and not np.isfinite(value).all():
            raise InputError(f"{name} holds values that are not finite", code="value.nonfinite")
        if name not in (*SEEN, "task_range", "task_ranges"):
            require_finite(np.asarray(value, dtype=float), name)
    rates = x["accelerations"].astype(float)
    if (rates <= 1).any() or (np.diff(rates) >= 0).any():
        text = f"accelerations must decrease and stay above 1, got {rates.tolist()}"
        raise InputError(text, code="rounds.invalid")
    lengths = {"case": S, "group": S, "label": S, "calibration_group": n, "calibration_label": n,
               "round_names": T, "task_names": tasks[0] if tasks else 1}  # fmt: skip
    ids = {name: as_ids(given[name], name, lengths[name]) for name in IDS if name in given}
    parts: dict[str, Any] = {name: _kept(value, name) for name, value in x.items()}
    parts |= {name: value.astype(str) for name, value in ids.items()}
    parts["task_range"] = as_task_range(x["task_range"]) if "task_range" in x else None
    return Explorer(**parts)


def _kept(value: np.ndarray, name: str) -> np.ndarray:
    """Convert an array to its storage type; images to half precision unless they overflow."""
    if name == "masks":
        return value.astype(bool)
    if name in ("targets", "calibration_targets", "accelerations", "task_ranges"):
        return value.astype(float)
    if name in SEEN:
        # Pictures are shown in 256 greys; half precision is plenty where it does not overflow.
        fits = np.abs(value).max(initial=0) < float(np.finfo(np.float16).max)
        return value.astype(np.float16 if fits or value.dtype == np.float16 else np.float32)
    return value if value.dtype in (np.float32, np.float64) else value.astype(float)


# Below this many calibration cases the learned score widens intervals.
FEWEST_FOR_LEARNED = 400
# More sample values than this would make the report too large to open.
MOST_SAMPLES = 3_000_000

# Stopping rules of the explorer, and titles of its scores.
RULES: dict[str, dict[str, Any]] = {
    "fixed-width": {"kind": "fixed-width", "statistic": "spread", "name": "Fixed width",
                    "colour": method_colour("fixed-width spread")},
    "fixed-width-learned": {"kind": "fixed-width", "statistic": "learned-window",
                            "name": "Fixed width, learned risk",
                            "colour": method_colour("fixed-width learned")},
    "adaptive": {"kind": "adaptive", "name": "Adaptive width", "colour": method_colour("adaptive")},
    "anytime": {"kind": "anytime", "name": "Any time", "colour": method_colour("anytime")},
    # In the colour of its score.
    "paper": {"kind": "paper", "name": "The paper's, round by round"},
}  # fmt: skip
# The statistics of windows, by the explorer's name of their score.
WINDOWS: dict[str, Statistic] = {"spread": "spread", "learned-window": "learned"}
TITLES = {
    "ar": "AR, absolute residual",
    "lwr": "LWR, residual over spread",
    "cqr": "CQR, sample quantiles",
    "mlwr": "MLWR, regularised spread",
    "learned": "Learned location and scale",
}


def explorer_numbers(
    explorer: Explorer,
    *,
    alpha: float,
    widths: Sequence[float],
    unit: str,
    ranges: Sequence[TaskRange],
    within: str = "all",
) -> dict[str, Any]:
    """Return settings, calibration set and interval parameters of the explorer as JSON values."""
    group = explorer.calibration_group
    unit = unit if group is not None else "case"
    tasks: list[dict[str, Any]] = []
    for k, (width, range_) in enumerate(zip(widths, ranges, strict=True)):
        one = explorer.for_task(k)
        plans = {
            name: PolicySpec("fixed-width", alpha, Goal(max_width=width), statistic=statistic)
            for name, statistic in WINDOWS.items()
        }
        tasks.append({
            "name": one.name,
            "range": None if range_ is None else [_word(v) for v in range_],
            "targets": _packed(one.calibration_targets.astype("<f8")),
            "scores": _scores(explorer, one, plans, unit, range_),
        })  # fmt: skip
    # Scores that every task has.
    scores = set.intersection(*(set(task["scores"]) for task in tasks))
    numbers, classes = (
        np.unique([] if of is None else of, return_inverse=True)[1]
        for of in (group, explorer.calibration_label)
    )
    has_classes = classes.max(initial=0) > 0
    policies = {
        key: {**rule, "guaranteed": POLICIES[rule["kind"]].is_guaranteed}
        for key, rule in RULES.items()
        if rule.get("statistic", "spread") in scores
    }
    return {
        "alpha": f"{alpha!r}",
        "tau": ",".join(f"{width!r}" for width in widths),
        "unit": unit,
        "units": ["case"] if group is None else ["group", "case"],
        "within": within if has_classes else "all",
        "samples": int(explorer.outputs.shape[2]),
        "accelerations": [float(R) for R in explorer.accelerations],
        "calibration_group": None if group is None else _packed(numbers.astype("<i4")),
        "calibration_label": _packed(classes.astype("<i4")) if has_classes else None,
        "tasks": tasks,
        "score_names": {name: title for name, title in TITLES.items() if name in scores},
        "score_colours": {name: method_colour(name) for name in TITLES},
        "policies": policies,
    }


def _packed(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")


def _learning_cases(score: Score, explorer: Explorer, alpha: float, unit: str) -> np.ndarray:
    """Return a mask of the calibration cases to which a score is fitted, the same for each task."""
    whom, targets = make_unit(unit), explorer.calibration_targets
    index = whom.index(len(targets), explorer.calibration_group)
    take = tuning_units(score, whom, int(index.max()) + 1, alpha, None)
    contents = case_contents(explorer.calibration_outputs[:, :, :2], targets)
    return choose_units(index, take, None, contents)


def _tuned_scores(
    score: Score, x: FloatArray, z: FloatArray, aside: np.ndarray, range_: TaskRange, group: _Ids
) -> list[Score]:
    """Return one score per round, fitted to the cases of the mask ``aside``."""
    members = None if group is None else group[aside]
    return [tuned_score(score, x[: k + 1, aside], z[aside], range_, members) for k in range(len(x))]


def _scores(
    explorer: Explorer,
    task: _OneTask,
    plans: Mapping[str, PolicySpec],
    unit: str,
    range_: TaskRange,
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
        "spread": plans["spread"].base_score,
        "learned": resolve_score("learned", alpha),
        "learned-window": plans["learned-window"].base_score,
    }
    for name, base in bases.items():
        if tuning_fraction(base) and x.shape[1] < FEWEST_FOR_LEARNED:
            continue
        if is_self_tuned(base):
            scores[name] = _steady(base, x, z, shown, explorer, range_)
            if name in plans:
                scores[name] |= _windows(plans[name], [range_] * len(x), explorer)
            continue
        aside = _learning_cases(base, explorer, alpha, unit)
        try:
            tuned = _tuned_scores(base, x, z, aside, range_, group)
        except InputError:
            continue  # too few groups to learn from
        scores[name] = _anchored(tuned, x, shown, np.flatnonzero(~aside))
        if name in plans:
            places = [window_place(score, range_) for score in tuned]
            laws = [
                window_distribution(score, x[: k + 1, aside], z[aside])
                for k, score in enumerate(tuned)
            ]
            scores[name] |= _windows(plans[name], places, explorer)
            scores[name]["residuals"] = [law and law.quantiles for law in laws]
    return scores


def _steady(
    score: SelfTunedScore,
    x: FloatArray,
    z: FloatArray,
    shown: FloatArray,
    explorer: Explorer,
    range_: TaskRange,
) -> dict[str, Any]:
    """Return interval parameters of a self-tuned score by unit (case or group) and by class."""
    group, label = explorer.calibration_group, explorer.calibration_label
    everyone = np.ones(x.shape[1], dtype=bool)
    reads, seen = [score.summarise(of_round) for of_round in x], [score.summarise(r) for r in shown]
    families: dict[str, Any] = {
        which: {"mean": _pack([read.mean for read in some]), "units": {}, "links": None}
        for which, some in (("calibration", reads), ("shown", seen))
    }
    for unit in ("case",) if group is None else ("group", "case"):
        index = make_unit(unit).index(x.shape[1], group)
        for within in ("all",) if label is None else ("all", "class"):
            fits = [score.leave_one_out(read, z, range_) for read in reads]
            if within == "class":
                fits = [fit.for_classes(label) for fit in fits]
            learnt = [fit.fit(everyone, index) for fit in fits]
            # All rounds have the same number of corners: it follows from the number of units.
            corners = zip(*(one.corners for one in learnt), strict=True)
            key = f"{unit} {within}"
            families["calibration"]["units"][key] = _corners(corners, reads)
            families["shown"]["units"][key] = _corners([[one.score for one in learnt]], seen)
    return {"index": None, **families}


def _corners(corners: Iterable[Sequence[Any]], reads: list[Any]) -> dict[str, Any]:
    scales: list[str] = []
    shifts = []
    for scores in corners:
        families = [score.summary_family(read) for score, read in zip(scores, reads, strict=True)]
        scale = _pack([family.scale for family in families])
        scales += [] if scale in scales else [scale]
        each = [np.broadcast_to(score.shift, reads[0].mean.shape) for score in scores]
        values, index = np.unique(np.stack(each), return_inverse=True)
        places = _packed(index.astype("u1" if len(values) <= 256 else "<u2"))
        packed = {"values": _packed(values.astype("<f8")), "index": places}
        shifts.append({"scale": scales.index(scale), **packed})
    return {"scales": scales, "corners": shifts}


def _pack(rounds: list[FloatArray]) -> str:
    return _packed(np.stack(rounds).astype("<f8"))


def _windows(plan: PolicySpec, places: list[TaskRange], explorer: Explorer) -> dict[str, Any]:
    """Return the range of fixed-width intervals and the weight R**round_tolerance of each round."""
    return {
        "places": [None if place is None else [_word(v) for v in place] for place in places],
        "weights": [float(R**plan.round_tolerance) for R in explorer.accelerations],
    }


def _anchored(
    scores: list[Score], x: FloatArray, shown: FloatArray, kept: np.ndarray | None
) -> dict[str, Any]:
    return {
        "index": None if kept is None else _packed(kept.astype("<i4")),
        "calibration": _centers(scores, x if kept is None else x[:, kept]),
        "shown": _centers(scores, shown),
    }


def _centers(scores: list[Score], outputs: FloatArray) -> Mapping[str, Any]:
    families = [interval_family(score, outputs[: k + 1]) for k, score in enumerate(scores)]
    assert all(isinstance(f, LinearFamily) for f in families)
    center = np.stack([f.low for f in families])  # type: ignore[attr-defined]  # checked above
    scale = np.stack([f.scale for f in families])  # type: ignore[attr-defined]  # checked above
    links = [f.link for f in families]  # type: ignore[attr-defined]  # checked above
    named = [{"kind": link.kind, "low": link.low, "high": link.high} for link in links]
    return {
        "center": _packed(center.astype("<f8")),
        "scale": None if (scale == 1).all() else _packed(scale.astype("<f8")),
        "links": None if all(link.is_identity for link in links) else named,
    }


def _ordered(outputs: FloatArray) -> dict[str, Any]:
    kind = "f4" if outputs.dtype == np.float32 else "f8"
    return {"ordered": {"type": kind, "data": _packed(np.sort(outputs, axis=2).astype(f"<{kind}"))}}


def _word(value: float) -> float | str:
    """Return a number, or infinity as a text that JavaScript converts to a number."""
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


# The first of these (quality, shrinking) at which all pictures fit into the budget is taken.
STEPS = ((84, 1), (72, 1), (60, 1), (48, 1), (80, 2), (64, 2), (48, 2), (64, 4))
BUDGET = 12_000_000
# JPEG works on blocks of 8 x 8; tiles that start on a block do not bleed into each other.
BLOCK = 8
# Pictures of at most so many pixels a side are kept exactly, and shown pixel by pixel.
SMALL = 64


@dataclass(frozen=True)
class _Pictures:
    """Compressed images of the displayed slices, as data URLs."""

    tiles: list[str]
    height: int
    width: int
    shrink: int
    truth: list[str]
    rounds: list[list[str]]
    doubt: list[float]


def explorer_payload(
    explorer: Explorer, numbers: Mapping[str, Any], words: Terminology
) -> dict[str, Any]:
    """Return all data of the explorer as JSON values."""
    made = _slice_pictures(explorer)
    tasks = [explorer.for_task(task) for task in range(explorer.tasks)]
    return {
        **numbers,
        "words": words.to_dict()
        | {f"{name}s": words.many(name) for name in ("case", "group", "measurement")},
        "round_names": explorer.labels,
        "lines": _lines(explorer.masks),
        "tiles": made.tiles,
        "size": [made.height, made.width],
        "shrink": made.shrink,
        "is_small": max(made.height, made.width) <= SMALL,
        "slices": [
            {
                "case": str(explorer.case[s]),
                "group": str(explorer.group[s]),
                "label": None if explorer.label is None else str(explorer.label[s]),
                "targets": [float(task.targets[s]) for task in tasks],
                "outputs": [task.outputs[s].astype(float).tolist() for task in tasks],
                "point": None
                if explorer.point_outputs is None
                else [np.asarray(task.point_outputs)[s].astype(float).tolist() for task in tasks],
                "doubt": made.doubt[s],
                "truth": made.truth[s],
                "rounds": made.rounds[s],
                "lines": _lines(explorer.masks, s),
            }
            for s in range(explorer.slices)
        ],
    }


def _slice_pictures(explorer: Explorer, budget: int = BUDGET) -> _Pictures:
    """Compress the images to the size budget: reduce quality first, then resolution."""
    S, H, W = explorer.truth.shape[:3]
    J = 0 if explorer.samples is None else explorer.samples.shape[2]
    tiles = ["estimate"] if explorer.estimate is not None else []
    tiles += ["mean", "sd", "error"]
    tiles += ["point"] if explorer.point is not None else []
    tiles += [f"sample-{j + 1}" for j in range(J)]
    for quality, shrink in STEPS:
        encoded = [_encoded_slice(explorer, s, quality, shrink) for s in range(S)]
        if sum(len(truth) + sum(map(len, sheets)) for truth, sheets in encoded) <= budget:
            break
    height, width = -(-H // shrink), -(-W // shrink)
    pictures = [t for t, _ in encoded], [r for _, r in encoded]
    doubt = [_doubt(explorer, s) for s in range(S)]
    return _Pictures(tiles, height, width, shrink, *pictures, doubt)


def _lines(masks: np.ndarray | None, s: int | None = None) -> dict[str, Any] | None:
    """Return the lines that each round adds, for all slices or for slice s, or None."""
    if masks is None or (masks.ndim == 3) != (s is not None):
        return None
    masks = masks if s is None else masks[s]
    before = np.vstack([np.zeros_like(masks[:1]), np.logical_or.accumulate(masks)[:-1]])
    new = [np.flatnonzero(row).tolist() for row in masks & ~before]
    return {"all": masks.shape[1], "new": new}


def _doubt(explorer: Explorer, s: int) -> float:
    """Return the upper end of the scale on which a slice's spread and error are shown."""
    both = np.concatenate([explorer.sd[s].astype(np.float32), _error(explorer, s)])
    return float(np.quantile(both, 0.999)) or 1.0


def _error(explorer: Explorer, s: int) -> FloatArray:
    """Return the absolute error of a slice's posterior means, (round, height, width)."""
    true = explorer.truth[s].astype(np.float32)
    error = np.abs(explorer.mean[s].astype(np.float32) - true)
    return np.asarray(error.mean(-1) if true.ndim == 3 else error)


def thumbnail(image: FloatArray, low: float, top: float, side: int = 96, quality: int = 70) -> str:
    return _encoded([_grey(image, top, max(1, min(image.shape[:2]) // side), low)], quality)


def _encoded_slice(explorer: Explorer, s: int, quality: int, shrink: int) -> tuple[str, list[str]]:
    true = explorer.truth[s].astype(np.float32)
    low, top = brightness(true)
    error, doubt = _error(explorer, s), _doubt(explorer, s)
    sheets = []
    for k in range(explorer.rounds):
        images = [] if explorer.estimate is None else [explorer.estimate[s, k]]
        row = [_grey(image, top, shrink, low) for image in (*images, explorer.mean[s, k])]
        row += [_grey(explorer.sd[s, k], doubt, shrink), _grey(error[k], doubt, shrink)]
        images = [] if explorer.point is None else [explorer.point[s, k]]
        images += [] if explorer.samples is None else list(explorer.samples[s, k])
        row += [_grey(image, top, shrink, low) for image in images]
        sheets.append(_encoded(row, quality))
    return _encoded([_grey(true, top, shrink, low)], quality), sheets


def brightness(image: FloatArray) -> tuple[float, float]:
    """Return the values displayed as black and as white."""
    low, top = min(0.0, float(image.min())), float(image.max())
    return low, top if top > low else low + 1.0


def _grey(image: FloatArray, top: float, shrink: int, low: float = 0.0) -> np.ndarray:
    """Quantise an image to 256 levels and downsample it."""
    scaled = (np.asarray(image, dtype=np.float32) - low) * (255 / (top - low))
    if shrink > 1:
        H, W = scaled.shape[:2]
        rest = ((0, -H % shrink), (0, -W % shrink), *((0, 0),) * (scaled.ndim - 2))
        scaled = np.pad(scaled, rest, mode="edge")
        parts = [scaled[i::shrink, j::shrink] for i in range(shrink) for j in range(shrink)]
        scaled = sum(parts[1:], parts[0]) / shrink**2
    return np.asarray(np.clip(np.rint(scaled), 0, 255).astype(np.uint8))


def _encoded(tiles: list[np.ndarray], quality: int) -> str:
    from PIL import Image

    H, W = tiles[0].shape[:2]
    if any(tile.ndim == 3 for tile in tiles):
        # Tiles without colour stay grey.
        tiles = [tile if tile.ndim == 3 else np.stack([tile] * 3, axis=-1) for tile in tiles]
    # A single picture keeps its edge.
    block = BLOCK if len(tiles) > 1 else 1
    pad = ((0, -H % block), (0, -W % block), *((0, 0),) * (tiles[0].ndim - 2))
    sheet = Image.fromarray(np.concatenate([np.pad(t, pad, mode="edge") for t in tiles], axis=1))
    file, kind = io.BytesIO(), "png" if max(H, W) <= SMALL else "jpeg"
    # Colours at full resolution: at half of it tiles would bleed into each other.
    how = {} if kind == "png" else {"quality": quality, "subsampling": 0}
    sheet.save(file, kind, optimize=True, **how)
    return f"data:image/{kind};base64," + base64.b64encode(file.getvalue()).decode("ascii")
