"""Full-reference image quality as a task: PSNR, SSIM, NMSE, LPIPS, DISTS or any function."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from taskuq.errors import InputError
from taskuq.measure._coils import ssim
from taskuq.task._backbone import load_vgg
from taskuq.task._cases import require_images

# In decibels, also for equal images.
LARGEST_PSNR = 100.0


class _FullReference(ABC):
    r"""Task whose output is the quality :math:`m(\hat x, x)` of the mean of the samples."""

    @property
    @abstractmethod
    def names(self) -> tuple[str]: ...

    @abstractmethod
    def _compare(self, reported: Tensor, images: Tensor) -> Tensor:
        """Return the quality of each reported image relative to its reference in ``images``."""

    def compare(self, reported: Any, images: Any) -> Tensor:
        """Return the quality of a reported image relative to each of several images, (image,)."""
        images = require_images(images)
        # Macs have no double precision on their GPU.
        images = (images.cpu() if images.device.type == "mps" else images).double()
        given = torch.as_tensor(reported).to(images)
        if given.shape != images.shape[1:]:
            text = f"the reported image is {tuple(given.shape)}, others {tuple(images.shape[1:])}"
            raise InputError(f"{text}; pass equal sizes", code="shape.mismatch")
        return self._compare(given.expand_as(images), images)

    def __call__(self, images: Any) -> Tensor:
        """Return the quality of the samples' mean relative to each sample, (sample,)."""
        images = require_images(images)
        return self.compare(images.mean(0), images)

    def open(self, device: torch.device | str) -> _FullReference:
        return self


def _peak(images: Tensor) -> Tensor:
    """Return the maximum of each image, (image,); 1 for images without signal."""
    peak = images.amax((-2, -1))
    return torch.where(peak > 0, peak, 1.0)


@dataclass(frozen=True)
class PSNR(_FullReference):
    """Peak signal-to-noise ratio in dB, at most 100; the peak is the reference's maximum."""

    names = ("PSNR (dB)",)

    def _compare(self, reported: Tensor, images: Tensor) -> Tensor:
        error = (reported - images).square().mean((-2, -1)) / _peak(images) ** 2
        return -10 * torch.log10(error.clamp_min(10 ** (-LARGEST_PSNR / 10)))


@dataclass(frozen=True)
class SSIM(_FullReference):
    """Structural similarity with 7×7 windows; the data range is the reference's maximum."""

    names = ("SSIM",)
    range = (-1.0, 1.0)

    def _compare(self, reported: Tensor, images: Tensor) -> Tensor:
        if min(images.shape[1:]) < 7:
            text = f"SSIM needs images of at least 7×7 pixels, got {tuple(images.shape[1:])}"
            raise InputError(text, code="shape.mismatch")
        return ssim(reported, images, _peak(images)).clamp(-1.0, 1.0)


@dataclass(frozen=True)
class NMSE(_FullReference):
    """Squared error divided by the squared norm of the reference."""

    names = ("NMSE",)
    range = (0.0, math.inf)

    def _compare(self, reported: Tensor, images: Tensor) -> Tensor:
        norm = images.square().sum((-2, -1))
        return (reported - images).square().sum((-2, -1)) / torch.where(norm > 0, norm, 1.0)


@dataclass(frozen=True)
class _Perceptual(_FullReference):
    """Distance between VGG-16 features; both images are divided by the reference's maximum."""

    weights: Path | None = None  #: VGG-16 weights, converted from torchvision to safetensors.
    range = (0.0, math.inf)

    @cached_property
    def _network(self) -> nn.Module:
        (name,) = self.names
        if self.weights is None or not self.weights.is_file():
            text = f"weights of {name} are {self.weights}; name a file of VGG-16 (.safetensors)"
            raise InputError(text, code="file.missing")
        return perceptual_network(name, load_vgg(self.weights).features)

    def _compare(self, reported: Tensor, images: Tensor) -> Tensor:
        (name,) = self.names
        if min(images.shape[1:]) < 16:
            text = f"{name} needs images of at least 16×16 pixels, got {tuple(images.shape[1:])}"
            raise InputError(text, code="shape.mismatch")
        return perceptual_distance(self._network.to(images.device), reported, images)

    def open(self, device: torch.device | str) -> _Perceptual:
        _ = self._network  # refused here, before anything is recovered
        return self


