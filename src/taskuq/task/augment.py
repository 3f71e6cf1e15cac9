"""Random views of images: flip, rotate, shift, zoom, contrast, blur, on whatever device."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from taskuq.errors import InputError
from taskuq.seeds import numbers_of_cases


@dataclass(frozen=True)
class AugmentConfig:
    """How far a view may be from its image; the defaults are the paper's for the classifier.

    The paper's brightness jitter is not here: images are scaled to [0, 1] afterwards, which undoes
    it.

    Arguments:
        flip: The probability of a left-right flip.
        rotation: The largest rotation, in degrees.
        shift: The largest shift, as a share of the image.
        crop: The smallest share of the area that a view shows, stretched to the whole.
        contrast: The largest exponent that grey values are raised to, less 1; 0 leaves them.
        blur: The largest standard deviation of a Gaussian blur, in pixels; 0 does not blur.
        share: The share of images whose contrast is changed.

    Example:
        >>> AugmentConfig().rotation
        15.0
    """

    flip: float = 0.5
    rotation: float = 15.0
    shift: float = 0.1
    crop: float = 0.8
    contrast: float = 0.0
    blur: float = 0.0
    share: float = 0.8

    def __post_init__(self) -> None:
        shares = (self.flip, self.shift, self.share)
        if not all(0 <= share <= 1 for share in shares) or not 0 < self.crop <= 1:
            raise InputError(
                f"flip {self.flip}, shift {self.shift}, share {self.share}, crop {self.crop}; "
                "give shares between 0 and 1, and a crop above 0"
            )
        if min(self.rotation, self.contrast, self.blur) < 0:
            raise InputError(
                f"rotation {self.rotation}, contrast {self.contrast}, blur {self.blur}; give no "
                "negative number"
            )


def augment(images: Tensor, config: AugmentConfig, generator: torch.Generator) -> Tensor:
    """Draw a random view of each image in [0, 1], black where it looks beyond the image.

    Arguments:
        images: Images in [0, 1], (image, height, width).
        config: How far a view may go.
        generator: Draws everything; on the images' device.

    Example:
        >>> still = AugmentConfig(flip=0, rotation=0, shift=0, crop=1)
        >>> x = torch.rand(2, 8, 8)
        >>> bool(torch.allclose(augment(x, still, torch.Generator()), x, atol=1e-6))
        True
    """

    def uniform(low: float, high: float) -> Tensor:
        draws = numbers_of_cases(torch.rand, (len(images),), generator, device=images.device)
        return low + (high - low) * draws

    flips = uniform(0, 1) < config.flip
    angles = uniform(-config.rotation, config.rotation) * (math.pi / 180)
    shifts = uniform(-config.shift, config.shift), uniform(-config.shift, config.shift)
    # A crop of share s of the area shows sqrt(s) of each side, somewhere inside the image.
    side = uniform(config.crop, 1).sqrt()
    corners = uniform(-1, 1), uniform(-1, 1)
    # Axes of the grid run from -1 to 1: a shift by a share of the image is twice that.
    offset = [2 * s + (1 - side) * c for s, c in zip(shifts, corners, strict=True)]
    views = _resample(images, flips, angles, side, offset[0], offset[1])
    if config.contrast:
        exponent = (1 + config.contrast) ** uniform(-1, 1)
        exponent = torch.where(uniform(0, 1) < config.share, exponent, 1.0)
        views = views.clamp(0, 1) ** exponent[:, None, None]
    if config.blur:
        widest = max(config.blur, 0.1)
        views = blur(views, uniform(0.1, widest), widest=widest)
    return views.clamp(0, 1)


def blur(images: Tensor, sigma: Tensor, *, widest: float | None = None) -> Tensor:
    r"""Blur each image by a Gaussian of its own width.

    .. math:: k(t) \propto \exp\Big(-\frac{t^2}{2 \sigma^2}\Big)

    :math:`t` counts pixels, up to :math:`3\sigma` of the widest; edges are reflected.

    Arguments:
        images: Images (image, height, width).
        sigma: Standard deviations :math:`\sigma` in pixels, (image,).
        widest: None of them is larger; by default the largest of them.

    Example:
        >>> point = functional.pad(torch.ones(1, 1, 1), (4, 4, 4, 4))
        >>> round(blur(point, torch.tensor([1.0])).max().item(), 3)  # 1 / (2 pi), nearly
        0.159
    """
    # Where it is known, nobody waits for a GPU, and an image does not depend on those beside it.
    widest = float(sigma.max()) if widest is None else widest
    reach = min(max(math.ceil(3 * widest), 1), min(images.shape[-2:]) - 1)
    t = torch.arange(-reach, reach + 1, device=images.device)
    kernel = torch.exp(-(t**2) / (2 * sigma[:, None] ** 2))
    kernel = (kernel / kernel.sum(1, keepdim=True)).to(images.dtype)
    # Images stand as channels, each with a kernel of its own.
    padded = functional.pad(images[None], (reach,) * 4, mode="reflect")
    count = len(images)
    rows = functional.conv2d(padded, kernel[:, None, :, None], groups=count)
    return functional.conv2d(rows, kernel[:, None, None, :], groups=count)[0]


def _resample(
    images: Tensor, flips: Tensor, angles: Tensor, side: Tensor, right: Tensor, down: Tensor
) -> Tensor:
    """Flip, turn, zoom and shift in one interpolation."""
    height, width = images.shape[-2:]
    cos, sin, ratio = angles.cos() * side, angles.sin() * side, width / height
    mirror = 1 - 2 * flips.to(images.dtype)
    # Angles are in pixels, the grid in shares of each axis.
    matrix = torch.stack(
        [
            torch.stack([cos * mirror, -sin / ratio, right], -1),
            torch.stack([sin * ratio * mirror, cos, down], -1),
        ],
        dim=1,
    )
    grid = functional.affine_grid(matrix, [len(images), 1, height, width], align_corners=False)
    return functional.grid_sample(images[:, None], grid, align_corners=False)[:, 0]
