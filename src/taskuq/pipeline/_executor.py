"""The one caller of g and f: seeds, batches, checks, deadline."""

from __future__ import annotations

import hashlib
import math
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from taskuq._arrays import as_array, as_ids, is_tensor, no_grad, require_nested_lines
from taskuq._io import append_jsonl, is_regular_file, read_jsonl, reading
from taskuq._seeds import case_seed
from taskuq.errors import InputError, describe_error, is_out_of_memory
from taskuq.interval import BoolArray, FloatArray
from taskuq.protocols import (
    AdaptiveMeasure,
    BatchRecover,
    HasCases,
    HasGroups,
    HasImage,
    HasLabels,
    Measure,
    Recover,
    StoredRecover,
    Task,
)
from taskuq.table._terminology import round_label

T = TypeVar("T")


@dataclass
class DeadlineWorker:
    """Thread that runs a computation within a deadline."""

    deadline: float | None = None
    _late: threading.Thread | None = field(default=None, init=False, repr=False)

    def run(self, compute: Callable[[], T], *, hurry: bool = True) -> T:
        """Return what is computed, or raise TimeoutError where it takes too long."""
        if self._late is not None:
            self._late.join(self.deadline if hurry else None)
            if self._late.is_alive():
                raise TimeoutError("the recovery of an earlier round is still running")
            self._late = None
        if self.deadline is None or not hurry:
            return compute()
        found: list[T] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                found.append(compute())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(self.deadline)
        if thread.is_alive():
            self._late = thread
            raise TimeoutError(f"recovery and task took longer than {self.deadline:g} s")
        if failed:
            raise failed[0]
        return found[0]


@dataclass(frozen=True)
class RunCases:
    """Images of a run with case, group and label."""

    images: Any
    case: tuple[str, ...]
    group: np.ndarray | None
    label: np.ndarray | None

    def __len__(self) -> int:
        return len(self.case)

    def image(self, index: int) -> Any:
        """Read one image."""
        item = self.images[index]
        return item.image if isinstance(item, HasImage) else item


def as_cases(
    images: Any,
    case: Sequence[Any] | None = None,
    group: Sequence[Any] | None = None,
    label: Sequence[Any] | None = None,
) -> RunCases:
    """Take a data set, an array of images, or a list of them, as the cases of a run."""
    try:
        n = len(images)
        images.__getitem__  # noqa: B018  # a sequence is asked for its items, nothing is read yet
    except (TypeError, AttributeError):
        raise InputError("images must have a length and give items by their number") from None
    if n == 0:
        raise InputError("there are no images to run; check the data set")
    if group is None and isinstance(images, HasGroups):
        group = images.groups
    if label is None and isinstance(images, HasLabels):
        label = images.labels
    if case is None and isinstance(images, HasCases):
        case = images.cases
    names = tuple(str(c) for c in (range(n) if case is None else as_ids(case, "case", n)))
    if len(set(names)) != n:
        raise InputError("two cases have the same identity; each needs its own")
    return RunCases(
        images,
        names,
        None if group is None else as_ids(group, "group", n).astype(str),
        None if label is None else as_ids(label, "label", n),
    )


def image_digest(image: Any) -> str:
    """Return the digest of an image."""
    try:
        array = np.ascontiguousarray(as_array(image, "image"))
    except (InputError, TypeError):
        return ""
    if array.dtype.kind not in "biufc":
        return ""
    kind = f"{array.dtype.str} {array.shape}".encode()
    return hashlib.sha256(kind + array.tobytes()).hexdigest()[:16]


@dataclass(frozen=True)
class CaseOutputs:
    """Outputs and target of one case."""

    targets: FloatArray
    outputs: FloatArray
    image: str = ""
    lines: BoolArray | None = None


@dataclass(frozen=True)
class RoundBatch:
    """Samples of a batch in one round."""

    acceleration: float
    measurements: list[Any]
    images: Any
    lines: list[BoolArray] | None = None


