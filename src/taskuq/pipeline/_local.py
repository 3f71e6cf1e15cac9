"""Work of one process, resume check, pictures."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from taskuq._arrays import as_array, is_tensor, no_grad, require_in_ranges
from taskuq._io import atomic_write, open_npz, sigterm_as_exit
from taskuq.errors import InputError, MachineError, TableMismatchError, describe_error, first_line
from taskuq.interval import BoolArray, FloatArray
from taskuq.pipeline._executor import (
    BatchRunner,
    CaseOutputs,
    Executor,
    Ran,
    RoundBatch,
    RunCases,
    RunLog,
    image_digest,
    pinned_threads,
    reference_image,
)
from taskuq.pipeline._progress import Progress
from taskuq.protocols import DisplayableMeasurement
from taskuq.table._parquet import PICTURES, TableHeader, TableWriter, finished_cases, image_marks
from taskuq.table._table import TaskOutputs

# A shard is written when so many rows or seconds have gathered.
ROWS, SECONDS = 4096, 5.0
# So many failures in a row, and no success before, mean that something is wrong with the set-up.
HOPELESS = 20


@dataclass
class _RowBuffer:
    """Finished rows waiting to be written."""

    writer: TableWriter
    cases: RunCases
    index: list[int] = field(default_factory=list)
    found: list[CaseOutputs] = field(default_factory=list)
    since: float = field(default_factory=time.monotonic)

    def add(self, index: int, outputs: CaseOutputs) -> None:
        """Take a finished case, and write a shard if it is time."""
        self.index.append(index)
        self.found.append(outputs)
        rows = len(self.index) * len(self.writer.header.accelerations)
        if rows >= ROWS or time.monotonic() - self.since > SECONDS:
            self.flush()

    def _lines(self) -> BoolArray | None:
        each = [f.lines for f in self.found if f.lines is not None]
        return np.concatenate(np.stack(each, axis=1)) if each else None

    def flush(self) -> None:
        """Write what has gathered as one shard."""
        if self.index:
            rates = self.writer.header.accelerations
            rounds = len(rates)
            outputs = np.stack([f.outputs for f in self.found], axis=1)
            try:
                self.writer.write(
                    np.tile([self.cases.case[i] for i in self.index], rounds),
                    np.repeat(rates, len(self.index)).tolist(),
                    outputs.reshape(-1, *outputs.shape[2:]),
                    np.tile(np.stack([f.targets for f in self.found]), (rounds, 1)),
                    group=_rows(self.cases.group, self.index, rounds),
                    label=_rows(self.cases.label, self.index, rounds),
                    image=np.tile([f.image for f in self.found], rounds),
                    lines=self._lines(),
                )
            except MachineError as error:
                raise MachineError(f"{error}; finished cases are kept") from None
        self.index, self.found, self.since = [], [], time.monotonic()


@dataclass(frozen=True)
class CaseWorker:
    """Compute cases and write them to the table."""

    chain: Executor
    cases: RunCases
    writer: TableWriter
    threads: int | None = None

    @property
    def log(self) -> RunLog:
        return RunLog(self.writer.folder)

    @property
    def folder(self) -> Path:
        """The folder of the table."""
        return self.writer.folder

    @property
    def size(self) -> int:
        return self.chain.size

    def unfinished(self, todo: Sequence[int]) -> list[int]:
        """Return the cases that no shard holds yet."""
        names = [self.cases.case[index] for index in todo]
        done = finished_cases(self.folder, self.writer.header, names)
        return [int(index) for index in np.asarray(todo, dtype=int)[~done]]

    def give_up(self, index: int, error: Exception) -> None:
        """Write to the log why a case is missing."""
        self.log.failed(self.cases.case[index], error)

    def do(self, todo: list[int], progress: Progress | None = None) -> int:
        """Run the given cases, write their rows and return how many were tried."""
        batches = BatchRunner(self.chain, self.cases, self.log)
        with pinned_threads(self.threads), sigterm_as_exit():
            self.keep(batches.run(todo), progress or Progress(len(todo), quiet=True))
        return len(todo)

    def keep(self, found: Iterable[Ran], progress: Progress) -> None:
        """Write what cases gave into the table, or into the log why they gave nothing."""
        rows = _RowBuffer(self.writer, self.cases)
        failures = successes = 0
        try:
            for index, numbers in found:
                error = _row_problem(numbers, self.writer.header)
                if isinstance(numbers, CaseOutputs) and error is None:
                    successes += 1
                    rows.add(index, numbers)
                    progress.step()
                    continue
                assert error is not None
                self.log.failed(self.cases.case[index], error)
                failures += 1
                progress.step(failed=True)
                if successes == 0 and failures >= HOPELESS:
                    raise InputError(
                        f"the first {failures} cases all failed, the last with "
                        f"{describe_error(error, 200)}"
                    ) from error
        finally:
            rows.flush()


def _row_problem(found: CaseOutputs | Exception, header: TableHeader) -> Exception | None:
    """Return why a row cannot be stored, or None."""
    if isinstance(found, Exception):
        return found
    wanted = (len(header.accelerations), header.samples, len(header.task_names))
    if found.outputs.shape != wanted or found.targets.shape != wanted[2:]:
        return InputError(f"the case gave outputs {found.outputs.shape}, the table has {wanted}")
    try:
        require_in_ranges(found.outputs, header.task_ranges, "outputs")
        require_in_ranges(found.targets, header.task_ranges, "targets")
    except InputError as error:
        return error
    return None


def _rows(values: np.ndarray | None, index: list[int], rounds: int) -> np.ndarray | None:
    return None if values is None else np.tile(values[index], rounds)


# Finished cases that are computed again before a run goes on.
PROBES = 3
# How far they may be from what is stored: a share of their spread, and one of their size. Other
# batch sizes, devices and versions of libraries round differently; other networks differ by more.
SPREAD, ROUNDING = 1e-3, 1e-5


def verify_resume(work: CaseWorker, done: np.ndarray, *, is_silent: bool) -> None:
    """Raise if a resumed run does not reproduce stored cases."""
    finished = [int(index) for index in np.nonzero(done)[0]]
    if not finished:
        return
    folder, cases = work.writer.folder, work.cases
    marks = image_marks(folder)
    if isinstance(cases.images, np.ndarray | list | tuple) or is_tensor(cases.images):
        for index in finished:
            _require_same_image(work, index, image_digest(cases.image(index)), marks)
    stored = TaskOutputs.load(folder)
    assert stored.case is not None
    places = {name: place for place, name in enumerate(stored.case.tolist())}
    spread = np.unique(np.linspace(0, len(finished) - 1, PROBES).astype(int))
    chosen = [finished[k] for k in spread]
    for index, found in BatchRunner(work.chain, cases).run(chosen):
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


def _require_same_image(work: CaseWorker, index: int, mark: str, marks: dict[str, str]) -> None:
    name = work.cases.case[index]
    if mark and marks.get(name, mark) != mark:
        raise _differs(work.writer.folder, name, "has another image now")


def _differs(folder: Path, name: str, what: str) -> TableMismatchError:
    return TableMismatchError(_sentence(folder, name, what))


def _sentence(folder: Path, name: str, what: str) -> str:
    return (
        f"{folder} is the table of another run: case {name} {what}; choose another folder or "
        "start afresh"
    )


def _agree(now: FloatArray, then: FloatArray, beside: FloatArray) -> bool:
    """Return True if numbers are the same but for rounding, seen beside others of their case."""
    every = np.concatenate([then.ravel(), beside.ravel()])
    room = SPREAD * np.ptp(every) + ROUNDING * np.abs(every).max()
    return bool((np.abs(now - then) <= room).all())


# So many cases are looked at for each that is shown.
CANDIDATES = 4
# Posterior samples that are kept as pictures.
SAMPLES = 8


def choose_cases(chain: Executor, cases: RunCases, count: int) -> list[int]:
    """Choose cases to show before anything is recovered, spread over the task's targets."""
    n = len(cases)
    some = np.unique(np.linspace(0, n - 1, min(n, CANDIDATES * count)).astype(int)).tolist()
    read: list[tuple[float, int]] = []
    shape = None
    for index in some:
        try:
            image = reference_image(chain.place(cases.image(index)))
            target = chain.target(image)
        except Exception:  # a case that cannot be read is none to show
            continue
        shape = tuple(image.shape) if shape is None else shape
        if tuple(image.shape) == shape and np.isfinite(target).all():
            read.append((float(target[0]), index))
    read.sort()
    steps = np.unique(np.linspace(0, len(read) - 1, min(count, len(read))).astype(int))
    return sorted(read[k][1] for k in steps)


