"""The one place where measurement, recovery and task meet: y = h(x), x̂ = g(y), ẑ = f(x̂)."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from taskuq.checks import as_array, is_tensor, no_gradients, require_lines
from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray
from taskuq.protocols import (
    BatchRecover,
    ChoosingMeasure,
    Measure,
    Recover,
    StoredRecoveries,
    Task,
)
from taskuq.seeds import case_seed
from taskuq.words import round_label


@dataclass(frozen=True)
class CaseOutputs:
    r"""The numbers of one case.

    Arguments:
        targets: :math:`z = f(x)`, (task,).
        outputs: :math:`\hat z`, (round, sample, task), in single precision as a table keeps them.
        image: A fingerprint of the image they are of; empty where it is no array.
        lines: What each round measured, booleans (round, line), where a rule chose it.
    """

    targets: FloatArray
    outputs: FloatArray
    image: str = ""
    lines: BoolArray | None = None


@dataclass(frozen=True)
class Recovered:
    """What a round gave of some cases.

    Arguments:
        acceleration: The round's.
        measurements: What was measured of each; nothing where recoveries were made elsewhere.
        images: The recoveries, the samples of all cases one after the other.
        lines: What was measured of each, booleans (line,), where a rule chose it.
    """

    acceleration: float
    measurements: list[Any]
    images: Any
    lines: list[BoolArray] | None = None


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

    def rounds(self, images: Sequence[Any], names: Sequence[str]) -> Iterator[Recovered]:
        """Measure and recover images of one shape, round by round.

        Where a rule chooses, it is replayed: each case's next lines follow from its own samples.

        Arguments:
            images: The true images, at most ``size`` of them.
            names: The identity of each.
        """
        rule = self.measure if isinstance(self.measure, ChoosingMeasure) else None
        lines = None if rule is None else [rule.first() for _ in images]
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
        self, rule: ChoosingMeasure, k: int, found: Recovered, own: slice, i: int, name: str
    ) -> BoolArray:
        """The lines of one case in the round after round k."""
        assert found.lines is not None, "a rule chose them"
        with naming("choose", f"case {name} {self.at(found.acceleration)}"):
            more = rule.choose(
                k, found.measurements[i], found.images[own], self.task, found.lines[i].copy()
            )
        return require_lines(more, found.lines[i], k)

    def target(self, image: Any) -> FloatArray:
        """Return what the task reads off one true image, (task,)."""
        with no_gradients():
            return np.asarray(self._read(_stack([image]), "on the true image")[0])

    def _outputs(
        self, found: Recovered, image: Any, names: Sequence[str], tasks: int
    ) -> FloatArray:
        """Return the numbers of one round, (case, sample, task)."""
        R = found.acceleration
        self._require_shape(image, found.images, R)
        with naming("task", f"{_said(names)} {self.at(R)}"):
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
        truth, found = tuple(true_image(image).shape), tuple(np.shape(recoveries)[1:])
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
    ) -> Recovered:
        """Measure and recover one round."""
        if isinstance(self.recover, StoredRecoveries):
            # Found by the name of the case, whatever would be measured.
            found = self.recover.stored(names[0], R, samples=self.samples)
            return Recovered(R, [], _like(images[0], found))
        measurements = []
        for i, (image, name) in enumerate(zip(images, names, strict=True)):
            with naming("measure", f"case {name} {self.at(R)}"):
                if lines is not None and isinstance(self.measure, ChoosingMeasure):
                    measurements.append(self.measure.take(image, R, lines[i]))
                else:
                    measurements.append(self.measure(image, R))
        return Recovered(R, measurements, self._recoveries(measurements, names, R), lines)

    def _recoveries(self, measurements: list[Any], names: Sequence[str], R: float) -> Any:
        """Return the recoveries of one round, the samples of all cases one after the other."""
        assert not isinstance(self.recover, StoredRecoveries), "they need no measurement"
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
    """What each round measured of a case, (round, line), where a rule chose it."""
    each = [lines[k] for lines in chosen if lines is not None]
    return np.stack(each) if each else None


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