def reference_image(image: Any) -> Any:
    """Return the image the task sees (coils combined)."""
    if not (image.is_complex() if is_tensor(image) else np.iscomplexobj(image)):
        return image
    magnitude = abs(image)
    return (magnitude**2).sum(-3) ** 0.5 if image.ndim > 2 else magnitude


@dataclass(frozen=True)
class Executor:
    """The only caller of h, g and f."""

    measure: Measure
    recover: Recover | StoredRecover
    task: Task
    accelerations: Sequence[float]
    samples: int
    seed: int
    size: int = 1
    device: str | None = None
    round_names: tuple[str, ...] | None = None

    def at(self, R: float) -> str:
        k = list(self.accelerations).index(R)
        return f"at {round_label(R, None if self.round_names is None else self.round_names[k])}"

    def place(self, image: Any) -> Any:
        """Put a tensor on the device; an array stays as it is."""
        is_elsewhere = self.device is not None and is_tensor(image)
        return image.to(self.device, non_blocking=True) if is_elsewhere else image

    def scan(self, images: Sequence[Any], names: Sequence[str]) -> list[CaseOutputs | InputError]:
        """Measure, recover and read images of one shape at every acceleration, all at once."""
        assert 1 <= len(images) <= self.size
        with no_grad():
            known = [reference_image(image) for image in images]
            with _blame("task", f"{_said(names)}, the true image"):
                targets = self._read(_stack(self._full(known)), "on the true image")
            rounds, chosen = [], []
            for found in self.rounds(images, names):
                rounds.append(self._outputs(found, images[0], names, targets.shape[-1]))
                chosen.append(found.lines)
        counts = {read.shape[1] for read in rounds}
        if len(counts) > 1:
            raise InputError(f"the recovery gave {sorted(counts)} samples in different rounds")
        outputs = np.stack(rounds, axis=1)
        lines = [_of_case(chosen, k) for k in range(len(images))]
        return [self._case(name, targets[k], outputs[k], lines[k]) for k, name in enumerate(names)]

    def rounds(self, images: Sequence[Any], names: Sequence[str]) -> Iterator[RoundBatch]:
        """Measure and recover images of one shape, round by round."""
        rule = self.measure if isinstance(self.measure, AdaptiveMeasure) else None
        lines = None if rule is None else [rule.initial_lines() for _ in images]
        for k, R in enumerate(self.accelerations):
            found = self._recovered(images, names, R, lines)
            yield found
            if rule is not None and lines is not None and k + 1 < len(self.accelerations):
                each = len(found.images) // self.size
                lines = [
                    self._chosen(rule, k, found, slice(i * each, (i + 1) * each), i, name)
                    for i, name in enumerate(names)
                ]

    def _chosen(
        self, rule: AdaptiveMeasure, k: int, found: RoundBatch, own: slice, i: int, name: str
    ) -> BoolArray:
        """The lines of one case in the round after round k."""
        assert found.lines is not None, "a rule chose them"
        with _blame("choose", f"case {name} {self.at(found.acceleration)}"):
            more = rule.next_lines(
                k, found.measurements[i], found.images[own], self.task, found.lines[i].copy()
            )
        return require_nested_lines(more, found.lines[i], k)

    def target(self, image: Any) -> FloatArray:
        """Return what the task reads off one true image, (task,)."""
        with no_grad():
            return np.asarray(self._read(_stack([image]), "on the true image")[0])

    def _outputs(
        self, found: RoundBatch, image: Any, names: Sequence[str], tasks: int
    ) -> FloatArray:
        """Return the numbers of one round, (case, sample, task)."""
        R = found.acceleration
        self._require_shape(image, found.images, R)
        with _blame("task", f"{_said(names)} {self.at(R)}"):
            read = self._read(found.images, self.at(R))
        # There is a row for each image that the recovery gave.
        if len(read) not in (self.size, self.size * self.samples):
            raise InputError(
                f"the recovery gave {len(read) / self.size:g} images {self.at(R)} of {_said(names)}"
                f"; let it return the {self.samples} samples it is asked for, or one estimate"
            )
        if read.shape[1] != tasks:
            raise InputError(
                f"the task gave {read.shape[1]} numbers {self.at(R)} and {tasks} on the true image "
                f"of {_said(names)}; let it give as many"
            )
        return read.reshape(self.size, -1, tasks)

    def _require_shape(self, image: Any, recoveries: Any, R: float) -> None:
        """Refuse recoveries of another shape than the image that the task sees as the truth."""
        truth, found = tuple(reference_image(image).shape), tuple(np.shape(recoveries)[1:])
        if truth != found:
            raise InputError(
                f"recoveries {self.at(R)} have shape {found}, but the true image has {truth}, and "
                "the task has to see both alike; let the recovery return (sample, height, width), "
                "or give images of one channel"
            )

    def _recovered(
        self,
        images: Sequence[Any],
        names: Sequence[str],
        R: float,
        lines: list[BoolArray] | None,
    ) -> RoundBatch:
        """Measure and recover one round."""
        if isinstance(self.recover, StoredRecover):
            # Found by the name of the case, whatever would be measured.
            found = self.recover.load(names[0], R, samples=self.samples)
            return RoundBatch(R, [], _like(images[0], found))
        measurements = []
        for i, (image, name) in enumerate(zip(images, names, strict=True)):
            with _blame("measure", f"case {name} {self.at(R)}"):
                if lines is not None and isinstance(self.measure, AdaptiveMeasure):
                    measurements.append(self.measure.measure_lines(image, R, lines[i]))
                else:
                    measurements.append(self.measure(image, R))
        return RoundBatch(R, measurements, self._recoveries(measurements, names, R), lines)

    def _recoveries(self, measurements: list[Any], names: Sequence[str], R: float) -> Any:
        """Return the recoveries of one round, the samples of all cases one after the other."""
        assert not isinstance(self.recover, StoredRecover), "they need no measurement"
        measurements = self._full(measurements)
        seeds = self._full([case_seed(self.seed, name, R) for name in names])
        with _blame("recover", f"{_said(names)} {self.at(R)}"):
            if self.size == 1:
                return self.recover(measurements[0], samples=self.samples, seed=seeds[0])
            assert isinstance(self.recover, BatchRecover), "cases run one by one without it"
            drawn = self.recover.batch(measurements, samples=self.samples, seeds=seeds)
        if len(drawn) != self.size:
            raise InputError(
                f"the recovery gave {len(drawn)} cases for a batch of {self.size}; let batch "
                "return (case, sample, height, width)"
            )
        return drawn.reshape(-1, *drawn.shape[2:])

    def _read(self, images: Any, where: str) -> FloatArray:
        """Ask the task about images, (image, task)."""
        found = as_array(self.task(images), f"the task {where}")
        if found.dtype.kind not in "fiub" or found.ndim not in (1, 2) or len(found) != len(images):
            raise InputError(
                f"the task {where} gave {found.dtype} numbers of shape {found.shape} for "
                f"{len(images)} images; one row of real numbers for each is needed"
            )
        return (found[:, None] if found.ndim == 1 else found).astype(float)

    def _case(
        self, name: str, targets: FloatArray, outputs: FloatArray, lines: BoolArray | None
    ) -> CaseOutputs | InputError:
        with np.errstate(over="ignore"):
            kept = outputs.astype(np.float32)
        places = ["on the true image", *map(self.at, self.accelerations)]
        for where, numbers in zip(places, [targets, *kept], strict=True):
            if not np.isfinite(numbers).all():
                return InputError(f"the task {where} of case {name} gave NaN or infinite numbers")
        return CaseOutputs(targets, kept, lines=lines)

    def _full(self, items: list[Any]) -> list[Any]:
        return items + items[-1:] * (self.size - len(items))