def perceptual_distance(network: nn.Module, reported: Tensor, images: Tensor) -> Tensor:
    """Return the distance of each reported image from its reference in ``images``, (image,)."""
    peak = _peak(images)[:, None, None]
    unit = [(x / peak).clamp(0, 1).float()[:, None] for x in (reported, images)]
    with torch.no_grad():
        found = network(*(x.expand(-1, 3, -1, -1) for x in unit))
    # Equal images may differ by a rounding error below 0.
    return torch.as_tensor(found).double().reshape(-1).clamp_min(0)


def perceptual_network(name: str, features: nn.Sequential) -> nn.Module:
    """Return the LPIPS or DISTS network of torchmetrics, built on the given VGG-16 features."""
    try:
        from torchmetrics.functional.image import dists, lpips
    except (ImportError, RuntimeError):  # a torchvision of another torch raises the second
        text = f"{name} needs torchmetrics 1.8 or later; install taskuq[perceptual]"
        raise InputError(text, code="dependency.missing") from None
    # Both build on torchvision's VGG-16 and download its weights.
    vgg = SimpleNamespace(features=features)
    own: dict[str, Any] = {"_TORCHVISION_AVAILABLE": True, "vgg16": lambda **_: vgg}
    own["VGG16_Weights"] = SimpleNamespace(DEFAULT=None)
    with (
        patch.object(lpips, "_get_tv_model_features", lambda *_: features),
        patch.multiple(dists, create=True, **own),
    ):
        network = dists.DISTSNetwork() if name == "DISTS" else lpips._LPIPS(net="vgg")
    if name == "LPIPS":
        network.register_forward_pre_hook(_centred)
    return network.eval()


def _centred(network: nn.Module, images: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(2 * image - 1 for image in images)


class LPIPS(_Perceptual):
    """Learned perceptual image patch similarity, a distance."""

    names = ("LPIPS",)


class DISTS(_Perceptual):
    """Deep image structure and texture similarity, a distance."""

    names = ("DISTS",)


@dataclass(frozen=True, eq=False)
class ImageQuality(_FullReference):
    r"""Image quality by any function of two images, as a task.

    .. math:: \hat z^{(j)} = m(\hat x, \tilde x^{(j)}), \qquad z = m(\hat x, x)

    :math:`\hat x`, the mean of the samples :math:`\tilde x^{(j)}`, is the reported image;
    :math:`x` is the true one. As :math:`\hat x` differs between rounds, so does the target.

    Args:
        function: :math:`m`, called with the reported image and another, (height, width) each.
        name: Name of the output.
        range: Smallest and largest possible value, if any.

    Example:
        >>> task = ImageQuality(lambda reported, image: float(abs(reported - image).max()))
        >>> task.compare(torch.zeros(2, 2), torch.ones(3, 2, 2))
        tensor([1., 1., 1.], dtype=torch.float64)
    """

    function: Callable[[Any, Any], Any]
    name: str = "image quality"
    range: tuple[float, float] | None = None

    @property
    def names(self) -> tuple[str]:
        return (self.name,)

    def _compare(self, reported: Tensor, images: Tensor) -> Tensor:
        values = [self.function(x, y) for x, y in zip(reported, images, strict=True)]
        if any(np.ndim(value) for value in values):
            shape = np.shape(values[0])
            text = f"the function of two images returned {shape}; return one number"
            raise InputError(text, code="component.invalid")
        return torch.tensor([float(value) for value in values], dtype=torch.float64)
