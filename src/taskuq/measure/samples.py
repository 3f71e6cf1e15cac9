"""What posterior samples say about lines that are not measured yet, and about the task."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from taskuq.errors import InputError
from taskuq.interval import BoolArray
from taskuq.measure.greedy import Expected, FewNumbers, Spread, few_noise, ridge_noise
from taskuq.protocols import LineMeasure, Task

# What lines are measured for: the task by its gradient, by its outputs, or the image itself.
Aim = Literal["gradient", "outputs", "variance"]
AIMS: tuple[Aim, ...] = get_args(Aim)
RIDGE = 0.01


def spread_of(
    system: LineMeasure,
    measurement: Any,
    recoveries: Any,
    task: Task,
    measured: BoolArray,
    *,
    aim: Aim = "gradient",
    ridge: float = RIDGE,
) -> Expected:
    r"""Read off the samples of one case what each line would tell, and what it is asked for.

    The deviation of the task's output in sample :math:`j` is taken to first order,
    :math:`z_j = \langle \bar g, \delta_j \rangle`, by the mean :math:`\bar g` of the task's
    gradients at all samples (``"gradient"``; for a normal posterior this has the covariance with
    every line that the task itself has), or as it is (``"outputs"``).

    A line holds more numbers than there are samples, and as a whole it would seem to tell which
    mixture of the samples the image is. So only what matters for the task is looked at: one number
    for each task, :math:`\langle A_\ell d, A_\ell \delta_j \rangle` with :math:`d = \bar g`, or by
    ``"outputs"`` :math:`\langle q_\ell, A_\ell \delta_j \rangle` with the covariance
    :math:`q_\ell` of line and output among the other samples; lines for which these numbers fall
    where outputs rise are taken to tell nothing. Of several tasks, all count alike.

    For ``"variance"`` lines are taken as a whole and the aim is the whole image: the summed
    variance of all lines.

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
    if aim == "outputs" and len(images) < 3:
        raise InputError(
            f"{len(images)} samples are looked at, and by outputs each is compared with the "
            "others; give at least 3"
        )
    if aim not in AIMS:
        raise InputError(f"the aim is {aim!r}; choose from {', '.join(AIMS)}")
    slopes = mean_gradients(task, images) if aim == "gradient" else None
    with torch.no_grad():
        deviations = images - images.mean(0)
        held = torch.as_tensor(system.contents(deviations, measurement))
        if aim == "variance":
            grams = _inner(held) / (len(images) - 1)
            kept = grams.double().cpu().numpy()[None]
            return Spread(kept, kept.sum(axis=1), ridge_noise(kept, measured, ridge))
        if slopes is not None:
            z = deviations.flatten(1) @ slopes.flatten(1).T
            directions = torch.as_tensor(system.contents(slopes, measurement))
        else:
            z = torch.as_tensor(task(images)).reshape(len(images), -1).to(deviations)
            z = z - z.mean(0)
            directions = torch.einsum("ljn,jt->ltn", held, z.to(held.dtype))
        numbers = (held @ directions.mH).real
        if slopes is None:
            numbers = _without_itself(numbers, held, z)
    root = (len(images) - 1) ** 0.5
    told, outputs = (one.double().cpu().numpy()[None] / root for one in (numbers, z))
    return FewNumbers(told, outputs, few_noise(told, measured, ridge))


def _without_itself(told: Tensor, held: Tensor, z: Tensor) -> Tensor:
    r"""Let every sample be looked at in the direction that the others give, (line, sample, task).

    A line has more numbers than there are samples: in a direction that a sample has helped to find,
    it seems to agree with its output wherever one looks. By leaving sample :math:`j` out,
    :math:`q_\ell` loses :math:`\frac p{p-1} z_j h_\ell \delta_j`. Lines whose numbers then fall
    where outputs rise tell nothing.

    Arguments:
        told: Numbers in the direction of all samples, (line, sample, task).
        held: What lines hold of the samples, (line, sample, number).
        z: Deviations of outputs (sample, task).
    """
    share = len(z) / (len(z) - 1)
    own = held.abs().square().sum(2)
    found = told - share * own[..., None] * z
    return found * ((found * z).sum(1, keepdim=True) > 0)


def _inner(contents: Tensor) -> Tensor:
    """Real inner products between samples of each line, (line, sample, sample)."""
    rows = torch.view_as_real(contents).flatten(2) if contents.is_complex() else contents
    return rows @ rows.mT


def mean_gradients(task: Task, images: Tensor) -> Tensor:
    """Return the mean over samples of the gradient of each of the task's outputs, (task, ...).

    Arguments:
        task: The task; one without a gradient is refused.
        images: Samples (sample, ...).

    Example:
        >>> mean_gradients(lambda x: 3 * x.sum(1), torch.rand(4, 2))
        tensor([[3., 3.]])
    """
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
    return torch.stack(slopes)
