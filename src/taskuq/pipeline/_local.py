"""Execution of a run in this process: batches, table rows, resume check and display images."""

from __future__ import annotations

import hashlib
import math
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from taskuq._arrays import as_array, as_ids, is_tensor, no_grad, require_in_ranges
from taskuq._io import (
    append_jsonl,
    atomic_write,
    is_regular_file,
    open_npz,
    read_jsonl,
    reading,
    sigterm_as_exit,
)
from taskuq.errors import (
    InputError,
    MachineError,
    TableMismatchError,
    describe_error,
    first_line,
    is_out_of_memory,
)
from taskuq.interval import FloatArray
from taskuq.pipeline._executor import (
    CaseExecutor,
    CaseOutputs,
    RoundBatch,
    pinned_threads,
    reference_image,
)
from taskuq.pipeline._progress import Progress
from taskuq.protocols import BatchRecover
from taskuq.table._parquet import PICTURES, TableHeader, TableWriter, finished_cases, image_marks
from taskuq.table._table import TaskOutputs, require_one_site

# A shard is written when so many rows or seconds have gathered.
ROWS, SECONDS = 4096, 5.0
# So many failures in a row, and no success before, mean that something is wrong with the set-up.
HOPELESS = 20
# A network holds some 64 numbers for each pixel of an image it reads (ResNet-50 the most).
NUMBERS = 64
# On an H200 the sampler gains nothing beyond 16 cases at a time.
MOST = 16
# Bytes for a batch on a CPU; on a GPU this share of its memory.
MEMORY, SHARE = 2 * 2**30, 0.25
# Images read ahead of those that are being recovered, at least.
AHEAD = 4
# Finished cases that are computed again before a run is resumed.
PROBES = 3
# Allowed differences, relative to spread and size. Other batch sizes, devices and versions of
# libraries round differently; other networks differ by more.
SPREAD, ROUNDING = 1e-3, 1e-5
# Candidates for each displayed case, and displayed samples of each.
CANDIDATES, SAMPLES = 4, 8
LOG = "log.jsonl"

Ran = tuple[int, CaseOutputs | Exception]
_Item = tuple[int, Any, str]


@dataclass(frozen=True)
class RunCases:
    images: Any
    case: tuple[str, ...]
    group: np.ndarray | None
    site: np.ndarray | None
    label: np.ndarray | None

    def __len__(self) -> int:
        return len(self.case)

    def image(self, index: int) -> Any:
        item = self.images[index]
        return getattr(item, "image", item)


def as_cases(
    images: Any,
    case: ArrayLike | None = None,
    group: ArrayLike | None = None,
    site: ArrayLike | None = None,
    label: ArrayLike | None = None,
) -> RunCases:
    """Return the cases of a run from a data set, an array of images or a list of images."""
    if not hasattr(images, "__len__") or not hasattr(images, "__getitem__"):
        text = f"images must be an array, a list or a data set, got {type(images).__name__}"
        raise InputError(text, code="component.invalid")
    n = len(images)
    if n == 0:
        raise InputError("images are empty; check the data set", code="table.incomplete")
    # Data sets declare these without reading images.
    group = getattr(images, "groups", None) if group is None else group
    site = getattr(images, "sites", None) if site is None else site
    label = getattr(images, "labels", None) if label is None else label
    case = getattr(images, "cases", None) if case is None else case
    names = tuple(map(str, range(n) if case is None else as_ids(case, "case", n)))
    if len(set(names)) != n:
        raise InputError("two images have the same case; pass unique ids", code="table.duplicate")
    groups, sites = [
        None if ids is None else as_ids(ids, name, n).astype(str)
        for name, ids in (("group", group), ("site", site))
    ]
    if groups is not None and sites is not None:
        require_one_site(groups, sites)
    labels = None if label is None else as_ids(label, "label", n)
    return RunCases(images, names, groups, sites, labels)


def _image_digest(image: Any) -> str:
    try:
        array = np.ascontiguousarray(as_array(image, "image"))
    except (InputError, TypeError):
        return ""
    if array.dtype.kind not in "biufc":
        return ""
    kind = f"{array.dtype.str} {array.shape}".encode()
    return hashlib.sha256(kind + array.tobytes()).hexdigest()[:16]


