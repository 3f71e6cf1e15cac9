"""What the explorer shows, as one file of arrays: pictures, task outputs, calibration set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from taskuq.checks import as_array, as_ids, as_range, require_finite
from taskuq.errors import InputError
from taskuq.files import open_npz, whole_file
from taskuq.interval import FloatArray, TaskRange
from taskuq.words import round_label

SEEN = ("truth", "estimate", "mean", "sd", "samples", "point")


class OneTask(NamedTuple):
    """What is stored of one task; arrays as :class:`Explorer` has them, without a last axis."""

    name: str
    task_range: TaskRange
    outputs: FloatArray
    targets: FloatArray
    point_outputs: FloatArray | None
    calibration_outputs: FloatArray
    calibration_targets: FloatArray


@dataclass(frozen=True, eq=False)
class Explorer:
    """Shown slices and the stored calibration set.

    S slices are shown in T rounds, with J of the p posterior samples as pictures of H x W. Where
    there are several tasks, outputs and targets have a last axis for them. Where images have
    colours, all pictures but the standard deviations have a last axis for red, green and blue.

    Arguments:
        case: An identity for each slice (S,).
        group: Its patient or volume (S,).
        accelerations: Of the rounds (T,), decreasing.
        truth: The true images (S, H, W).
        mean: Posterior means (S, T, H, W).
        sd: Posterior standard deviations (S, T, H, W).
        outputs: Task outputs of the recoveries (S, T, p).
        targets: Task outputs of the truth (S,).
        calibration_outputs: The same of the calibration cases (n, T, p).
        calibration_targets: Their targets (n,).
        estimate: Images of the measurements alone (S, T, H, W): zero-filled, back-projected.
        label: The class of each slice (S,).
        masks: Which lines a round measures (T, line); (S, T, line) where a rule chose them for
            each slice.
        samples: Single posterior samples (S, T, J, H, W).
        point: Another recovery to compare with, e.g. a variational network's (S, T, H, W).
        point_outputs: Its task outputs (S, T).
        calibration_group: The groups of the calibration cases (n,).
        task_range: The range of the task, (2,).
        round_names: What rounds are called (T,).
        task_names: What tasks are called (task,).
        task_ranges: The range of each task (task, 2), infinite where there is none.
    """

    case: np.ndarray
    group: np.ndarray
    accelerations: FloatArray
    truth: FloatArray
    mean: FloatArray
    sd: FloatArray
    outputs: FloatArray
    targets: FloatArray
    calibration_outputs: FloatArray
    calibration_targets: FloatArray
    estimate: FloatArray | None = None
    label: np.ndarray | None = None
    masks: np.ndarray | None = None
    samples: FloatArray | None = None
    point: FloatArray | None = None
    point_outputs: FloatArray | None = None
    calibration_group: np.ndarray | None = None
    task_range: tuple[float, float] | None = None
    round_names: np.ndarray | None = None
    task_names: np.ndarray | None = None
    task_ranges: FloatArray | None = None

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return 1 if self.outputs.ndim == 3 else int(self.outputs.shape[3])

    def of(self, task: int) -> OneTask:
        """Return what is stored of one task."""

        def part(values: FloatArray | None) -> Any:
            return values if values is None or self.outputs.ndim == 3 else values[..., task]

        name = f"task {task + 1}" if self.tasks > 1 else "task"
        own = None if self.task_ranges is None else tuple(map(float, self.task_ranges[task]))
        return OneTask(
            name if self.task_names is None else str(self.task_names[task]),
            self.task_range if own is None or not np.isfinite(own).any() else (own[0], own[1]),
            *map(part, (self.outputs, self.targets, self.point_outputs, self.calibration_outputs,
                        self.calibration_targets)),
        )  # fmt: skip

    @property
    def labels(self) -> list[str]:
        """What each round is called: its name, or its acceleration."""
        names = [None] * self.rounds if self.round_names is None else self.round_names.tolist()
        return [round_label(float(R), n) for R, n in zip(self.accelerations, names, strict=True)]

    @property
    def slices(self) -> int:
        """The number of shown slices."""
        return len(self.truth)

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return len(self.accelerations)


NAMES = tuple(field.name for field in fields(Explorer))
NEEDED = tuple(field.name for field in fields(Explorer) if field.default is MISSING)
IDS = ("case", "group", "label", "calibration_group", "round_names", "task_names")


def save_explorer(path: str | os.PathLike[str], **arrays: Any) -> Path:
    """Check what the explorer is to show, and write it as one ``.npz`` file.

    Arguments:
        path: Where to write; ``explorer.npz`` in a run's folder.
        arrays: The arrays of :class:`Explorer`, by name; tensors are welcome.

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
    kept = {name: v for name, v in vars(check_explorer(arrays)).items() if v is not None}
    target = Path(path)
    with whole_file(target) as partial, partial.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **kept)
    return target