def _of_case(chosen: Sequence[list[BoolArray] | None], k: int) -> BoolArray | None:
    each = [lines[k] for lines in chosen if lines is not None]
    return np.stack(each) if each else None


@contextmanager
def _blame(part: str, whom: str) -> Iterator[None]:
    """Add component, case and user line to an error."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        line = _user_line(error)
        error.add_note(f"in {part}{line and f', {line}'}, {whom}")
        raise


def _user_line(error: BaseException) -> str:
    """Return the user's source line of an error."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).resolve().parents[1])
    mine = [f for f in frames if not f.filename.startswith(ours) and "-packages" not in f.filename]
    return f"{Path(mine[-1].filename).name} line {mine[-1].lineno}" if mine else ""


def _said(names: Sequence[str]) -> str:
    return f"case {names[0]}" if len(names) == 1 else f"cases {', '.join(names)[:80]}"


def _stack(images: list[Any]) -> Any:
    if is_tensor(images[0]):
        import torch

        return torch.stack(images)
    return np.stack(images)


def _like(image: Any, recoveries: Any) -> Any:
    """Recoveries as a tensor where images are tensors, so that one task reads both."""
    if not is_tensor(image):
        return recoveries
    import torch

    return torch.as_tensor(recoveries, device=image.device)


# Bytes for a batch on a CPU; on a GPU this share of its memory.
MEMORY, SHARE = 2 * 2**30, 0.25