def store_images(folder: Path, chain: Executor, cases: RunCases, chosen: Sequence[int]) -> Path:
    """Store display images of chosen cases."""
    path, names = folder / PICTURES, [cases.case[index] for index in chosen]
    if path.exists() and names == _kept(path):
        return path
    one, log = replace(chain, size=1), RunLog(folder)
    kept: list[dict[str, Any]] = []
    reason: Exception | None = None
    with no_grad():
        for index, name in zip(chosen, names, strict=True):
            try:
                kept.append(_of_case(one, cases, index))
            except Exception as error:
                reason = error
                log.write("no picture", case=name, error=describe_error(error, 500))
    if reason is not None and not kept:
        raise InputError(
            f"no pictures of any of the {len(chosen)} chosen cases, though the table is finished: "
            f"{describe_error(reason)}"
        ) from reason
    parts = [name for name in (kept[0] if kept else {}) if all(name in one for one in kept)]
    arrays = {name: np.stack([found[name] for found in kept]) for name in parts}
    with atomic_write(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    return path


def as_picture(image: Any) -> FloatArray:
    """Return something seen as a picture: (height, width), or (height, width, 3) in colour."""
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


def _of_case(chain: Executor, cases: RunCases, index: int) -> dict[str, Any]:
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
    return {"case": name, "truth": as_picture(reference_image(image)), **rounds}


def _estimate(recovered: RoundBatch) -> FloatArray | None:
    """The picture of the measurement alone, where it has one; what it marks as missing is 0."""
    if not recovered.measurements:
        return None
    measurement = recovered.measurements[0]
    if isinstance(measurement, DisplayableMeasurement):
        return np.nan_to_num(as_picture(measurement.preview))
    try:
        return np.nan_to_num(as_picture(reference_image(measurement)))
    except (ValueError, AttributeError, TypeError):  # a measurement may be anything
        return None


def _kept(path: Path) -> list[str]:
    with open_npz(path, "pictures") as archive:
        return [str(case) for case in archive["case"]] if "case" in archive else []
