"""Task networks for classification and regression."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Literal

import torch
from torch import Tensor, nn

from taskuq._config import BelowOne, Channels, check_ranges
from taskuq.errors import InputError
from taskuq.task._backbone import Backbone, BackboneConfig
from taskuq.task._cases import require_images, unit_scale

RANGES = {"probability": (0.0, 1.0), "real": None, "positive": (0.0, math.inf)}


@dataclass(frozen=True)
class ClassifierConfig:
    """Layers and outputs of a task network; the defaults are the paper's.

    Args:
        backbone: Convolutional layers.
        hidden: Widths of the layers between features and outputs.
        dropout: Fraction of features dropped in training.
        tasks: Name of each output.
        output: ``"probability"`` (sigmoid), ``"real"`` (regression) or ``"positive"``
            (regression of a non-negative quantity such as an area, by its logarithm).
        units: Unit of each output, e.g. ``["mm²"]``; default: none.

    Example:
        >>> ClassifierConfig().hidden
        (256, 128)
    """

    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    hidden: tuple[Channels, ...] = (256, 128)
    dropout: BelowOne = 0.2
    tasks: tuple[str, ...] = ("finding",)
    output: Literal["probability", "real", "positive"] = "probability"
    units: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.tasks or len(set(self.tasks)) != len(self.tasks):
            text = f"network.tasks must be different names, got {list(self.tasks)}"
            raise InputError(text, code="value.invalid")
        if self.units and (len(self.units) != len(self.tasks) or self.output == "probability"):
            message = f"network.units must be one per real output, got {self.units}"
            raise InputError(message, code="option.conflict")
        check_ranges(self)


class Classifier(nn.Module):
    r"""Task network :math:`f`: images to one or several scalar outputs.

    .. math:: f(x) = \varsigma\big(\mathrm{MLP}(\mathrm{backbone}(\tilde x))\big)

    :math:`\tilde x` is the image scaled to [0, 1]. :math:`\varsigma` is a sigmoid; for regression,
    :math:`\mu + s\,\cdot` with mean :math:`\mu` and standard deviation :math:`s` of the training
    targets; for non-negative targets, :math:`\mu\, (e^{\max(\cdot, 0)} - 1)`.

    Args:
        config: Layers and outputs; default: the paper's.

    Example:
        >>> net = Classifier(ClassifierConfig(BackboneConfig("small", width=4))).eval()
        >>> images = torch.rand(3, 32, 32)
        >>> net(images).shape
        torch.Size([3])
        >>> bool(torch.allclose(net(images), net(50 * images + 7), atol=1e-5))
        True
    """

    shift: Tensor
    spread: Tensor

    def __init__(self, config: ClassifierConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or ClassifierConfig()
        self.backbone = Backbone(config.backbone)
        self.dropout = nn.Dropout(config.dropout)
        layers: list[nn.Module] = []
        widths = (self.backbone.features, *config.hidden, len(config.tasks))
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.head = nn.Sequential(*layers[:-1])
        self.register_buffer("shift", torch.zeros(len(config.tasks)))
        self.register_buffer("spread", torch.ones(len(config.tasks)))

    @property
    def range(self) -> tuple[float, float] | None:
        """Smallest and largest possible output, or None for unbounded outputs."""
        return RANGES[self.config.output]

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the outputs with their units; None for one probability."""
        tasks, units = self.config.tasks, self.config.units
        if self.config.output == "probability" and len(tasks) == 1:
            return None
        return tuple(f"{n} ({u})" if u else n for n, u in zip_longest(tasks, units, fillvalue=""))

    def forward(self, images: Tensor) -> Tensor:
        """Map magnitude images (image, height, width) to outputs (image,) or (image, task)."""
        require_images(images)
        outputs = self.outputs(self.raw(unit_scale(images)))
        return outputs[:, 0] if len(self.config.tasks) == 1 else outputs

    def raw(self, scaled: Tensor) -> Tensor:
        """Map images in [0, 1] to logits or standardised outputs, (image, task)."""
        values: Tensor = self.head(self.dropout(self.backbone(scaled)))
        return values

    def inside(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return raw and final outputs, both (image, task), and the last hidden features."""
        hidden = self.head[:-1](self.dropout(self.backbone(unit_scale(images))))
        raw = self.head[-1](hidden)
        return raw, self.outputs(raw), hidden

    def outputs(self, raw: Tensor) -> Tensor:
        """Map raw outputs to probabilities or to quantities in their units."""
        raw = raw.float()
        if self.config.output == "probability":
            return raw.sigmoid()
        if self.config.output == "positive":
            return self.shift * torch.expm1(raw.clamp_min(0))
        return self.shift + self.spread * raw

    def standardised(self, targets: Tensor) -> Tensor:
        """Map targets in their units to the scale of raw outputs, (image, task)."""
        if self.config.output == "probability":
            return targets
        if self.config.output == "positive":
            return torch.log1p(targets / self.shift)
        return (targets - self.shift) / self.spread


@contextmanager
def eval_mode(network: nn.Module) -> Iterator[None]:
    """Run a network in evaluation mode, then restore its mode."""
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)
