"""The one place where measurement, recovery and task meet: y = h(x), x̂ = g(y), ẑ = f(x̂)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskuq.checks import as_array, as_numbers
from taskuq.errors import InputError
from taskuq.interval import FloatArray
from taskuq.pipeline.seeds import case_seed
from taskuq.protocols import Measure, Recover, Task


@dataclass(frozen=True)
class CaseOutputs:
    r"""The numbers of one case.

    Arguments:
        targets: :math:`z = f(x)`, (task,).
        outputs: :math:`\hat z`, (round, sample, task).
    """

    targets: FloatArray
    outputs: FloatArray


def true_image(image: Any) -> Any:
    r"""Return the image a task sees: coil images are combined, others stay as they are.

    .. math:: |w| = \sqrt{\textstyle\sum_b |x_b|^2}

    Arguments:
        image: Complex coil images (coil, height, width), or a real image (height, width).

    Example:
        >>> true_image(np.full((4, 2, 2), 3j)).tolist()
        [[6.0, 6.0], [6.0, 6.0]]
    """
    is_complex = image.is_complex() if hasattr(image, "is_complex") else np.iscomplexobj(image)
    if not is_complex:
        return image
    magnitude = abs(image)
    return (magnitude**2).sum(-3) ** 0.5 if image.ndim > 2 else magnitude


def scan_case(
    measure: Measure,
    recover: Recover,
    task: Task,
    image: Any,
    *,
    case: str,
    accelerations: Sequence[float],
    samples: int,
    seed: int,
) -> CaseOutputs:
    """Measure, recover and read one image at every acceleration.

    Arguments:
        measure: :math:`h`.
        recover: :math:`g`.
        task: :math:`f`.
        image: The true image.
        case: Its identity, which the seeds depend on.
        accelerations: The rounds.
        samples: Posterior samples per round.
        seed: The seed of the run.

    Example:
        >>> def measure(image, acceleration):
        ...     return image[:: int(acceleration)]
        >>> def recover(measurement, *, samples, seed):
        ...     noise = np.random.default_rng(seed).standard_normal((samples, 1))
        ...     return measurement.mean() + 0.1 * noise
        >>> def task(images):
        ...     return images.reshape(len(images), -1).mean(axis=1)
        >>> found = scan_case(measure, recover, task, np.ones(8), case="a",
        ...                   accelerations=(4, 2), samples=3, seed=0)
        >>> found.outputs.shape, found.targets
        ((2, 3, 1), array([1.]))
    """
    targets = _numbers(task(true_image(image)[None]), "the task on the true image", 1)[0]
    outputs = []
    for R in accelerations:
        recoveries = recover(measure(image, R), samples=samples, seed=case_seed(seed, case, R))
        read = _numbers(task(recoveries), f"the task at R = {R:g}", None)
        if len(read) not in (1, samples) or read.shape[1] != len(targets):
            raise InputError(
                f"the task gave {read.shape} numbers at R = {R:g}; {samples} samples of "
                f"{len(targets)} tasks are needed"
            )
        outputs.append(read)
    counts = {len(read) for read in outputs}
    if len(counts) > 1:
        raise InputError(f"the recovery gave {sorted(counts)} samples in different rounds")
    return CaseOutputs(targets, np.stack(outputs))


def _numbers(values: Any, name: str, images: int | None) -> FloatArray:
    """Task results as (image, task), refused when they are not finite numbers."""
    found = as_numbers(as_array(values, name), name, ndim=(1, 2))
    found = found[:, None] if found.ndim == 1 else found
    if images is not None and len(found) != images:
        raise InputError(f"{name} gave {len(found)} results for {images} image")
    return found
