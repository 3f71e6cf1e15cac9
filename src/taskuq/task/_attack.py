"""Projected-gradient attack."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from taskuq._config import Count, NonNegative, Positive, Size, check_ranges
from taskuq.errors import InputError
from taskuq.task._classifier import Classifier, eval_mode


@dataclass(frozen=True)
class AttackConfig:
    r"""Settings of a projected-gradient attack; the defaults are the paper's.

    A given radius is a stronger attack on a smaller image, so the radius is scaled with the square
    root of the number of pixels.

    Args:
        radius: Largest :math:`\ell_2` norm of a perturbation; 0 for no attack.
        reference_size: Rows and columns to which the radius refers.
        steps: Number of gradient steps.
        step_size: Length of one step relative to the radius; all steps together must reach the
            radius.

    Example:
        >>> AttackConfig().radius_for(128, 128)
        0.6
    """

    radius: NonNegative = 1.5
    reference_size: Size = 320
    steps: Count = 10
    step_size: Positive = 0.25

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.steps * self.step_size < 1:
            text = f"attack.steps * step_size must be at least 1 (the radius), got {self}"
            raise InputError(text, code="value.invalid")

    def radius_for(self, height: int, width: int) -> float:
        """Return the radius for images of a given size."""
        return self.radius * math.sqrt(height * width) / self.reference_size


def l2_pgd(
    loss: Callable[[Tensor], Tensor], images: Tensor, *, radius: float, steps: int, step: float
) -> Tensor:
    r"""Perturb images within an :math:`\ell_2` ball to increase a loss."""
    x = images.detach()
    for _ in range(steps):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(loss(x).sum(), x)
        change = x.detach() + step * gradient / _norm(gradient) - images
        change = change * (radius / _norm(change)).clamp(max=1)
        x = (images + change).clamp(0, 1)
    return x.detach()


def adversarial_images(
    network: Classifier, scaled: Tensor, targets: Tensor, config: AttackConfig
) -> Tensor:
    radius = config.radius_for(*scaled.shape[-2:])
    if radius == 0:
        return scaled.detach()

    def loss(images: Tensor) -> Tensor:
        raw = network.raw(images).float()
        if network.config.output == "probability":
            return ((1 - 2 * targets) * raw).sum(1)
        return (raw - targets).square().sum(1)

    with eval_mode(network):
        step = config.step_size * radius
        return l2_pgd(loss, scaled, radius=radius, steps=config.steps, step=step)


def _norm(images: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(images, dim=(-2, -1), keepdim=True)
    return norm.clamp_min(torch.finfo(norm.dtype).tiny)