def load_explorer(path: str | os.PathLike[str]) -> Explorer:
    """Return what :func:`save_explorer` wrote, or what somebody wrote with the same names."""
    with open_npz(path, "pictures") as archive:
        return check_explorer({name: archive[name] for name in archive if name in NAMES})


def check_explorer(arrays: Mapping[str, Any]) -> Explorer:
    """Return arrays, by name, as what they show; one that does not fit the others is refused."""
    unknown = sorted(set(arrays) - set(NAMES))
    missing = [name for name in NEEDED if arrays.get(name) is None]
    if unknown or missing:
        what = f"does not know {unknown[0]!r}" if unknown else f"needs {', '.join(missing)}"
        raise InputError(f"the explorer {what}; give the arrays that its description names")
    given = {name: value for name, value in arrays.items() if value is not None}
    x = {n: as_array(given[n], n) for n in given if n not in IDS}
    outputs, calibration = x["outputs"], x["calibration_outputs"]
    if outputs.ndim not in (3, 4) or not _is_pictures(x["truth"]):
        raise InputError(
            "outputs must be (slice, round, sample), with a last axis for several tasks, and truth "
            f"(slice, height, width), with a last axis of 3 for colours, got {outputs.shape} and "
            f"{x['truth'].shape}; bring them to these axes"
        )
    S, T, p, *tasks = outputs.shape
    H, W, *colour = x["truth"].shape[1:]
    n = len(calibration)
    J = x["samples"].shape[2] if "samples" in x and x["samples"].ndim > 2 else 0
    _require_shapes(x, tuple(tasks), tuple(colour), S=S, T=T, p=p, H=H, W=W, n=n, J=J)
    if min(S, T, p, H, W, *tasks) < 1 or n < 2:
        raise InputError(f"the explorer needs slices and calibration cases, got {S} and {n}")
    for name, value in x.items():
        if name in SEEN and not np.isfinite(value).all():
            raise InputError(f"{name} holds values that are no numbers; repair those images first")
        if name not in (*SEEN, "task_range", "task_ranges"):
            require_finite(np.asarray(value, dtype=float), name)
    rates = x["accelerations"].astype(float)
    if (rates <= 1).any() or (np.diff(rates) >= 0).any():
        raise InputError(f"accelerations must decrease and stay above 1, got {rates.tolist()}")
    lengths = {"case": S, "group": S, "label": S, "calibration_group": n, "round_names": T,
               "task_names": tasks[0] if tasks else 1}  # fmt: skip
    ids = {name: as_ids(given[name], name, lengths[name]) for name in IDS if name in given}
    parts: dict[str, Any] = {name: _kept(value, name) for name, value in x.items()}
    parts |= {name: value.astype(str) for name, value in ids.items()}
    parts["task_range"] = as_range(x["task_range"]) if "task_range" in x else None
    return Explorer(**parts)


def _is_pictures(truth: np.ndarray) -> bool:
    return truth.ndim == 3 or (truth.ndim == 4 and truth.shape[-1] == 3)


def _require_shapes(
    x: Mapping[str, np.ndarray], tasks: tuple[int, ...], colour: tuple[int, ...], **n: int
) -> None:
    S, T, H, W = n["S"], n["T"], n["H"], n["W"]
    expected: dict[str, tuple[int, ...]] = {
        "accelerations": (T,), "truth": (S, H, W, *colour), "outputs": (S, T, n["p"], *tasks),
        "targets": (S, *tasks), "calibration_outputs": (n["n"], T, n["p"], *tasks),
        "calibration_targets": (n["n"], *tasks), "point_outputs": (S, T, *tasks),
        "samples": (S, T, n["J"], H, W, *colour), "task_range": (2,),
        "task_ranges": (*(tasks or (1,)), 2),
        **dict.fromkeys(("estimate", "mean", "point"), (S, T, H, W, *colour)), "sd": (S, T, H, W),
    }  # fmt: skip
    if "masks" in x and x["masks"].shape[:-1] not in ((T,), (S, T)):
        raise InputError(
            f"masks must be (round, line) with {T} rounds, or the same for each of {S} slices, got "
            f"{x['masks'].shape}"
        )
    for name, value in x.items():
        if name in expected and value.shape != expected[name]:
            raise InputError(
                f"{name} has shape {value.shape}, but outputs and truth ask for {expected[name]}; "
                "give one entry for each slice, round and sample"
            )


def _kept(value: np.ndarray, name: str) -> np.ndarray:
    """Task outputs stay float32 or float64, as calibration wants; pictures need less."""
    if name == "masks":
        return value.astype(bool)
    if name in ("targets", "calibration_targets", "accelerations", "task_ranges"):
        return value.astype(float)
    if name in SEEN:
        # Pictures are shown in 256 greys; half precision is plenty where it does not overflow.
        fits = np.abs(value).max(initial=0) < float(np.finfo(np.float16).max)
        return value.astype(np.float16 if fits or value.dtype == np.float16 else np.float32)
    return value if value.dtype in (np.float32, np.float64) else value.astype(float)
