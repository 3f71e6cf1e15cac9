"""The VGG-16 network as a source of image features, with weights from a file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from taskuq.weights.files import load_weights

_LAYERS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class VGG16(nn.Module):
    """VGG-16 up to its last hidden layer: 4096 features of an image.

    Parameter names are torchvision's. Magnitude images are divided by the data range they come
    with, shown as three equal channels and normalised as ImageNet is.

    References:
        Simonyan and Zisserman, Very Deep Convolutional Networks, ICLR 2015.

    Arguments:
        width: A factor on all widths; 1 is the published network.

    Example:
        >>> VGG16(width=1 / 64)(torch.rand(2, 64, 64), torch.ones(2)).shape
        torch.Size([2, 64])
    """

    def __init__(self, width: float = 1.0) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for outputs in _LAYERS:
            if not outputs:
                layers.append(nn.MaxPool2d(2))
                continue
            wide = max(1, int(outputs * width))
            layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.ReLU(inplace=True)]
            channels = wide
        hidden, classes = int(4096 * width), max(1, int(1000 * width))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        # The last layer is only there so that a public state dict fits.
        self.classifier = nn.Sequential(
            nn.Linear(49 * channels, hidden),
            nn.ReLU(inplace=True),
            nn.Identity(),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Identity(),
            nn.Linear(hidden, classes),
        )

    def forward(self, images: Tensor, data_range: Tensor) -> Tensor:
        """Features (image, feature) of magnitude images (image, height, width)."""
        unit = (images / data_range.view(-1, 1, 1))[:, None].expand(-1, 3, -1, -1)
        mean, std = (unit.new_tensor(v).view(1, 3, 1, 1) for v in (_MEAN, _STD))
        pooled = self.avgpool(self.features((unit - mean) / std)).flatten(1)
        hidden: Tensor = self.classifier[:5](pooled)
        return hidden


def load_vgg(path: Path | str) -> VGG16:
    """Return VGG-16 with weights from a safetensors file of torchvision's names."""
    # Random numbers for 138 million weights that are overwritten at once would take seconds.
    with torch.device("meta"):
        net = VGG16()
    net = net.to_empty(device="cpu")
    load_weights(net, path)
    return net.eval()