@dataclass(frozen=True)
class RunLog:
    folder: Path

    def write(self, event: str, **details: Any) -> None:
        record = {"event": event, "time": round(time.time(), 3), **details}
        append_jsonl(self.folder / LOG, [record])

    def failed(self, case: str, error: BaseException) -> None:
        self.write("failed", case=case, error=describe_error(error, 500))

    def failures(self) -> dict[str, str]:
        errors: dict[str, str] = {}
        for event in self.events():
            if event.get("event") == "failed":
                errors[str(event.get("case"))] = str(event.get("error"))
            elif event.get("event") == "retrying":
                errors.clear()
        return errors

    def events(self) -> list[dict[str, Any]]:
        path = self.folder / LOG
        if not is_regular_file(path):
            return []
        with reading(path, "a log", "remove it"):
            return list(filter(None, read_jsonl(path)))


def batch_size(
    recover: Any,
    image: Any,
    *,
    samples: int,
    cases: int,
    device: str | None = None,
    batch: int | None = None,
) -> int:
    """Return the number of cases per batch, by default as many as fit in memory."""
    if batch is not None and batch < 1:
        raise InputError(f"batch must be at least 1, got {batch}", code="value.invalid")
    if not isinstance(recover, BatchRecover):
        return 1
    if batch is None:
        shape = tuple(image.shape)
        # Networks on coil images hold a real and an imaginary channel for each coil.
        copies = max(samples, 2 * math.prod(shape[:-2]))
        need = 4 * NUMBERS * copies * math.prod(shape[-2:])
        memory: float = MEMORY
        if device is not None and device.startswith("cuda"):
            memory = SHARE * sys.modules["torch"].cuda.get_device_properties(device).total_memory
        batch = max(1, min(MOST, int(memory / need)))
    # Equal batches, so that few cases are run for nothing in the last one.
    return math.ceil(cases / math.ceil(cases / batch))


