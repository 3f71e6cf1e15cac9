"""Executor of recovery g and task f, and precomputed reconstructions."""

from __future__ import annotations

import copy
import math
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from taskuq._arrays import as_array, as_real_array, is_tensor, no_grad, require_nested_lines
from taskuq._io import open_npz, reading, require_plausible_size, safe_join
from taskuq._seeds import case_seed
from taskuq.errors import InputError, first_line
from taskuq.interval import BoolArray, FloatArray
from taskuq.protocols import (
    AdaptiveMeasure,
    BatchRecover,
    FullReferenceTask,
    Measure,
    Recover,
    StoredRecover,
    Task,
    declared_fingerprint,
)
from taskuq.table._terminology import round_label

T = TypeVar("T")


@dataclass
class DeadlineWorker:
    """Runner of computations that raises TimeoutError at a deadline."""

    deadline: float | None = None
    _late: threading.Thread | None = field(default=None, init=False, repr=False)

    def run(self, compute: Callable[[], T], *, hurry: bool = True) -> T:
        if self._late is not None:
            self._late.join(self.deadline if hurry else None)
            if self._late.is_alive():
                raise TimeoutError("the recovery of an earlier round is still running")
            self._late = None
        if self.deadline is None or not hurry:
            return compute()
        result: Future[T] = Future()

        def work() -> None:
            try:
                result.set_result(compute())
            except BaseException as error:
                result.set_exception(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(self.deadline)
        if thread.is_alive():
            self._late = thread
            raise TimeoutError(f"recovery and task took longer than {self.deadline:g} s")
        return result.result()


def component_name(component: Any) -> str:
    kind = component if hasattr(component, "__qualname__") else type(component)
    return declared_fingerprint(component) or str(kind.__qualname__)


@dataclass(frozen=True)
class Executor:
    """Executor of a recovery g and a task f; both are called nowhere else."""

    recover: Recover | StoredRecover
    task: Task
    seed: int = 0
    fingerprints: Mapping[str, str] = field(default_factory=dict)  # of networks that declare none
    worker: DeadlineWorker = field(default_factory=DeadlineWorker)
    lock: AbstractContextManager[Any] = field(default_factory=nullcontext)  # one call at a time
    on_samples: Callable[[Any, int], None] | None = None  # called with samples and their seed

    def fingerprint(self, name: str) -> str:
        """Return the fingerprint of 'recover' or 'task', or an empty string."""
        return self.fingerprints.get(name, "") or declared_fingerprint(getattr(self, name))

    def name(self, name: str) -> str:
        """Return the fingerprint of 'recover' or 'task' or, without one, the name of the class."""
        return self.fingerprints.get(name, "") or component_name(getattr(self, name))

    def sample(self, measurement: Any, case: str, acceleration: float, samples: int) -> Any:
        return self.sample_with_seed(measurement, samples, case_seed(self.seed, case, acceleration))

    def sample_with_seed(self, measurement: Any, samples: int, seed: int) -> Any:
        assert not isinstance(self.recover, StoredRecover), "needs no measurement"
        with self.lock, no_grad():
            recoveries = self.recover(measurement, samples=samples, seed=seed)
        if self.on_samples is not None:
            self.on_samples(recoveries, seed)
        return recoveries

    def sample_batch(
        self, measurements: list[Any], cases: Sequence[str], acceleration: float, samples: int
    ) -> Any:
        """Return the posterior samples of a batch of cases, (case * sample, ...)."""
        if len(measurements) == 1:
            return self.sample(measurements[0], cases[0], acceleration, samples)
        assert isinstance(self.recover, BatchRecover), "cases run one by one without it"
        seeds = [case_seed(self.seed, case, acceleration) for case in cases]
        with self.lock, no_grad():
            recoveries = self.recover.batch(
                measurements, samples=samples, seeds=_filled(seeds, len(measurements))
            )
        if len(recoveries) != len(measurements):
            text = f"recover.batch returned {len(recoveries)} cases for {len(measurements)}; "
            raise InputError(f"{text}return (case, sample, ...)", code="component.invalid")
        return recoveries.reshape(-1, *recoveries.shape[2:])

    def load(self, case: str, acceleration: float, samples: int, like: Any) -> Any:
        assert isinstance(self.recover, StoredRecover)
        recoveries = self.recover.load(case, acceleration, samples=samples)
        if not is_tensor(like):
            return recoveries
        import torch

        return torch.as_tensor(recoveries, device=like.device)

    def read(self, images: Any) -> Any:
        """Return the unvalidated task outputs of images, without gradients."""
        with self.lock, no_grad():
            return self.task(images)

    def outputs(self, images: Any) -> FloatArray:
        return as_real_array(self.read(images), "task outputs", ndim=(1, 2))

    def compare(self, reported: Any, images: Any) -> Any:
        assert isinstance(self.task, FullReferenceTask), "other tasks compare nothing"
        with self.lock, no_grad():
            return self.task.compare(reported, images)

    def cached_task(self, images: Any = None) -> CachedTask:
        """Return the task as a callable that computes the outputs of these images only once."""
        # Before the task, which may write into the images.
        memory = None if images is None else _memory(images)
        return CachedTask(self, None if images is None else _copied(self.read(images)), memory)


@dataclass(frozen=True, eq=False)
class CachedTask:
    """Task of an executor with cached outputs of one batch of samples; differentiable."""

    executor: Executor
    outputs: Any = None
    memory: tuple[Any, ...] | None = None

    def __call__(self, images: Any) -> Any:
        if self.memory is None or _memory(images) != self.memory:
            with self.executor.lock:
                return self.executor.task(images)
        return _copied(self.outputs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.executor.task, name)


def _copied(outputs: Any) -> Any:
    return outputs.clone() if hasattr(outputs, "clone") else copy.deepcopy(outputs)


def _memory(images: Any) -> tuple[Any, ...] | None:
    """Return an identifier of a tensor's memory and version, or None."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(images, torch.Tensor) or torch.is_grad_enabled():
        return None
    try:
        if torch.autograd.forward_ad.unpack_dual(images).tangent is not None:
            return None
        where = (images.device, images.data_ptr(), images.stride(), images._version)
    except RuntimeError:  # inside of a transform, sparse, or in inference mode
        return None
    return (*where, images.dtype, images.shape, images.is_conj(), images.is_neg())


def reference_image(image: Any) -> Any:
    """Return the magnitude of a complex image, coils combined; return a real image unchanged."""
    if not (image.is_complex() if is_tensor(image) else np.iscomplexobj(image)):
        return image
    magnitude = abs(image)
    return (magnitude**2).sum(-3) ** 0.5 if image.ndim > 2 else magnitude


@dataclass(frozen=True)
class CaseOutputs:
    targets: FloatArray
    outputs: FloatArray
    image: str = ""
    lines: BoolArray | None = None


@dataclass(frozen=True)
class RoundBatch:
    acceleration: float
    measurements: list[Any]
    images: Any
    lines: list[BoolArray] | None = None


@dataclass(frozen=True)
class CaseExecutor:
    """Executor that measures cases, reconstructs them in every round and runs the task."""

    measure: Measure
    executor: Executor
    accelerations: Sequence[float]
    samples: int
    size: int = 1
    device: str | None = None
    round_names: tuple[str, ...] | None = None

    def place(self, image: Any) -> Any:
        moves = self.device is not None and is_tensor(image)
        return image.to(self.device, non_blocking=True) if moves else image

    def run(self, images: Sequence[Any], names: Sequence[str]) -> list[CaseOutputs | InputError]:
        """Measure images of one shape, reconstruct them in all rounds, and run the task."""
        assert 1 <= len(images) <= self.size
        with no_grad():
            truth = [reference_image(image) for image in images]
        targets = None if self._compares else self._targets(truth, names)
        rounds, chosen, compared = [], [], []
        for batch in self.rounds(images, names):
            if targets is None:
                outputs, qualities = self._quality(batch, truth, names)
                rounds.append(outputs)
                compared.append(qualities)
            else:
                rounds.append(self._round(batch, truth[0], names, targets.shape[-1]))
            chosen.append(batch.lines)
        if targets is None:
            targets = np.stack(compared, axis=1)
        counts = {read.shape[1] for read in rounds}
        if len(counts) > 1:
            text = f"recover returned {sorted(counts)} samples by round; return the same number"
            raise InputError(text, code="component.invalid")
        outputs = np.stack(rounds, axis=1)
        found: list[CaseOutputs | InputError] = []
        for k, name in enumerate(names):
            each = [lines[k] for lines in chosen if lines is not None]
            found.append(self._case(name, targets[k], outputs[k], np.stack(each) if each else None))
        return found

    @cached_property
    def _compares(self) -> bool:
        return isinstance(self.executor.task, FullReferenceTask)

    def _targets(self, truth: list[Any], names: Sequence[str]) -> FloatArray:
        with self._blame("task", names):
            return self._read(_stack(_filled(truth, self.size)), "on the true image")

    def _quality(
        self, batch: RoundBatch, truth: list[Any], names: Sequence[str]
    ) -> tuple[FloatArray, FloatArray]:
        """Compare the mean of each case's samples with the samples and with the true image."""
        R, each = batch.acceleration, len(batch.images) // self.size
        self._require_shape(batch, truth[0])
        if each < 2:
            text = f"recover returned one image for {_listed(names)} {self._at(R)}; image quality "
            raise InputError(f"{text}needs samples to compare it with", code="component.invalid")
        outputs: list[FloatArray] = []
        targets: list[FloatArray] = []
        for k, true in enumerate(truth):
            own = batch.images[k * each : (k + 1) * each]
            reported = own.mean(0)
            with self._blame("task", names[k : k + 1], R):
                for images, found in ((own, outputs), (true[None], targets)):
                    compared = self.executor.compare(reported, images)
                    found.append(self._checked(compared, images, self._at(R)))
        return np.stack(outputs), np.stack(targets)[:, 0]

    def rounds(self, images: Sequence[Any], names: Sequence[str]) -> Iterator[RoundBatch]:
        rule = self.measure if isinstance(self.measure, AdaptiveMeasure) else None
        lines = None if rule is None else [rule.initial_lines() for _ in images]
        for k, R in enumerate(self.accelerations):
            batch = self._sample(images, names, R, lines)
            yield batch
            if rule is not None and lines is not None and k + 1 < len(self.accelerations):
                each = len(batch.images) // self.size
                for i, name in enumerate(names):
                    own = batch.images[i * each : (i + 1) * each]
                    with no_grad(), self._blame("next_lines", [name], R):
                        task, scan = self.executor.cached_task(), batch.measurements[i]
                        more = rule.next_lines(k, scan, own, task, lines[i].copy())
                    lines = [*lines[:i], require_nested_lines(more, lines[i], k), *lines[i + 1 :]]

    def target(self, image: Any) -> FloatArray:
        return np.asarray(self._read(_stack([image]), "on the true image")[0])

    @contextmanager
    def _blame(self, part: str, names: Sequence[str], R: float | None = None) -> Iterator[None]:
        """Add component, case, round and the user's source line to an error."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            ours = str(Path(__file__).resolve().parents[1])
            users = [
                frame
                for frame in traceback.extract_tb(error.__traceback__)
                if not frame.filename.startswith(ours) and "-packages" not in frame.filename
            ]
            line = f", {Path(users[-1].filename).name} line {users[-1].lineno}" if users else ""
            where = ", the true image" if R is None else f" {self._at(R)}"
            error.add_note(f"in {part}{line}, {_listed(names)}{where}")
            raise

    def _at(self, R: float) -> str:
        k = list(self.accelerations).index(R)
        return f"at {round_label(R, None if self.round_names is None else self.round_names[k])}"

    def _round(self, batch: RoundBatch, truth: Any, names: Sequence[str], tasks: int) -> FloatArray:
        R = batch.acceleration
        self._require_shape(batch, truth)
        with self._blame("task", names, R):
            outputs = self._read(batch.images, self._at(R))
        if len(outputs) not in (self.size, self.size * self.samples):
            text = f"recover returned {len(outputs) / self.size:g} images for {_listed(names)} "
            text += f"{self._at(R)}; return {self.samples} samples or one estimate"
            raise InputError(text, code="component.invalid")
        if outputs.shape[1] != tasks:
            text = f"the task returned {outputs.shape[1]} outputs {self._at(R)}, {tasks} on the "
            raise InputError(f"{text}true image of {_listed(names)}", code="component.invalid")
        return outputs.reshape(self.size, -1, tasks)

    def _require_shape(self, batch: RoundBatch, truth: Any) -> None:
        shape, at = tuple(np.shape(batch.images)[1:]), self._at(batch.acceleration)
        if tuple(truth.shape) != shape:
            text = f"recover returned images of shape {shape} {at}, the true image has "
            text += f"{tuple(truth.shape)}; return (sample, height, width)"
            raise InputError(text, code="component.invalid")

    def _sample(
        self, images: Sequence[Any], names: Sequence[str], R: float, lines: list[BoolArray] | None
    ) -> RoundBatch:
        if isinstance(self.executor.recover, StoredRecover):
            return RoundBatch(R, [], self.executor.load(names[0], R, self.samples, images[0]))
        measurements = []
        with no_grad():
            for i, (image, name) in enumerate(zip(images, names, strict=True)):
                with self._blame("measure", [name], R):
                    if lines is not None and isinstance(self.measure, AdaptiveMeasure):
                        measurements.append(self.measure.measure_lines(image, R, lines[i]))
                    else:
                        measurements.append(self.measure(image, R))
        with self._blame("recover", names, R):
            recoveries = self.executor.sample_batch(
                _filled(measurements, self.size), names, R, self.samples
            )
        return RoundBatch(R, measurements, recoveries, lines)

    def _read(self, images: Any, where: str) -> FloatArray:
        return self._checked(self.executor.read(images), images, where)

    def _checked(self, read: Any, images: Any, where: str) -> FloatArray:
        outputs = as_array(read, f"the task {where}")
        is_real = outputs.dtype.kind in "fiub" and outputs.ndim in (1, 2)
        if not is_real or len(outputs) != len(images):
            text = f"the task {where} returned {outputs.dtype} values of shape {outputs.shape} for "
            text += f"{len(images)} images; return one row of real numbers for each"
            raise InputError(text, code="component.invalid")
        return (outputs[:, None] if outputs.ndim == 1 else outputs).astype(float)

    def _case(
        self, name: str, targets: FloatArray, outputs: FloatArray, lines: BoolArray | None
    ) -> CaseOutputs | InputError:
        with np.errstate(over="ignore"):
            stored = outputs if self._compares else outputs.astype(np.float32)
        for k, values in enumerate([targets, *stored]):
            if not np.isfinite(values).all():
                where = self._at(self.accelerations[k - 1]) if k else "on the true image"
                text = f"the task {where} of case {name} returned NaN or infinity; check the task"
                return InputError(text, code="value.nonfinite")
        return CaseOutputs(targets, stored, lines=lines)


def _filled(items: list[T], size: int) -> list[T]:
    return items + items[-1:] * (size - len(items))


def _listed(names: Sequence[str]) -> str:
    return f"case {names[0]}" if len(names) == 1 else f"cases {', '.join(names)[:80]}"


def _stack(images: list[Any]) -> Any:
    if is_tensor(images[0]):
        import torch

        return torch.stack(images)
    return np.stack(images)


def pick_device(device: str | None) -> str:
    import torch

    if device is None:
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        text = f"device {device!r} cannot be used here ({first_line(error)}); try cpu"
        raise InputError(text, code="dependency.missing") from None
    return device


def num_threads() -> int | None:
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


def peak_host_bytes() -> int:
    try:
        status = Path("/proc/self/status").read_text()
        (line,) = (row for row in status.splitlines() if row.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    except (OSError, ValueError):
        # The last resort: on Linux a program starts with the peak of its parent.
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


ENDINGS = (".npz", ".npy", ".nii.gz", ".nii")


@dataclass(frozen=True)
class RecoveryFolder:
    """Recovery method that reads precomputed reconstructions from a folder.

    The samples of case ``a`` at R = 8 are in one file, ``a/R8.npz``, or in a folder ``a/R8/`` with
    one file per sample, ordered by name. Files are .npz (one array), .npy, .nii or .nii.gz.
    Arrays are (sample, height, width), or (height, width) for one sample. NIfTI volumes are
    (x, y, sample); each image is rotated by 90 degrees, as are NIfTI images of data sets. Complex
    values are replaced by their magnitude.

    Args:
        path: Folder of the reconstructions.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "a").mkdir()
        >>> np.savez(folder / "a/R8.npz", recoveries=np.ones((4, 16, 16)))
        >>> RecoveryFolder(folder).load("a", 8.0, samples=4).shape
        (4, 16, 16)
    """

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        if not self.path.is_dir():
            raise InputError(f"there is no folder {self.path}; check it", code="file.missing")

    def load(self, case: str, acceleration: float, *, samples: int) -> np.ndarray:
        """Return the samples of a case at an acceleration, (sample, height, width).

        Extra samples are ignored; too few raise InputError, except for a single point estimate.
        """
        stem = safe_join(self.path, f"{case}/R{acceleration:g}")
        if stem.is_dir():
            names = sorted(p.name for p in stem.iterdir() if p.name.endswith(ENDINGS))
            parts = [_read(safe_join(self.path, f"{stem}/{name}")) for name in names]
            if len({part.shape[1:] for part in parts}) > 1:
                raise InputError(f"recoveries in {stem} differ in size", code="shape.mismatch")
            found = np.concatenate(parts) if parts else np.empty((0, 0, 0))
        else:
            files = [path for end in ENDINGS if (path := Path(f"{stem}{end}")).is_file()]
            if len(files) != 1:
                text = f"{len(files)} files hold recoveries of {case} at R = {acceleration:g}; "
                text += f"store one of {stem}.npz, .npy, .nii.gz or .nii"
                raise InputError(text, code="file.missing")
            found = _read(safe_join(self.path, str(files[0])))
        if len(found) != 1 and len(found) < samples:
            text = f"{stem} has {len(found)} samples, {samples} are needed"
            raise InputError(text, code="samples.mismatch")
        return found[:samples]


def _read(path: Path) -> np.ndarray:
    with reading(path, "recoveries", "make it again"):
        array = _nifti(path) if path.name.endswith((".nii", ".nii.gz")) else _numpy(path)
    if array.dtype.kind not in "fiubc" or array.ndim not in (2, 3):
        text = f"{path} must hold numbers (sample, height, width), got {array.dtype} {array.shape}"
        raise InputError(text, code="shape.axes")
    array = array if array.ndim == 3 else array[None]
    # In the order of memory: tensors cannot be made of a volume that was turned.
    return np.ascontiguousarray(abs(array) if array.dtype.kind == "c" else array, dtype=np.float32)


def _numpy(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        # Mapped: an array that claims more than the file holds is refused before memory is taken.
        return np.array(np.load(path, allow_pickle=False, mmap_mode="r"))
    with open_npz(path, "recoveries") as arrays:
        names = list(arrays)
        name = "recoveries" if "recoveries" in names else names[0] if len(names) == 1 else None
        if name is None:
            found = ", ".join(names) or "none"
            raise InputError(f"{path} has no array recoveries, got {found}", code="file.format")
        return arrays[name]


def _nifti(path: Path) -> np.ndarray:
    import nibabel

    image: Any = nibabel.load(path)
    require_plausible_size(path, math.prod(map(int, image.shape)) * image.get_data_dtype().itemsize)
    volume = np.asarray(image.dataobj)
    # As taskuq.data turns slices: the first axis runs from left to right.
    turned = np.rot90(volume)
    return np.moveaxis(turned, -1, 0) if volume.ndim == 3 else turned
