"""The one place where measurement, recovery and task meet: y = h(x), x̂ = g(y), ẑ = f(x̂)."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from taskuq.checks import as_array, is_tensor, no_gradients
from taskuq.errors import InputError
from taskuq.interval import FloatArray
from taskuq.protocols import BatchRecover, Measure, Recover, StoredRecoveries, Task
from taskuq.seeds import case_seed
from taskuq.words import round_label


@dataclass(frozen=True)
class CaseOutputs:
    r"""The numbers of one case.

    Arguments:
        targets: :math:`z = f(x)`, (task,).
        outputs: :math:`\hat z`, (round, sample, task), in single precision as a table keeps them.
        image: A fingerprint of the image they are of; empty where it is no array.
    """

    targets: FloatArray
    outputs: FloatArray
    image: str = ""


def true_image(image: Any) -> Any:
    r"""Return the image a task sees: coil images are combined, others stay as they are.

    .. math:: |w| = \sqrt{\textstyle\sum_b |x_b|^2}

    Arguments:
        image: Complex coil images (coil, height, width), or a real image (height, width).

    Example:
        >>> true_image(np.full((4, 2, 2), 3j)).tolist()
        [[6.0, 6.0], [6.0, 6.0]]
    """
    if not (image.is_complex() if is_tensor(image) else np.iscomplexobj(image)):
        return image
    magnitude = abs(image)
    return (magnitude**2).sum(-3) ** 0.5 if image.ndim > 2 else magnitude


@dataclass(frozen=True)
class Chain:
    r"""Measurement, recovery and task with everything that decides their numbers.

    Cases run together when the recovery is a :class:`taskuq.protocols.BatchRecover`. Batches are
    always full: a short one is filled up with its last case. Arithmetic on a batch may depend on
    how many cases it holds, never on which, so that for one ``size`` a case gives the same bits
    whatever runs beside it.

    Arguments:
        measure: :math:`h`.
        recover: :math:`g`, or recoveries that were made elsewhere.
        task: :math:`f`.
        accelerations: The rounds.
        samples: Posterior samples per case and round.
        seed: The seed of the run.
        size: How many cases run at once.
        device: Where tensors are put before they are measured; where they are by default.
        round_names: What rounds are called, where they have names.

    Example:
        >>> chain = Chain(
        ...     measure=lambda image, acceleration: image[:: int(acceleration)],
        ...     recover=lambda y, *, samples, seed: np.tile(np.resize(y, 8), (samples, 1)),
        ...     task=lambda images: images.mean(axis=1),
        ...     accelerations=(4, 2), samples=3, seed=0,
        ... )
        >>> (found,) = chain.scan([np.ones(8)], ["a"])
        >>> found.outputs.shape, found.targets
        ((2, 3, 1), array([1.]))
    """

    measure: Measure
    recover: Recover | StoredRecoveries
    task: Task
    accelerations: Sequence[float]
    samples: int
    seed: int
    size: int = 1
    device: str | None = None
    round_names: tuple[str, ...] | None = None

    def at(self, R: float) -> str:
        """Say at which round, by its name or its acceleration."""
        k = list(self.accelerations).index(R)
        return f"at {round_label(R, None if self.round_names is None else self.round_names[k])}"

    def place(self, image: Any) -> Any:
        """Put a tensor on the device; an array stays as it is."""
        is_elsewhere = self.device is not None and is_tensor(image)
        return image.to(self.device, non_blocking=True) if is_elsewhere else image

    def scan(self, images: Sequence[Any], names: Sequence[str]) -> list[CaseOutputs | InputError]:
        """Measure, recover and read images of one shape at every acceleration, all at once.

        Arguments:
            images: The true images, at most ``size`` of them.
            names: The identity of each, which its seeds depend on.
        """
        assert 1 <= len(images) <= self.size
        with no_gradients():
            known = [true_image(image) for image in images]
            with naming("task", f"{_said(names)}, the true image"):
                targets = self._read(_stack(self._full(known)), "on the true image")
            rounds = [self._round(images, names, R, targets.shape[-1]) for R in self.accelerations]
        counts = {read.shape[1] for read in rounds}
        if len(counts) > 1:
            raise InputError(f"the recovery gave {sorted(counts)} samples in different rounds")
        outputs = np.stack(rounds, axis=1)
        return [self._case(targets[k], outputs[k]) for k in range(len(images))]

    def target(self, image: Any) -> FloatArray:
        """Return what the task reads off one true image, (task,)."""
        with no_gradients():
            return np.asarray(self._read(_stack([image]), "on the true image")[0])

    def drawn(self, image: Any, name: str, R: float) -> Any:
        """Return the recoveries of one case in a round, where cases run one by one."""
        return self._recoveries([image], [name], R)

    def _round(
        self, images: Sequence[Any], names: Sequence[str], R: float, tasks: int
    ) -> FloatArray:
        """Return the numbers of one round, (case, sample, task)."""
        recoveries = self._recoveries(images, names, R)
        self._require_shape(images[0], recoveries, R)
        with naming("task", f"{_said(names)} {self.at(R)}"):
            read = self._read(recoveries, self.at(R))
        if len(read) not in (self.size, self.size * self.samples) or read.shape[1] != tasks:
            raise InputError(
                f"the task gave {read.shape} numbers {self.at(R)}; {self.samples} samples of "
                f"{tasks} tasks are needed for {self.size} cases"
            )
        return read.reshape(self.size, -1, tasks)

    def _require_shape(self, image: Any, recoveries: Any, R: float) -> None:
        """Refuse recoveries of another shape than the image that the task sees as the truth."""
        truth, found = tuple(true_image(image).shape), tuple(np.shape(recoveries)[1:])
        if truth != found:
            raise InputError(
                f"recoveries {self.at(R)} have shape {found}, but the true image has {truth}, and "
                "the task has to see both alike; let the recovery return (sample, height, width), "
                "or give images of one channel"
            )

    def _recoveries(self, images: Sequence[Any], names: Sequence[str], R: float) -> Any:
        """Return the recoveries of one round, the samples of all cases one after the other."""
        if isinstance(self.recover, StoredRecoveries):
            # Found by the name of the case, whatever would be measured.
            return _like(images[0], self.recover.stored(names[0], R, samples=self.samples))
        measurements = []
        for image, name in zip(images, names, strict=True):
            with naming("measure", f"case {name} {self.at(R)}"):
                measurements.append(self.measure(image, R))
        measurements = self._full(measurements)
        seeds = self._full([case_seed(self.seed, name, R) for name in names])
        with naming("recover", f"{_said(names)} {self.at(R)}"):
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

    def _case(self, targets: FloatArray, outputs: FloatArray) -> CaseOutputs | InputError:
        with np.errstate(over="ignore"):
            kept = outputs.astype(np.float32)
        places = ["on the true image", *map(self.at, self.accelerations)]
        for where, numbers in zip(places, [targets, *kept], strict=True):
            if not np.isfinite(numbers).all():
                return InputError(f"the task {where} gave NaN or infinite numbers")
        return CaseOutputs(targets, kept)

    def _full(self, items: list[Any]) -> list[Any]:
        return items + items[-1:] * (self.size - len(items))


@contextmanager
def naming(part: str, whom: str) -> Iterator[None]:
    """Note on an error of a user's part in which line of it, and for which case, it arose.

    Arguments:
        part: What was called: measure, recover or task.
        whom: For which case in which round.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        line = users_line(error)
        error.add_note(f"in {part}{line and f', {line}'}, {whom}")
        raise


def users_line(error: BaseException) -> str:
    """Say in which line of the user's own code an error arose; nothing where that is not known.

    The innermost line that belongs neither to this package nor to an installed one.
    """
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
