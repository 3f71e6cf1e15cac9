"""ResNet backbones, and VGG-16."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from taskuq._config import Channels, Depth, check_ranges
from taskuq.errors import InputError
from taskuq.training._weights import load_tensors, read_card, read_pickled, read_tensors


class _Bottleneck(nn.Module):
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


def _read_imagenet(network: nn.Module, path: Path | str) -> None:
    path = Path(path)
    if path.suffix == ".safetensors":
        state = read_tensors(path)
    else:
        state = read_pickled(path, "torchvision's file")
        if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
            raise InputError(f"{path} is not a state dict of torchvision", code="file.format")
    load_tensors(network, {k: v for k, v in state.items() if not k.startswith("fc.")}, path)


class _SmallResNet(nn.Module):
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
        maps = self.blocks(functional.relu(self.norm(self.stem(images))))
        return torch.cat([maps.mean((-2, -1)), maps.amax((-2, -1))], dim=1)


class _Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(after)
        self.shortcut: nn.Module = nn.Identity()
        if before != after or stride != 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        return functional.relu(y + self.shortcut(x))


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class BackboneConfig:
    """Convolutional layers of a task network.

    Args:
        kind: ``"resnet50"`` (three equal channels, normalised as for ImageNet) or ``"small"`` (one
            channel).
        width: Channels of the first stage of the small network.
        blocks: Residual blocks of each stage of the small network.

    Example:
        >>> BackboneConfig(kind="small", width=16).blocks
        (2, 2, 2, 2)
    """

    kind: Literal["resnet50", "small"] = "resnet50"
    width: Channels = 32
    blocks: tuple[Depth, ...] = (2, 2, 2, 2)

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.blocks:
            raise InputError("backbone.blocks is empty; add stages", code="value.invalid")


class Backbone(nn.Module):
    mean: Tensor
    std: Tensor

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.config = config
        self.is_imagenet = config.kind == "resnet50"
        self.body: nn.Module
        if self.is_imagenet:
            self.body, self.features = _ResNet50(), 2048
        else:
            self.body = small = _SmallResNet(1, config.width, config.blocks)
            self.features = small.features
        # Constants of the architecture, not weights: they are not stored.
        for name, values in (("mean", IMAGENET_MEAN), ("std", IMAGENET_STD)):
            self.register_buffer(name, torch.tensor(values)[:, None, None], persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        x = images[:, None]
        if self.is_imagenet:
            x = (x - self.mean) / self.std
        features: Tensor = self.body(x)
        return features


@dataclass(frozen=True)
class InitConfig:
    """Settings of [init_from]: file of initial weights, at most one; default: random weights."""

    simclr: Path | None = None  #: Weights from SimCLR pre-training.
    imagenet: Path | None = None  #: torchvision weights of a ResNet-50.
    classifier: Path | None = None  #: Weights of a classifier, including its head.

    def __post_init__(self) -> None:
        if sum(path is not None for path in (self.simclr, self.imagenet, self.classifier)) > 1:
            raise InputError("init_from has several files; name one", code="option.conflict")

    def fill(self, backbone: Backbone) -> None:
        if self.imagenet is not None:
            if not backbone.is_imagenet:
                text = "init_from.imagenet needs a resnet50; remove it"
                raise InputError(text, code="option.unused")
            _read_imagenet(backbone.body, self.imagenet)
        if self.simclr is not None:
            read_card(self.simclr, ("simclr",))
            state = {k.partition("."): v for k, v in read_tensors(self.simclr).items()}
            shared = {k[2]: v for k, v in state.items() if k[0] == "backbone"}
            load_tensors(backbone, shared, self.simclr)


_LAYERS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)


class VGG16(nn.Module):
    """VGG-16 up to its last hidden layer, with 4096 features per image."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for outputs in _LAYERS:
            if not outputs:
                layers.append(nn.MaxPool2d(2))
                continue
            layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.ReLU(inplace=True)]
            channels = outputs
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        # The last layer is only there so that a public state dict fits.
        self.classifier = nn.Sequential(
            nn.Linear(49 * channels, 4096), nn.ReLU(inplace=True), nn.Identity(),
            nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Identity(), nn.Linear(4096, 1000),
        )  # fmt: skip

    def forward(self, images: Tensor, data_range: Tensor) -> Tensor:
        """Return features (image, feature) of magnitude images (image, height, width)."""
        unit = (images / data_range.view(-1, 1, 1))[:, None].expand(-1, 3, -1, -1)
        mean, std = (unit.new_tensor(v).view(1, 3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
        pooled = self.avgpool(self.features((unit - mean) / std)).flatten(1)
        hidden: Tensor = self.classifier[:5](pooled)
        return hidden


def load_vgg(path: Path | str) -> VGG16:
    # Random numbers for 138 million weights that are overwritten at once would take seconds.
    with torch.device("meta"):
        net = VGG16()
    net = net.to_empty(device="cpu")
    load_tensors(net, read_tensors(path), path)
    return net.eval()
