"""Pictures of a few cases: what the explorer shows beside a run's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from taskuq.checks import as_array, no_gradients
from taskuq.errors import InputError, whole_sentence
from taskuq.files import open_npz, whole_file
from taskuq.interval import FloatArray
from taskuq.outputs.shards import PICTURES
from taskuq.pipeline.cases import Cases
from taskuq.pipeline.chain import Chain, Recovered, true_image
from taskuq.pipeline.log import RunLog
from taskuq.protocols import PicturedMeasurement

# So many cases are looked at for each that is shown.
CANDIDATES = 4
# Posterior samples that are kept as pictures.
SAMPLES = 8


def choose_cases(chain: Chain, cases: Cases, count: int) -> list[int]:
    """Choose cases to show before anything is recovered, spread over the task's targets.

    Some cases are taken at even steps, their true images are read, and of these the ones at even
    steps of the (first) target are chosen: nothing is known of any recovery.

    Arguments:
        chain: Measurement, recovery and task.
        cases: All cases.
        count: How many to choose.
    """
    n = len(cases)
    some = np.unique(np.linspace(0, n - 1, min(n, CANDIDATES * count)).astype(int)).tolist()
    read: list[tuple[float, int]] = []
    shape = None
    for index in some:
        try:
            image = true_image(chain.place(cases.image(index)))
            target = chain.target(image)
        except Exception:  # a case that cannot be read is none to show
            continue
        shape = tuple(image.shape) if shape is None else shape
        if tuple(image.shape) == shape and np.isfinite(target).all():
            read.append((float(target[0]), index))
    read.sort()
    steps = np.unique(np.linspace(0, len(read) - 1, min(count, len(read))).astype(int))
    return sorted(read[k][1] for k in steps)


def keep_pictures(folder: Path, chain: Chain, cases: Cases, chosen: Sequence[int]) -> Path:
    """Recover the chosen cases with the run's own seeds, and keep what can be seen of them.

    Arguments:
        folder: The folder of the table.
        chain: Measurement, recovery and task.
        cases: All cases.
        chosen: The numbers of the cases to show.
    """
    path, names = folder / PICTURES, [cases.case[index] for index in chosen]
    if path.exists() and names == _kept(path):
        return path
    one, log = replace(chain, size=1), RunLog(folder)
    kept: list[dict[str, Any]] = []
    reason: Exception | None = None
    with no_gradients():
        for index, name in zip(chosen, names, strict=True):
            try:
                kept.append(_of_case(one, cases, index))
            except Exception as error:
                reason = error
                log.write("no picture", case=name, error=whole_sentence(error, 500))
    if reason is not None and not kept:
        raise InputError(
            f"no pictures of any of the {len(chosen)} chosen cases, though the table is finished: "
            f"{whole_sentence(reason)}"
        ) from reason
    parts = [name for name in (kept[0] if kept else {}) if all(name in one for one in kept)]
    arrays = {name: np.stack([found[name] for found in kept]) for name in parts}
    with whole_file(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    return path


def as_picture(image: Any) -> FloatArray:
    """Return something seen as a picture: (height, width), or (height, width, 3) in colour.

    A signal becomes a strip as high as an eighth of its length.

    Arguments:
        image: A signal, an image of one channel or of three; complex ones by their magnitude.

    Example:
        >>> as_picture(np.ones(64)).shape, as_picture(np.ones((3, 8, 9))).shape
        ((8, 64), (8, 9, 3))
    """
    array = as_array(image, "image")
    array = np.abs(array) if np.iscomplexobj(array) else array
    array = array[0] if array.ndim == 3 and len(array) == 1 else array
    if array.ndim == 1:
        array = np.tile(array, (max(1, len(array) // 8), 1))
    if array.ndim == 3 and array.shape[-1] != 3 and len(array) == 3:
        array = np.moveaxis(array, 0, -1)
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[-1] != 3) or not array.size:
        raise InputError(
            f"an image of shape {array.shape} cannot be shown as a picture; leave pictures out, or "
            "give images (height, width), of three channels, or signals"
        )
    return np.asarray(array, dtype=np.float32)


def _of_case(chain: Chain, cases: Cases, index: int) -> dict[str, Any]:
    """What is seen of a case in all rounds."""
    name, found = cases.case[index], dict[str, list[Any]]()
    image = chain.place(cases.image(index))
    for recovered in chain.rounds([image], [name]):
        drawn = as_array(recovered.images, "recoveries")
        shown = np.stack([as_picture(one) for one in drawn[:SAMPLES]])
        spread = as_picture(drawn.std(axis=0))
        found.setdefault("mean", []).append(as_picture(drawn.mean(axis=0)))
        found.setdefault("sd", []).append(spread.mean(-1) if spread.ndim == 3 else spread)
        if len(drawn) > 1:
            found.setdefault("samples", []).append(shown)
        if recovered.lines is not None:
            found.setdefault("masks", []).append(recovered.lines[0])
        estimate = _estimate(recovered)
        if estimate is not None and estimate.shape == found["mean"][0].shape:
            found.setdefault("estimate", []).append(estimate)
    rounds = {k: np.stack(v) for k, v in found.items() if len(v) == len(chain.accelerations)}
    return {"case": name, "truth": as_picture(true_image(image)), **rounds}


def _estimate(recovered: Recovered) -> FloatArray | None:
    """The picture of the measurement alone, where it has one; what it marks as missing is 0."""
    if not recovered.measurements:
        return None
    measurement = recovered.measurements[0]
    if isinstance(measurement, PicturedMeasurement):
        return np.nan_to_num(as_picture(measurement.picture))
    try:
        return np.nan_to_num(as_picture(true_image(measurement)))
    except (ValueError, AttributeError, TypeError):  # a measurement may be anything
        return None


def _kept(path: Path) -> list[str]:
    with open_npz(path, "pictures") as archive:
        return [str(case) for case in archive["case"]] if "case" in archive else []
