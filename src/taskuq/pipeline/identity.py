"""Whether a table that is gone on with is of the same run: images, and cases computed again."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from taskuq.checks import is_tensor
from taskuq.errors import InputError, OtherTableError, first_line
from taskuq.interval import FloatArray
from taskuq.outputs.shards import image_marks
from taskuq.outputs.table import TaskOutputs
from taskuq.pipeline.batches import Batches
from taskuq.pipeline.cases import image_mark
from taskuq.pipeline.chain import CaseOutputs
from taskuq.pipeline.local import Work

# Finished cases that are computed again before a run goes on.
PROBES = 3
# How far they may be from what is stored: a share of their spread, and one of their size. Other
# batch sizes, devices and versions of libraries round differently; other networks differ by more.
SPREAD, ROUNDING = 1e-3, 1e-5


def require_same_run(work: Work, done: np.ndarray, *, is_silent: bool) -> None:
    """Refuse to go on with a table whose finished cases come out differently now.

    Callables cannot be compared, but what they give can: a few finished cases are computed again.
    Images in memory are all compared with those that the shards remember, others where they are
    computed again.

    Arguments:
        work: The run as it is now.
        done: Which cases are finished (case,).
        is_silent: Whether not to say that nothing is left to compute.
    """
    finished = [int(index) for index in np.nonzero(done)[0]]
    if not finished:
        return
    folder, cases = work.writer.folder, work.cases
    marks = image_marks(folder)
    if isinstance(cases.images, np.ndarray | list | tuple) or is_tensor(cases.images):
        for index in finished:
            _require_same_image(work, index, image_mark(cases.image(index)), marks)
    stored = TaskOutputs.load(folder)
    assert stored.case is not None
    places = {name: place for place, name in enumerate(stored.case.tolist())}
    spread = np.unique(np.linspace(0, len(finished) - 1, PROBES).astype(int))
    chosen = [finished[k] for k in spread]
    for index, found in Batches(work.chain, cases).run(chosen):
        name = cases.case[index]
        if not isinstance(found, CaseOutputs):
            # No other run: whoever may throw tables away must not do it for a full memory.
            why = f"cannot be computed again ({first_line(found):.120})"
            raise InputError(_sentence(folder, name, why))
        _require_same_image(work, index, found.image, marks)
        place = places[name]
        kept = stored.outputs[:, place].reshape(found.outputs.shape)
        targets = stored.targets_at(0)[place].reshape(found.targets.shape)
        if not _agree(found.outputs, kept, targets) or not _agree(found.targets, targets, kept):
            raise _differs(
                folder, name,
                "gives other numbers now, so measurement, recovery or task have changed, or draw "
                "without the seed that they are given",
            )  # fmt: skip
    if done.all() and not is_silent:
        sys.stderr.write(
            f"all {len(done)} cases of {folder} were finished before, and {len(chosen)} of them "
            "come out the same again; nothing else is computed\n"
        )


def _require_same_image(work: Work, index: int, mark: str, marks: dict[str, str]) -> None:
    name = work.cases.case[index]
    if mark and marks.get(name, mark) != mark:
        raise _differs(work.writer.folder, name, "has another image now")


def _differs(folder: Path, name: str, what: str) -> OtherTableError:
    return OtherTableError(_sentence(folder, name, what))


def _sentence(folder: Path, name: str, what: str) -> str:
    return (
        f"{folder} is the table of another run: case {name} {what}; choose another folder or "
        "start afresh"
    )


def _agree(now: FloatArray, then: FloatArray, beside: FloatArray) -> bool:
    """Whether numbers are the same but for rounding, seen beside others of their case."""
    every = np.concatenate([then.ravel(), beside.ravel()])
    room = SPREAD * np.ptp(every) + ROUNDING * np.abs(every).max()
    return bool((np.abs(now - then) <= room).all())
