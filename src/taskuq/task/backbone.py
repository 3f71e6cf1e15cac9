"""From an image between 0 and 1 to features: what classifier and contrastive network share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from taskuq.errors import InputError
from taskuq.task.resnet50 import FEATURES, resnet50
from taskuq.task.small import SmallResNet

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class BackboneConfig:
    """The convolutional part of a task network.

    Arguments:
        kind: ``"resnet50"`` (three equal channels, normalised as ImageNet is) or ``"small"`` (one
            channel).
        width: Channels of the first stage of the small network.
        blocks: Residual blocks of each stage of the small network.

    Example:
        >>> BackboneConfig(kind="small", width=16).blocks
        (2, 2, 2, 2)
    """

    kind: Literal["resnet50", "small"] = "resnet50"
    width: int = 32
    blocks: tuple[int, ...] = (2, 2, 2, 2)

    def __post_init__(self) -> None:
        if self.width < 1 or not self.blocks or min(self.blocks) < 1:
            raise InputError(
                f"a backbone of width {self.width} and blocks {list(self.blocks)} is asked for; "
                "give a width and numbers of blocks above 0"
            )


class Backbone(nn.Module):
    """Images between 0 and 1 to features.

    Arguments:
        config: Which network.

    Example:
        >>> net = Backbone(BackboneConfig("small", width=4))
        >>> net(torch.rand(2, 32, 32)).shape
        torch.Size([2, 64])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.config = config
        self.body: nn.Module
        if config.kind == "resnet50":
            self.body, self.features = resnet50(), FEATURES
        else:
            self.body = small = SmallResNet(1, config.width, config.blocks)
            self.features = small.features
        # Constants of the architecture, not weights: they are not stored with them.
        for name, values in (("mean", IMAGENET_MEAN), ("std", IMAGENET_STD)):
            self.register_buffer(name, torch.tensor(values)[:, None, None], persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Images (image, height, width) in [0, 1] to features (image, feature)."""
        x = images[:, None]
        if self.config.kind == "resnet50":
            x = (x - self.mean) / self.std
        features: Tensor = self.body(x)
        return features