class BatchRunner:
    """Runner of cases in batches, which are halved when memory runs out."""

    def __init__(
        self,
        executor: CaseExecutor,
        cases: RunCases,
        log: RunLog | None = None,
        images: Mapping[int, Any] | None = None,
    ) -> None:
        self.executor, self.cases, self.log = executor, cases, log
        self.images = dict(images or {})  # read already

    def run(self, indices: Sequence[int]) -> Iterator[Ran]:
        """Yield the outputs of each case, or its error, batch by batch."""
        batch: list[_Item] = []
        for index, image_read in self._read_ahead(indices):
            try:
                # Here, not in the thread that reads: CUDA graphs cannot be captured while another
                # thread allocates memory on the same device.
                read, digest = image_read.result()
                image = self.executor.place(read)
            except Exception as error:  # a file that cannot be read is the failure of its case
                yield index, error
                continue
            if batch and np.shape(batch[0][1]) != np.shape(image):
                yield from self._run_batch(batch)
                batch = []
            batch.append((index, image, digest))
            if len(batch) >= self.executor.size:
                yield from self._run_batch(batch)
                batch = []
        yield from self._run_batch(batch)

    def _read_ahead(self, indices: Sequence[int]) -> Iterator[tuple[int, Future[Any]]]:
        ahead = max(AHEAD, 2 * self.executor.size)
        with ThreadPoolExecutor(max_workers=1) as reader:
            waiting: deque[tuple[int, Future[Any]]] = deque()
            for index in indices:
                waiting.append((index, reader.submit(self._image, index)))
                if len(waiting) > ahead:
                    yield waiting.popleft()
            yield from waiting

    def _image(self, index: int) -> tuple[Any, str]:
        image = self.images.pop(index) if index in self.images else self.cases.image(index)
        return image, _image_digest(image)

    def _run_batch(self, items: list[_Item]) -> Iterator[Ran]:
        waiting = [items] if items else []
        before = self.executor.size
        while waiting:
            part, size = waiting.pop(), self.executor.size
            if len(part) > size:
                waiting += [part[size:], part[:size]]
                continue
            error = None
            try:
                rows = self.executor.run(
                    [image for _, image, _ in part], [self.cases.case[i] for i, _, _ in part]
                )
            except Exception as reason:  # one bad case must not end a run of hours
                # Without its frames, which hold on to the memory that ran out.
                error = reason.with_traceback(None)
            if error is None:
                for (index, _, digest), row in zip(part, rows, strict=True):
                    yield index, replace(row, image=digest) if isinstance(row, CaseOutputs) else row
            elif is_out_of_memory(error) and size > 1:
                self.executor = replace(self.executor, size=size // 2)
                torch = sys.modules.get("torch")
                if torch is not None and torch.cuda.is_available():
                    torch.cuda.empty_cache()
                waiting.append(part)
            elif len(part) > 1:
                middle = len(part) // 2
                waiting += [part[middle:], part[:middle]]
            else:
                yield part[0][0], error
        if self.executor.size < before and self.log is not None:
            self.log.write("out of memory", batch=self.executor.size)


@dataclass(frozen=True)
class CaseWorker:
    executor: CaseExecutor
    cases: RunCases
    writer: TableWriter
    threads: int | None = None

    @cached_property
    def log(self) -> RunLog:
        return RunLog(self.writer.folder)

    @property
    def folder(self) -> Path:
        return self.writer.folder

    @property
    def size(self) -> int:
        return self.executor.size

    def unfinished(self, indices: Sequence[int]) -> list[int]:
        names = [self.cases.case[index] for index in indices]
        done = finished_cases(self.folder, self.writer.header, names)
        return [int(index) for index in np.asarray(indices, dtype=int)[~done]]

    def record_failure(self, index: int, error: Exception) -> None:
        self.log.failed(self.cases.case[index], error)

    def run(self, indices: list[int], progress: Progress | None = None) -> int:
        batches = BatchRunner(self.executor, self.cases, self.log)
        with pinned_threads(self.threads), sigterm_as_exit():
            self.store(batches.run(indices), progress or Progress(len(indices), quiet=True))
        return len(indices)

    def store(self, results: Iterable[Ran], progress: Progress) -> None:
        rows, since = dict[int, CaseOutputs](), time.monotonic()
        failures = successes = 0
        try:
            for index, row in results:
                error = _row_error(row, self.writer.header)
                progress.step(failed=error is not None)
                if error is None:
                    assert isinstance(row, CaseOutputs)
                    successes += 1
                    rows[index] = row
                    n = len(rows) * len(self.writer.header.accelerations)
                    if n >= ROWS or time.monotonic() - since > SECONDS:
                        self._write(rows)
                        rows, since = {}, time.monotonic()
                    continue
                self.log.failed(self.cases.case[index], error)
                failures += 1
                if successes == 0 and failures >= HOPELESS:
                    text = f"the first {failures} cases all failed: {describe_error(error, 200)}"
                    raise InputError(text, code="component.invalid") from error
        finally:
            self._write(rows)

    def _write(self, rows: Mapping[int, CaseOutputs]) -> None:
        if not rows:
            return
        rates, cases, index = self.writer.header.accelerations, self.cases, list(rows)
        outputs = np.stack([row.outputs for row in rows.values()], axis=1)
        lines = [row.lines for row in rows.values() if row.lines is not None]
        shape = (len(rates), outputs.shape[-1])
        targets = [np.broadcast_to(row.targets, shape) for row in rows.values()]
        ids = {"group": cases.group, "site": cases.site, "label": cases.label}
        try:
            self.writer.write(
                np.tile([cases.case[i] for i in index], len(rates)),
                np.repeat(rates, len(index)).tolist(),
                outputs.reshape(-1, *outputs.shape[2:]),
                np.concatenate(np.stack(targets, axis=1)),
                image=np.tile([row.image for row in rows.values()], len(rates)),
                lines=np.concatenate(np.stack(lines, axis=1)) if lines else None,
                **{k: None if v is None else np.tile(v[index], len(rates)) for k, v in ids.items()},
            )
        except MachineError as error:
            raise MachineError(f"{error}; finished cases are kept") from None


def _row_error(row: CaseOutputs | Exception, header: TableHeader) -> Exception | None:
    if isinstance(row, Exception):
        return row
    shape = (len(header.accelerations), header.samples, len(header.task_names))
    depends = shape[:1] if header.round_targets else ()
    if row.outputs.shape != shape or row.targets.shape != depends + shape[2:]:
        text = f"the case has outputs {row.outputs.shape}, the table has {shape}"
        return InputError(text, code="shape.mismatch")
    try:
        require_in_ranges(row.outputs, header.task_ranges, "outputs")
        require_in_ranges(row.targets, header.task_ranges, "targets")
    except InputError as error:
        return error
    return None


def verify_resume(work: CaseWorker, done: np.ndarray, *, quiet: bool) -> None:
    """Raise an error if recomputed cases differ from those stored by an earlier run."""
    finished = [int(index) for index in np.nonzero(done)[0]]
    if not finished:
        return
    folder, cases = work.folder, work.cases
    digests = image_marks(folder)
    if isinstance(cases.images, np.ndarray | list | tuple) or is_tensor(cases.images):
        for index in finished:
            _require_same_image(work, index, _image_digest(cases.image(index)), digests)
    stored = TaskOutputs.load(folder)
    assert stored.case is not None
    places = {name: place for place, name in enumerate(stored.case.tolist())}
    probes = np.unique(np.linspace(0, len(finished) - 1, PROBES).astype(int))
    chosen = [finished[k] for k in probes]
    for index, row in BatchRunner(work.executor, cases).run(chosen):
        name = cases.case[index]
        if not isinstance(row, CaseOutputs):
            # No TableMismatchError: a table must not be thrown away because memory is full.
            reason = f"cannot be computed again ({first_line(row):.120})"
            raise InputError(_mismatch(folder, name, reason), code="resume.mismatch")
        _require_same_image(work, index, row.image, digests)
        outputs = stored.outputs[:, places[name]].reshape(row.outputs.shape)
        every = [stored.targets_at(k)[places[name]] for k in range(stored.rounds)]
        targets = np.stack(every if stored.has_round_targets else every[:1])
        targets = targets.reshape(row.targets.shape)
        if not _agree(row.outputs, outputs, targets) or not _agree(row.targets, targets, outputs):
            reason = "has other outputs now: measurement, recovery, task or seed have changed"
            raise TableMismatchError(_mismatch(folder, name, reason))
    if done.all() and not quiet:
        text = f"all {len(done)} cases of {folder} were finished before"
        sys.stderr.write(f"{text}; {len(chosen)} of them were computed again and agree\n")


def _require_same_image(work: CaseWorker, index: int, digest: str, stored: dict[str, str]) -> None:
    name = work.cases.case[index]
    if digest and stored.get(name, digest) != digest:
        raise TableMismatchError(_mismatch(work.folder, name, "has another image now"))


def _mismatch(folder: Path, name: str, reason: str) -> str:
    text = f"{folder} holds a table of a different run: case {name} {reason}"
    return f"{text}; use another folder, or overwrite=True"


def _agree(now: FloatArray, then: FloatArray, others: FloatArray) -> bool:
    """Return True if ``now`` equals ``then`` within rounding errors on the scale of all values."""
    every = np.concatenate([then.ravel(), others.ravel()])
    tolerance = SPREAD * np.ptp(every) + ROUNDING * np.abs(every).max()
    return bool((np.abs(now - then) <= tolerance).all())


def choose_cases(executor: CaseExecutor, cases: RunCases, chosen: int | Sequence[str]) -> list[int]:
    """Return indices of cases to display, given by name or spread evenly over the targets."""
    if not isinstance(chosen, int):
        if missing := [name for name in chosen if name not in cases.case]:
            text = f"keep_images names {missing[0]}, which is no case; use names such as "
            raise InputError(f"{text}{cases.case[0]}", code="choice.unknown")
        return sorted(cases.case.index(name) for name in chosen)
    n = chosen
    count = min(len(cases), CANDIDATES * n)
    candidates = np.unique(np.linspace(0, len(cases) - 1, count).astype(int)).tolist()
    targets: list[tuple[float, int]] = []
    shape = None
    for index in candidates:
        try:
            image = reference_image(executor.place(cases.image(index)))
            target = executor.target(image)
        except Exception:  # a case that cannot be read is not displayed
            continue
        shape = tuple(image.shape) if shape is None else shape
        if tuple(image.shape) == shape and np.isfinite(target).all():
            targets.append((float(target[0]), index))
    targets.sort()
    steps = np.unique(np.linspace(0, len(targets) - 1, min(n, len(targets))).astype(int))
    return sorted(targets[k][1] for k in steps)


def store_images(folder: Path, executor: CaseExecutor, cases: RunCases, chosen: list[int]) -> Path:
    path, names = folder / PICTURES, [cases.case[index] for index in chosen]
    if path.exists():
        with open_npz(path, "images") as archive:
            if "case" in archive and names == [str(case) for case in archive["case"]]:
                return path
    single, log = replace(executor, size=1), RunLog(folder)
    stored: list[dict[str, Any]] = []
    reason: Exception | None = None
    for index, name in zip(chosen, names, strict=True):
        try:
            with no_grad():
                stored.append(_display_arrays(single, cases, index))
        except Exception as error:
            reason = error
            log.write("no picture", case=name, error=describe_error(error, 500))
    if reason is not None and not stored:
        text = f"no chosen case can be displayed, the table is finished: {describe_error(reason)}"
        raise InputError(text, code="component.invalid") from reason
    keys = [key for key in (stored[0] if stored else {}) if all(key in one for one in stored)]
    arrays = {key: np.stack([one[key] for one in stored]) for key in keys}
    with atomic_write(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    return path


def as_display_image(image: Any) -> FloatArray:
    """Return an image to display: (height, width), or (height, width, 3) in colour."""
    array = as_array(image, "image")
    array = np.abs(array) if np.iscomplexobj(array) else array
    array = array[0] if array.ndim == 3 and len(array) == 1 else array
    if array.ndim == 1:
        array = np.tile(array, (max(1, len(array) // 8), 1))
    if array.ndim == 3 and array.shape[-1] != 3 and len(array) == 3:
        array = np.moveaxis(array, 0, -1)
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[-1] != 3) or not array.size:
        text = f"an image of shape {array.shape} cannot be displayed; pass keep_images=0"
        raise InputError(text, code="shape.axes")
    return np.asarray(array, dtype=np.float32)


def _display_arrays(executor: CaseExecutor, cases: RunCases, index: int) -> dict[str, Any]:
    name, arrays = cases.case[index], dict[str, list[Any]]()
    image = executor.place(cases.image(index))
    for batch in executor.rounds([image], [name]):
        recoveries = as_array(batch.images, "recoveries")
        sd = as_display_image(recoveries.std(axis=0))
        arrays.setdefault("mean", []).append(as_display_image(recoveries.mean(axis=0)))
        arrays.setdefault("sd", []).append(sd.mean(-1) if sd.ndim == 3 else sd)
        if len(recoveries) > 1:
            samples = np.stack([as_display_image(one) for one in recoveries[:SAMPLES]])
            arrays.setdefault("samples", []).append(samples)
        if batch.lines is not None:
            arrays.setdefault("masks", []).append(batch.lines[0])
        preview = _preview(batch)
        if preview is not None and preview.shape == arrays["mean"][0].shape:
            arrays.setdefault("estimate", []).append(preview)
    rounds = {k: np.stack(v) for k, v in arrays.items() if len(v) == len(executor.accelerations)}
    return {"case": name, "truth": as_display_image(reference_image(image)), **rounds}


def _preview(batch: RoundBatch) -> FloatArray | None:
    try:
        preview = getattr(batch.measurements[0], "preview", None)
        shown = reference_image(batch.measurements[0]) if preview is None else preview
        return np.nan_to_num(as_display_image(shown))
    except (ValueError, AttributeError, TypeError, IndexError):  # it may be anything, or none
        return None
