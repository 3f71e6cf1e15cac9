"""What a recovery needs of a measurement, and the check that it is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from taskuq.errors import InputError


@runtime_checkable
class Scan(Protocol):
    """What a recovery needs of a measurement (``taskuq.measure.mri.Measurement`` has it)."""

    @property
    def zero_filled(self) -> Tensor:
        """Coil images, complex (coil, height, width)."""

    @property
    def mask(self) -> Tensor:
        """The measured columns, booleans (width,)."""


@runtime_checkable
class DrawsCoilImages(Protocol):
    """A recovery whose samples can be seen before coils are combined.

    There it shows whether they agree with the measurement.
    """

    def coil_images(self, measurement: Scan, *, samples: int, seed: int) -> Tensor:
        """Return samples, complex (sample, coil, height, width)."""


def checked(measurement: Scan) -> Scan:
    """Return the measurement, or say in one sentence why it cannot be used.

    Arguments:
        measurement: Anything with ``zero_filled`` and ``mask``.

    Example:
        >>> checked("a picture")
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: the measurement is a str without zero_filled or mask; ...
    """
    if not isinstance(measurement, Scan):
        raise InputError(
            f"the measurement is a {type(measurement).__name__} without zero_filled or mask; give "
            "one as taskuq.measure.mri makes it"
        )
    y = measurement.zero_filled
    if not isinstance(y, Tensor) or y.ndim != 3 or not y.is_complex():
        raise InputError("zero_filled is not one complex stack (coil, height, width); give that")
    numbers = torch.view_as_real(y)
    # Where a sum is finite all its terms are, and it is ten times as quick; it may overflow.
    if not torch.isfinite(numbers.sum()) and not torch.isfinite(numbers).all():
        raise InputError("the measurement holds NaN or infinite values; measure that case again")
    return measurement


def unit_sized(images: Tensor) -> tuple[Tensor, Tensor]:
    r"""Images whose largest number lies between 1/2 and 1, and the powers of two to get them back.

    .. math:: x = 2^k x', \qquad \tfrac12 \le \max(|\Re x'|, |\Im x'|) < 1

    Squares of very large or very small numbers leave the range of a float. A power of two changes
    no digit: a network that follows the scale of its input gives the same digits, too.

    Arguments:
        images: Complex images of cases, finite, (case, ...).

    Returns:
        The images in float32 precision, and the factors, (case,); 1 for an empty image.

    Example:
        >>> small, size = unit_sized(torch.tensor([[3 - 12j]]))
        >>> small, size
        (tensor([[0.1875-0.7500j]]), tensor([16.]))
    """
    images = images.to(torch.complex64)
    largest = torch.view_as_real(images).abs().flatten(1).amax(1)
    # Factors stay normal numbers, whose reciprocals are numbers, too.
    power = torch.frexp(largest).exponent.clamp(-126, 126)
    size = torch.ldexp(torch.ones_like(largest), power)
    return images / size.view(-1, *(1,) * (images.ndim - 1)), size


def stacked(measurements: Sequence[Scan]) -> tuple[Tensor, Tensor]:
    """Return zero-filled images (case, coil, height, width) and masks (case, width) of scans.

    Arguments:
        measurements: Measurements of the same size.

    Example:
        >>> from taskuq.measure.mri import Measurement
        >>> scan = Measurement(torch.ones(4, 8, 8) + 0j, torch.ones(8, dtype=torch.bool), 1.0)
        >>> [part.shape for part in stacked([scan, scan])]
        [torch.Size([2, 4, 8, 8]), torch.Size([2, 8])]
    """
    scans = [checked(measurement) for measurement in measurements]
    return (
        torch.stack([scan.zero_filled for scan in scans]),
        torch.stack([torch.as_tensor(scan.mask).bool() for scan in scans]),
    )
