"""Projected-gradient attack."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from taskuq.errors import InputError
from taskuq.task._classifier import Classifier, eval_mode


@dataclass(frozen=True)
class AttackConfig:
    r"""How images are attacked; the defaults are the paper's.

    A ball of one radius is a stronger attack on a smaller image. The radius is therefore meant for
    ``size`` rows and columns and scaled with the root of the number of pixels, which keeps the mean
    change of a pixel.

    Arguments:
        radius: The largest :math:`\ell_2` norm of a change; 0 does not attack.
        size: Rows and columns the radius is meant for.
        steps: Gradient steps.
        step: The length of one step, relative to the radius. All steps together must reach the
            radius, or it is never used up.

    Example:
        >>> AttackConfig().radius_for(128, 128)
        0.6
        >>> AttackConfig(step=1 / 30)  # ten steps of 0.05 reach 0.5 of 1.5
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: 10 steps of 0.0333 of the radius reach only 0.333 of it; ...
    """

    radius: float = 1.5
    size: int = 320
    steps: int = 10
    step: float = 0.25

    def __post_init__(self) -> None:
        if self.radius < 0 or self.size < 1 or self.steps < 1 or self.step <= 0:
            raise InputError(
                f"an attack of radius {self.radius} at size {self.size} with {self.steps} steps of "
                f"{self.step} is asked for; give no negative radius and positive numbers"
            )
        reach = self.steps * self.step
        if reach < 1:
            raise InputError(
                f"{self.steps} steps of {self.step:.3g} of the radius reach only {reach:.3g} of "
                "it; give more or longer steps"
            )

    def radius_for(self, height: int, width: int) -> float:
        """The radius for images of a size."""
        return self.radius * math.sqrt(height * width) / self.size


def l2_pgd(
    loss: Callable[[Tensor], Tensor], images: Tensor, *, radius: float, steps: int, step: float
) -> Tensor:
    r"""Change images within a ball so that a loss grows.

    .. math:: x_{t+1} = \Pi\Big(x_t + \eta\, \frac{\nabla \ell(x_t)}{\|\nabla \ell(x_t)\|_2}\Big)

    :math:`\Pi` projects on the :math:`\ell_2` ball of the given radius :math:`\epsilon` about the
    image and then on [0, 1]; the second projection does not leave the ball, because the image lies
    in [0, 1]. :math:`\eta` is the length of a step. There is no random start; the last iterate is
    returned.

    References:
        Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks, ICLR 2018.

    Arguments:
        loss: Images to the loss of each, (image,). The loss of one image must not depend on the
            others.
        images: Images in [0, 1], (image, height, width).
        radius: :math:`\epsilon`.
        steps: The number of steps.
        step: :math:`\eta`.

    Example:
        >>> gray = torch.full((1, 2, 2), 0.5)
        >>> attacked = l2_pgd(lambda x: x.sum((-2, -1)), gray, radius=0.2, steps=5, step=0.1)
        >>> attacked[0, 0, 0].item(), (attacked - gray).norm().item()  # evenly, to the edge
        (0.6000..., 0.2000...)
    """
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
    r"""Return images in [0, 1] that drive a task network away from its targets.

    For one probability the gradient of the cross entropy is a multiple of the logit's; steps are
    normalised, so that the margin :math:`(1 - 2 z) \cdot \text{logit}` gives the same attack and
    never vanishes where the network is sure of itself.

    Arguments:
        network: The task network; asked in evaluation mode, its own mode is put back.
        scaled: Images in [0, 1], (image, height, width).
        targets: What the network should say, (image, task); standardised for regression.
        config: Radius and steps.

    Example:
        >>> from taskuq.task import build
        >>> net, x = build("classifier", preset="tiny"), torch.rand(2, 32, 32)
        >>> worse = adversarial_images(net, x, torch.zeros(2, 1), AttackConfig())
        >>> bool(((worse - x).flatten(1).norm(dim=1) <= 0.15 + 1e-6).all())
        True
    """
    radius = config.radius_for(*scaled.shape[-2:])
    if radius == 0:
        return scaled.detach()

    def loss(images: Tensor) -> Tensor:
        raw = network.raw(images).float()
        if network.config.output == "probability":
            return ((1 - 2 * targets) * raw).sum(1)
        return (raw - targets).square().sum(1)

    with eval_mode(network):
        return l2_pgd(loss, scaled, radius=radius, steps=config.steps, step=config.step * radius)


def _norm(images: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(images, dim=(-2, -1), keepdim=True)
    return norm.clamp_min(torch.finfo(norm.dtype).tiny)
