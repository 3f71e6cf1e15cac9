"""A small residual network for small images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class SmallResNet(nn.Module):
    """Residual blocks of two 3×3 convolutions; each stage halves the image and doubles the width.

    Small findings fill a few pixels: the mean over the image alone would drown them, so that
    features are the mean and the maximum of the last stage.

    References:
        He et al., Deep Residual Learning for Image Recognition, CVPR 2016.

    Arguments:
        channels: Channels of the input.
        width: Channels of the first stage.
        blocks: Residual blocks of each stage.

    Example:
        >>> SmallResNet(1, width=8, blocks=(1, 1))(torch.ones(2, 1, 32, 32)).shape
        torch.Size([2, 32])
    """

    def __init__(self, channels: int, width: int, blocks: Sequence[int]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 5, stride=2, padding=2, bias=False)
        self.norm = nn.BatchNorm2d(width)
        layers: list[nn.Module] = []
        before = width
        for stage, count in enumerate(blocks):
            after = width << stage
            for k in range(count):
                layers.append(_Block(before, after, stride=2 if k == 0 and stage > 0 else 1))
                before = after
        self.blocks = nn.Sequential(*layers)
        self.features = 2 * before

    def forward(self, images: Tensor) -> Tensor:
        """Images (image, channel, height, width) to features (image, feature)."""
        maps = self.blocks(functional.relu(self.norm(self.stem(images))))
        return torch.cat([maps.mean((-2, -1)), maps.amax((-2, -1))], dim=1)


class _Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(after)
        same = before == after and stride == 1
        self.shortcut: nn.Module = nn.Identity()
        if not same:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        return functional.relu(y + self.shortcut(x))
