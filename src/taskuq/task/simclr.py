"""The network of self-supervised pre-training: a backbone and a projection."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from taskuq.errors import InputError
from taskuq.task.backbone import Backbone, BackboneConfig


@dataclass(frozen=True)
class ContrastiveConfig:
    """A contrastive network; the defaults are the paper's.

    Arguments:
        backbone: The part that the classifier starts from afterwards.
        hidden: Width of the layer between features and embedding.
        embedding: Numbers in an embedding.
        temperature: The temperature of the loss.

    Example:
        >>> ContrastiveConfig().temperature
        0.07
    """

    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    hidden: int = 512
    embedding: int = 128
    temperature: float = 0.07

    def __post_init__(self) -> None:
        if self.temperature <= 0 or self.hidden < 1 or self.embedding < 1:
            raise InputError(
                f"temperature is {self.temperature}, hidden {self.hidden} and embedding "
                f"{self.embedding}; give positive numbers"
            )


class ContrastiveNetwork(nn.Module):
    """Images between 0 and 1 to embeddings.

    Arguments:
        config: Its layers.

    Example:
        >>> import torch
        >>> small = ContrastiveConfig(BackboneConfig("small", width=4), hidden=8, embedding=5)
        >>> ContrastiveNetwork(small)(torch.rand(2, 32, 32)).shape
        torch.Size([2, 5])
    """

    def __init__(self, config: ContrastiveConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = Backbone(config.backbone)
        self.projection = nn.Sequential(
            nn.Linear(self.backbone.features, config.hidden),
            nn.ReLU(),
            nn.Linear(config.hidden, config.embedding),
        )

    def forward(self, scaled: Tensor) -> Tensor:
        """Images (image, height, width) in [0, 1] to embeddings (image, feature)."""
        embeddings: Tensor = self.projection(self.backbone(scaled))
        return embeddings
