"""ResNet-50 with torchvision's parameter names, and its ImageNet weights from a local file."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from taskuq.errors import InputError
from taskuq.weights.files import fill, read_pickled, read_tensors

FEATURES = 2048


class _Bottleneck(nn.Module):
    """Residual block of three convolutions, the last of which widens its input four times."""

    def __init__(self, before: int, width: int, stride: int, shortcut: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.act = nn.ReLU(inplace=True)
        self.downsample = shortcut

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.bn1(self.conv1(x)))
        y = self.act(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        out: Tensor = self.act(y)
        return out


def _stage(before: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    shortcut = nn.Sequential(
        nn.Conv2d(before, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
    )
    first = _Bottleneck(before, width, stride, shortcut)
    rest = [_Bottleneck(4 * width, width, 1, None) for _ in range(1, blocks)]
    return nn.Sequential(first, *rest)


class _ResNet50(nn.Module):
    """Three channels to 2048 features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.act = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(64, 64, 3, stride=1)
        self.layer2 = _stage(256, 128, 4, stride=2)
        self.layer3 = _stage(512, 256, 6, stride=2)
        self.layer4 = _stage(1024, 512, 3, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        x = self.maxpool(self.act(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        features: Tensor = self.avgpool(x).flatten(1)
        return features


def resnet50() -> nn.Module:
    """Make a ResNet-50 without its last layer: three channels to 2048 features.

    References:
        He et al., Deep Residual Learning for Image Recognition, CVPR 2016.

    Example:
        >>> sum(p.numel() for p in resnet50().parameters())
        23508032
    """
    return _ResNet50()


def read_imagenet(network: nn.Module, path: Path | str) -> None:
    """Fill a ResNet-50 from a state dict with torchvision's names, except for its last layer.

    Files .safetensors and .pth are read; no objects are unpickled.
    """
    path = Path(path)
    if path.suffix == ".safetensors":
        found = read_tensors(path)
    else:
        found = read_pickled(path, "torchvision's file")
        if not isinstance(found, dict) or not all(isinstance(v, Tensor) for v in found.values()):
            raise InputError(
                f"{path} holds no plain state dict; use torchvision's file", code="file.format"
            )
    fill(network, {k: v for k, v in found.items() if not k.startswith("fc.")}, path)
