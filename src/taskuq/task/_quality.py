"""Full-reference image quality as a task: PSNR, SSIM, NMSE, LPIPS, DISTS or any function."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from taskuq.errors import InputError
from taskuq.measure._coils import ssim
from taskuq.task._cases import require_images

if TYPE_CHECKING:
    from collections.abc import Iterator

# In decibels, also for equal images.
LARGEST_PSNR = 100.0


class _FullReference(ABC):
    r"""Quality :math:`m(\hat x, x)` of a reported image; called with samples, of their mean."""

    @property
    @abstractmethod
    def names(self) -> tuple[str]: ...

    @abstractmethod
    def _compare(self, reported: Tensor, images: Tensor) -> Tensor:
        """Return the quality of one image, repeated, against images (image, height, width)."""

    def compare(self, reported: Any, images: Any) -> Tensor:
        """Return the quality of a reported image (height, width) against each image, (image,)."""
        images = require_images(images)
        # Macs have no double precision on their GPU.
        images = (images.cpu() if images.device.type == "mps" else images).double()
        given = torch.as_tensor(reported).to(images)
        if given.shape != images.shape[1:]:
            text = f"the reported image is {tuple(given.shape)}, others {tuple(images.shape[1:])}"
            raise InputError(f"{text}; pass equal sizes", code="shape.mismatch")
        return self._compare(given.expand_as(images), images)

    def __call__(self, images: Any) -> Tensor:
        """Return the quality of the mean of samples (sample, height, width) against each."""
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
    """Structural similarity with windows of 7×7 pixels and the reference's maximum as range."""

    names = ("SSIM",)
    range = (-1.0, 1.0)

    def _compare(self, reported: Tensor, images: Tensor) -> Tensor:
        if min(images.shape[1:]) < 7:
            text = f"SSIM needs images of at least 7×7 pixels, got {tuple(images.shape[1:])}"
            raise InputError(text, code="shape.mismatch")
        return ssim(reported, images, _peak(images)).clamp(-1.0, 1.0)


@dataclass(frozen=True)
class NMSE(_FullReference):
    """Squared error over the squared norm of the reference."""

    names = ("NMSE",)
    range = (0.0, math.inf)

    def _compare(self, reported: Tensor, images: Tensor) -> Tensor:
        norm = images.square().sum((-2, -1))
        error = (reported - images).square().sum((-2, -1))
        return error / torch.where(norm > 0, norm, 1.0)


@dataclass(frozen=True)
class _Perceptual(_FullReference):
    """Distance in features of VGG-16, by the library piq; images are scaled by the reference."""

    weights: Path | None = None  #: Folder of torch.hub, with the weights files in checkpoints/.
    range = (0.0, math.inf)

    @cached_property
    def _metric(self) -> Any:
        (name,) = self.names
        files = ("vgg16-397923af.pth", f"{name.lower()}_weights.pt")
        folder = None if self.weights is None else self.weights / "checkpoints"
        if folder is None or not all((folder / file).is_file() for file in files):
            text = f"task.weights of {name} is {self.weights}; name a folder of torch.hub with"
            raise InputError(f"{text} checkpoints/{files[0]} and {files[1]}", code="file.missing")
        try:
            import piq
        except ImportError:
            text = f"{name} needs piq and torchvision; install taskuq[perceptual]"
            raise InputError(text, code="dependency.missing") from None
        with _hub(folder.parent):
            return getattr(piq, name)(reduction="none")

    def _compare(self, reported: Tensor, images: Tensor) -> Tensor:
        peak = _peak(images)[:, None, None]
        scaled = [(x / peak).clamp(0, 1).float() for x in (reported, images)]
        three = [x[:, None].expand(-1, 3, -1, -1) for x in scaled]
        with torch.no_grad():
            return torch.as_tensor(self._metric.to(images.device)(*three)).double().reshape(-1)

    def open(self, device: torch.device | str) -> _Perceptual:
        _ = self._metric  # refused here, before anything is recovered
        return self


class LPIPS(_Perceptual):
    """Learned perceptual image patch similarity, a distance."""

    names = ("LPIPS",)


class DISTS(_Perceptual):
    """Deep image structure and texture similarity, a distance."""

    names = ("DISTS",)


@contextmanager
def _hub(folder: Path) -> Iterator[None]:
    """Take files of torch.hub from a folder; those that exist are not downloaded."""
    before = torch.hub.get_dir()
    torch.hub.set_dir(str(folder))
    try:
        yield
    finally:
        torch.hub.set_dir(before)


@dataclass(frozen=True, eq=False)
class ImageQuality(_FullReference):
    r"""Image quality by any function of two images, as a task.

    .. math:: \hat z^{(j)} = m(\hat x, \tilde x^{(j)}), \qquad z = m(\hat x, x)

    :math:`\hat x`, the mean of the samples :math:`\tilde x^{(j)}`, is the image that is reported;
    :math:`x` is the true one. The target depends on the round.

    Args:
        function: :math:`m`, called with the reported image and another, (height, width) each.
        name: Name of the output.
        range: Smallest and largest value, if there are any.

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
