"""How task networks are trained: losses, views, attacks, and which weights are best."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from taskuq.task.attack import AttackConfig, attacked
from taskuq.task.augment import AugmentConfig, augment
from taskuq.task.cases import unit_scale
from taskuq.task.classifier import Classifier
from taskuq.task.metrics import auroc
from taskuq.task.simclr import ContrastiveConfig, ContrastiveNetwork, nt_xent
from taskuq.training.recipe import Batch, Recipe, mean_summary


def classifier_recipe(
    network: Classifier, views: AugmentConfig, attack: AttackConfig, weights: Tensor
) -> Recipe:
    r"""Train a task network on attacked views of its images.

    .. math:: \min_\theta\; \mathbb E\, \max_{\|\delta\|_2 \le \epsilon}
              w_z\, \ell\big(f_\theta(\tilde x + \delta), z\big)

    :math:`\ell` is the cross entropy (for regression the Huber loss of standardised numbers),
    :math:`\tilde x` a view of the image between 0 and 1, :math:`\epsilon` the radius of the attack
    and :math:`w_z` the weight of the class.

    References:
        Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks, ICLR 2018.

    Arguments:
        network: The task network.
        views: How far a view is from its image.
        attack: Radius and steps; radius 0 trains on the views as they are.
        weights: Weights of the classes 0 and 1 of each task, (task, 2).

    Returns:
        What :func:`taskuq.training.fit.fit` trains; judged by AUROC, regression by its loss.

    Example:
        >>> from taskuq.task import build
        >>> net = build("classifier", preset="tiny")
        >>> classifier_recipe(net, AugmentConfig(), AttackConfig(), torch.ones(1, 2)).monitor
        'auroc'
    """

    def loss(net: nn.Module, batch: Batch, generator: torch.Generator) -> Tensor:
        net = cast("Classifier", net)
        targets = _standardised(net, batch["target"])
        images = unit_scale(augment(unit_scale(batch["image"]), views, generator))
        images = attacked(net, images, targets, attack)
        return _losses(net, net.raw(images), targets, weights).mean()

    def validate(net: nn.Module, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        net = cast("Classifier", net)
        raw = net.raw(unit_scale(batch["image"]))
        values = {"loss": _losses(net, raw, _standardised(net, batch["target"]), weights)}
        # Engines gather one number for each case and name.
        for k, (z, y) in enumerate(zip(net.outputs(raw).T, batch["target"].T, strict=True)):
            values |= {f"output_{k}": z.contiguous(), f"target_{k}": y.contiguous()}
        return values

    is_probability = network.config.output == "probability"
    return Recipe(
        kind="classifier",
        network=network,
        config=network.config,
        loss=loss,
        validate=validate,
        summary=_classifier_summary if is_probability else _regression_summary,
        monitor="auroc" if is_probability else "loss",
        mode="max" if is_probability else "min",
    )


def simclr_recipe(config: ContrastiveConfig, views: AugmentConfig) -> Recipe:
    """Train a backbone to tell images apart, whatever the view.

    Arguments:
        config: The size of the network.
        views: How far a view is from its image.

    Returns:
        What :func:`taskuq.training.fit.fit` trains; the least validation loss is best.

    Example:
        >>> from taskuq.task.backbone import BackboneConfig
        >>> small = ContrastiveConfig(BackboneConfig("small", width=4))
        >>> simclr_recipe(small, AugmentConfig()).mode
        'min'
    """

    def losses(net: nn.Module, batch: Batch, generator: torch.Generator, *, gather: bool) -> Tensor:
        scaled = unit_scale(batch["image"])
        both = [unit_scale(augment(scaled, views, generator)) for _ in range(2)]
        # One pass for both views: their batch statistics must not tell them apart.
        first, second = net(torch.cat(both)).chunk(2)
        return nt_xent(first, second, config.temperature, gather=gather)

    def validate(net: nn.Module, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        # Processes may hold different numbers of validation cases: each compares its own.
        return {"loss": losses(net, batch, generator, gather=False).reshape(2, -1).mean(0)}

    return Recipe(
        kind="simclr",
        network=ContrastiveNetwork(config),
        config=config,
        loss=lambda net, batch, generator: losses(net, batch, generator, gather=True).mean(),
        validate=validate,
    )


def class_weights(targets: NDArray[np.floating], balance: bool) -> Tensor:
    r"""The weight of each class in the loss.

    .. math:: w_c = \frac{n}{2 n_c}

    for :math:`n_c` of :math:`n` cases of class :math:`c`: both classes count alike, and the mean
    weight is 1.

    Arguments:
        targets: 0 or 1, (case, task).
        balance: Without it all weights are 1.

    Returns:
        Weights (task, 2).

    Example:
        >>> class_weights(np.array([[0.0], [0.0], [0.0], [1.0]]), balance=True)
        tensor([[0.6667, 2.0000]])
    """
    if not balance:
        return torch.ones(targets.shape[1], 2)
    positives = targets.mean(axis=0)
    weights = np.stack([0.5 / (1 - positives), 0.5 / positives], axis=1)
    return torch.as_tensor(weights, dtype=torch.float32)


def _standardised(net: Classifier, targets: Tensor) -> Tensor:
    return targets if net.config.output == "probability" else (targets - net.shift) / net.spread


def _losses(net: Classifier, raw: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """The loss of each case, mean over its tasks."""
    if net.config.output == "number":
        return functional.smooth_l1_loss(raw.float(), targets, reduction="none").mean(1)
    losses = functional.binary_cross_entropy_with_logits(raw.float(), targets, reduction="none")
    absent, present = weights.to(raw.device).T
    weighted: Tensor = losses * (absent + (present - absent) * targets)
    return weighted.mean(1)


def _classifier_summary(values: Mapping[str, Tensor]) -> dict[str, float]:
    tasks = sum(name.startswith("output_") for name in values)
    z, y = (
        [values[f"{name}_{k}"].double().cpu().numpy() for k in range(tasks)]
        for name in ("output", "target")
    )
    areas = [auroc(*pair) for pair in zip(z, y, strict=True)]
    return {"loss": float(values["loss"].double().mean()), "auroc": float(np.mean(areas))}


def _regression_summary(values: Mapping[str, Tensor]) -> dict[str, float]:
    tasks = sum(name.startswith("output_") for name in values)
    errors = [(values[f"output_{k}"] - values[f"target_{k}"]).abs() for k in range(tasks)]
    return mean_summary({"loss": values["loss"], "error": torch.stack(errors).mean(0)})
