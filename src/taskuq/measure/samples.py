"""What posterior samples say about lines that are not measured yet, and about the task."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray
from taskuq.measure.greedy import Spread, ridge_noise
from taskuq.protocols import LineMeasure, Task

# What lines are measured for: the task by its gradient, by its outputs, or the image itself.
Aim = Literal["gradient", "outputs", "variance"]
AIMS: tuple[Aim, ...] = get_args(Aim)
RIDGE = 0.1


def spread_of(
    system: LineMeasure,
    measurement: Any,
    recoveries: Any,
    task: Task,
    measured: BoolArray,
    *,
    aim: Aim = "gradient",
    ridge: float = RIDGE,
) -> Spread:
    r"""Read off the samples of one case what each line would tell, and what it is asked for.

    The deviation of the task's output in sample :math:`j` is taken to first order,
    :math:`z_j = \langle \bar g, \delta_j \rangle`, by the mean :math:`\bar g` of the task's
    gradients at all samples (``"gradient"``; for a normal posterior this has the covariance with
    every line that the task itself has), or as it is (``"outputs"``). For ``"variance"`` the aim
    is the whole image: the summed variance of all lines. Of several tasks, all count alike.

    Arguments:
        system: Who measures.
        measurement: What the samples were recovered from.
        recoveries: Samples (sample, height, width), at least two.
        task: The task.
        measured: Which lines are measured already, booleans (line,).
        aim: What lines are measured for.
        ridge: How much noise stands for what few samples do not know
            (:func:`taskuq.measure.greedy.ridge_noise`).

    Example:
        >>> from taskuq.measure.centre import center_lines
        >>> from taskuq.measure.masks import nested_masks
        >>> from taskuq.measure.mri import MultiCoilMRI
        >>> scanner = MultiCoilMRI(nested_masks(16, (4, 2), rng=rng), accelerations=(4, 2))
        >>> first = center_lines(16, 4)
        >>> scan = scanner.take(torch.ones(1, 16, 16) + 0j, 4.0, first)
        >>> drawn = torch.ones(2, 16, 16)
        >>> drawn[1] += torch.cos(2 * torch.pi * torch.arange(16) * 5 / 16)  # columns 8 ± 5
        >>> spread = spread_of(scanner, scan, drawn, lambda x: x.square().mean((1, 2)), first)
        >>> spread.greedy(1, first)[0]
        [3]
    """
    images = torch.as_tensor(recoveries).detach()
    if len(images) < 2:
        raise InputError(
            f"{len(images)} sample is drawn, and lines are chosen by how samples differ; use a "
            "recovery that draws at least 2"
        )
    with torch.no_grad():
        contents = torch.as_tensor(system.contents(images, measurement))
        contents = contents - contents.mean(1, keepdim=True)
        grams = _inner(contents) / (len(images) - 1)
    kept = grams.double().cpu().numpy()[None]
    aims = _aim(task, images, aim, kept)
    return Spread(kept, aims, ridge_noise(kept, measured, ridge))


def _inner(contents: Tensor) -> Tensor:
    """Real inner products between samples of each line, (line, sample, sample)."""
    rows = torch.view_as_real(contents).flatten(2) if contents.is_complex() else contents
    return rows @ rows.mT


def _aim(task: Task, images: Tensor, aim: Aim, grams: FloatArray) -> FloatArray:
    """What is to become certain, (case, sample, sample)."""
    if aim == "variance":
        return np.asarray(grams.sum(axis=1))
    if aim not in AIMS:
        raise InputError(f"the aim is {aim!r}; choose from {', '.join(AIMS)}")
    if aim == "outputs":
        with torch.no_grad():
            z = torch.as_tensor(task(images)).reshape(len(images), -1).double()
    else:
        z = _first_order(task, images)
    z = (z - z.mean(0)).cpu()
    return (z @ z.T / (len(images) - 1)).numpy()[None]


def _first_order(task: Task, images: Tensor) -> Tensor:
    """Outputs to first order by the mean gradient, (sample, task)."""
    with torch.enable_grad():
        leaf = images.clone().requires_grad_()
        outputs = task(leaf)
        if not isinstance(outputs, Tensor) or not outputs.requires_grad:
            raise InputError(
                "the task has no gradient, so that lines cannot be chosen by it; choose the aim "
                "'outputs'"
            )
        outputs = outputs.reshape(len(leaf), -1)
        slopes = [
            torch.autograd.grad(outputs[:, k].sum(), leaf, retain_graph=True)[0].mean(0)
            for k in range(outputs.shape[1])
        ]
    deviations = (images - images.mean(0)).flatten(1)
    return (deviations @ torch.stack(slopes).flatten(1).T).double()
