"""From the zero-filled image to one condition for each layer of the flow."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

SLOPE = 0.01


class ConditionStage(nn.Module):
    """Halve the size, refine by a residual block, and mix channels.

    Arguments:
        inputs: Channels in.
        channels: Channels out.

    Example:
        >>> import torch
        >>> ConditionStage(8, 4)(torch.zeros(2, 8, 16, 16)).shape
        torch.Size([2, 4, 8, 8])
    """

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(inputs, channels, 3, stride=2, padding=1)
        self.residual = nn.Sequential(
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(2 * channels, 2 * channels, 3, padding=1),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(2 * channels, channels, 1),
        )
        self.norm = nn.BatchNorm2d(channels)
        self.mix = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (case, inputs, height, width) to (case, channels, height / 2, width / 2)."""
        x = self.down(x)
        x = F.leaky_relu(self.norm(x + self.residual(x)), SLOPE)
        mixed: Tensor = self.mix(x)
        return mixed


class ConditionNet(nn.Module):
    """A chain of stages; each stage's output conditions one layer and feeds the next stage.

    Arguments:
        inputs: Channels in: the U-Net's features, and the images themselves where ``direct``.
        channels: Channels of every condition.
        layers: The number of layers of the flow.

    Example:
        >>> import torch
        >>> [tuple(c.shape) for c in ConditionNet(8, 4, layers=2)(torch.zeros(2, 8, 16, 16))]
        [(2, 4, 8, 8), (2, 4, 4, 4)]
    """

    def __init__(self, inputs: int, channels: int, *, layers: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            ConditionStage(inputs if i == 0 else channels, channels) for i in range(layers)
        )

    def forward(self, features: Tensor) -> list[Tensor]:
        """Return one condition for each layer, the finest first."""
        conditions = []
        for stage in self.stages:
            features = stage(features)
            conditions.append(features)
        return conditions