def pick_device(device: str | None) -> str:
    """Return the device to use: what was asked for, or the best one there is."""
    import torch

    if device is None:
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device {device!r} cannot be used here ({reason}); try cpu") from None
    return device


def _batch_memory(device: str | None) -> float:
    """Return the bytes that the cases of a batch may take on a device."""
    if device is not None and device.startswith("cuda"):
        import torch

        return SHARE * torch.cuda.get_device_properties(device).total_memory
    return MEMORY


def num_threads() -> int | None:
    """Return torch's CPU thread count, or None."""
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


@contextmanager
def pinned_threads(count: int | None) -> Iterator[None]:
    if count is None:
        yield
        return
    # Here and now: what a worker runs may load it only later, with threads of its own choice.
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _release_memory() -> None:
    """Give back memory that torch holds for later."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def peak_host_bytes() -> int:
    """Return the most memory that this process has had so far."""
    try:
        status = Path("/proc/self/status").read_text()
        (line,) = (row for row in status.splitlines() if row.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    except (OSError, ValueError):
        # The last resort: on Linux a program starts with the peak of its parent.
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


NAME = "log.jsonl"


@dataclass(frozen=True)
class RunLog:
    """A file of lines, one event each, that several workers may append to."""

    folder: Path

    def write(self, event: str, **details: Any) -> None:
        """Append an event."""
        record = {"event": event, "time": round(time.time(), 3), **details}
        append_jsonl(self.folder / NAME, [record])

    def failed(self, case: str, error: BaseException) -> None:
        """Remember that a case could not be finished, and why."""
        self.write("failed", case=case, error=describe_error(error, 500))

    def failures(self) -> dict[str, str]:
        """Return the cases that failed when they were last tried, and why."""
        found: dict[str, str] = {}
        for event in self.events():
            if event.get("event") == "failed":
                found[str(event.get("case"))] = str(event.get("error"))
            elif event.get("event") == "retrying":
                found.clear()
        return found

    def events(self) -> Iterator[Mapping[str, Any]]:
        """Yield all events; a line torn by a power cut is skipped."""
        path = self.folder / NAME
        if not is_regular_file(path):
            return
        with reading(path, "a log", "remove it"):
            yield from filter(None, read_jsonl(path))


# A network holds some 64 numbers for each pixel of an image it reads (ResNet-50 the most).
NUMBERS = 64
# On an H200 the sampler gains nothing beyond 16 cases at a time.
MOST = 16
# Images read ahead of those that are being recovered, at least.
AHEAD = 4

# The number of a case, and what running it gave: its numbers, or why there are none.
Ran = tuple[int, CaseOutputs | Exception]
# The number of a case, its image and the fingerprint of that.
_Item = tuple[int, Any, str]


def batch_size(
    recover: Any,
    image: Any,
    *,
    samples: int,
    cases: int,
    device: str | None = None,
    batch: int | None = None,
) -> int:
    """Return how many cases run at once; it depends on the run and the device, not on the moment."""
    if batch is not None and batch < 1:
        raise InputError(f"batch must be at least 1, got {batch}")
    if not isinstance(recover, BatchRecover):
        return 1
    if batch is None:
        shape = tuple(image.shape)
        # Networks on coil images hold a real and an imaginary channel for each coil.
        copies = max(samples, 2 * math.prod(shape[:-2]))
        need = 4 * NUMBERS * copies * math.prod(shape[-2:])
        batch = max(1, min(MOST, int(_batch_memory(device) / need)))
    # Equal batches, so that few cases are run for nothing in the last one.
    return math.ceil(cases / math.ceil(cases / batch))


class BatchRunner:
    """Run cases in batches; halve them when memory runs out."""

    def __init__(
        self,
        chain: Executor,
        cases: RunCases,
        log: RunLog | None = None,
        seen: Mapping[int, Any] | None = None,
    ) -> None:
        self.chain, self.cases, self.log = chain, cases, log
        self.seen = dict(seen or {})

    def run(self, todo: Sequence[int]) -> Iterator[Ran]:
        """Yield the numbers of each case, or why there are none, batch by batch."""
        together: list[_Item] = []
        for index, reading in self._read_ahead(todo):
            try:
                # Here, not in the thread that reads: GPU work cannot be recorded while another
                # thread sets aside memory on the same device.
                read, mark = reading.result()
                image = self.chain.place(read)
            except Exception as error:  # a file that cannot be read is the failure of its case
                yield index, error
                continue
            if together and np.shape(together[0][1]) != np.shape(image):
                yield from self._together(together)
                together = []
            together.append((index, image, mark))
            if len(together) >= self.chain.size:
                yield from self._together(together)
                together = []
        yield from self._together(together)

    def _read_ahead(self, todo: Sequence[int]) -> Iterator[tuple[int, Future[Any]]]:
        """Yield cases with their images, which a second thread reads while others are recovered."""
        ahead = max(AHEAD, 2 * self.chain.size)
        with ThreadPoolExecutor(max_workers=1) as reader:
            waiting: deque[tuple[int, Future[Any]]] = deque()
            for index in todo:
                waiting.append((index, reader.submit(self._image, index)))
                if len(waiting) > ahead:
                    yield waiting.popleft()
            while waiting:
                yield waiting.popleft()

    def _image(self, index: int) -> tuple[Any, str]:
        image = self.seen.pop(index) if index in self.seen else self.cases.image(index)
        return image, image_digest(image)

    def _together(self, items: list[_Item]) -> Iterator[Ran]:
        """Run images of one shape."""
        waiting = [items] if items else []
        before = self.chain.size
        while waiting:
            part = waiting.pop()
            if len(part) > self.chain.size:
                waiting += [part[self.chain.size :], part[: self.chain.size]]
                continue
            error = None
            try:
                found = self.chain.scan(
                    [image for _, image, _ in part], [self.cases.case[i] for i, _, _ in part]
                )
            except Exception as reason:  # one bad case must not end a run of hours
                # Without its frames, which hold on to the memory that ran out.
                error = reason.with_traceback(None)
            if error is None:
                for (index, _, mark), numbers in zip(part, found, strict=True):
                    if isinstance(numbers, CaseOutputs):
                        yield index, replace(numbers, image=mark)
                    else:
                        yield index, numbers
            elif is_out_of_memory(error) and self.chain.size > 1:
                self.chain = replace(self.chain, size=self.chain.size // 2)
                _release_memory()
                waiting.append(part)
            elif len(part) > 1:
                middle = len(part) // 2
                waiting += [part[middle:], part[:middle]]
            else:
                yield part[0][0], error
        if self.chain.size < before and self.log is not None:
            self.log.write("out of memory", batch=self.chain.size)
