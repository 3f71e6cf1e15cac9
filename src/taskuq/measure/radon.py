"""The Radon transform of pixel images: one sparse matrix for a set of views, and its transpose."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taskuq.errors import InputError


@dataclass(frozen=True)
class Radon:
    r"""Line integrals of images along parallel rays.

    .. math:: (A x)_{\theta, s} = \sum_{u} x_u \int_{s - 1/2}^{s + 1/2}
        \tau_\theta\big(t - \langle u, (\cos\theta, \sin\theta) \rangle\big)\, dt

    Pixels are squares: the shadow :math:`\tau_\theta` of one is a trapezoid of area 1, and each
    bin of the detector gets what falls into it, so that no mass is lost and even areas stay even.
    The detector is as long as the image's diagonal. The matrix is made once for each size and set
    of views, and kept.

    Arguments:
        size: Rows and columns of the image.
        angles: Angles :math:`\theta`, in radians.
        footprint: ``"strip"`` as above; ``"hat"`` shares a pixel between the two bins nearest to
            its centre, as is often done: diagonal views of even areas then have ripples, which
            filtered back-projection makes louder.

    Example:
        >>> image = torch.zeros(8, 8)
        >>> image[2, 5] = 3.0
        >>> Radon(8, (0.0, np.pi / 2))(image).sum(-1)
        tensor([3., 3.])
    """

    size: int
    angles: tuple[float, ...]
    footprint: Literal["strip", "hat"] = "strip"

    def __post_init__(self) -> None:
        if self.size < 1 or not self.angles or not np.isfinite(self.angles).all():
            raise InputError(
                f"the size is {self.size} and there are {len(self.angles)} angles; give a size of "
                "at least 1 and at least one finite angle"
            )

    @property
    def detectors(self) -> int:
        """Bins of the detector, each as wide as a pixel."""
        return int(np.ceil(self.size * np.sqrt(2))) + 1

    def __call__(self, images: Tensor) -> Tensor:
        """Images (..., size, size) to projections (..., view, detector)."""
        flat = images.reshape(-1, self.size**2)
        projections = _applied(flat, *self._matrices(flat))
        return projections.reshape(*images.shape[:-2], len(self.angles), self.detectors)

    def adjoint(self, projections: Tensor) -> Tensor:
        """Smear projections (..., view, detector) back over images (..., size, size)."""
        flat = projections.reshape(-1, len(self.angles) * self.detectors)
        images = _applied(flat, *reversed(self._matrices(flat)))
        return images.reshape(*projections.shape[:-2], self.size, self.size)

    def _matrices(self, like: Tensor) -> tuple[Tensor, Tensor]:
        precision = torch.float64 if like.dtype == torch.float64 else torch.float32
        return _matrices(self, precision, like.device)


def hat_radon(size: int, angles: tuple[float, ...]) -> Radon:
    """The transform with the coarser footprint.

    Arguments:
        size: Rows and columns of the image.
        angles: In radians.

    Example:
        >>> hat_radon(8, (0.0,)).footprint
        'hat'
    """
    return Radon(size, angles, "hat")


class _Product(torch.autograd.Function):
    """Rows times the transpose of a sparse matrix, differentiable by its own transpose."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrix: Tensor, transpose: Tensor) -> Tensor:
        ctx.matrices = matrix, transpose
        product: Tensor = (matrix @ rows.to(matrix.dtype).T.contiguous()).T
        return product

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        matrix, transpose = ctx.matrices
        return _applied(gradients[0], transpose, matrix), None, None


def _applied(rows: Tensor, matrix: Tensor, transpose: Tensor) -> Tensor:
    # Autocast would round line integrals, sums of a hundred pixels, to 8 bits.
    with torch.autocast(rows.device.type, enabled=False):
        product: Tensor = _Product.apply(rows, matrix, transpose)  # type: ignore[no-untyped-call]
    return product


@lru_cache(maxsize=12)
def _matrices(radon: Radon, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The matrix and its transpose, compressed rows, where images are."""
    from scipy.sparse import csr_array

    size, detectors, views = radon.size, radon.detectors, len(radon.angles)
    bins, shares = _FOOTPRINTS[radon.footprint](radon)
    rows = bins + detectors * np.arange(views)[:, None, None]
    pixels = np.broadcast_to(np.arange(size**2)[:, None], rows.shape)
    seen = shares > 0
    where = rows[seen], pixels[seen]
    matrix = csr_array((shares[seen], where), shape=(views * detectors, size**2))
    return _as_tensor(matrix, dtype, device), _as_tensor(matrix.T.tocsr(), dtype, device)


def _as_tensor(matrix: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    matrix.sort_indices()
    rows, columns = (
        torch.from_numpy(part.astype(np.int32)) for part in (matrix.indptr, matrix.indices)
    )
    values = torch.from_numpy(matrix.data).to(dtype)
    with warnings.catch_warnings():
        # torch calls all of its compressed matrices a beta.
        warnings.filterwarnings("ignore", category=UserWarning, message="Sparse ")
        compressed = torch.sparse_csr_tensor(rows, columns, values, size=matrix.shape)
    return compressed.to(device)


# Bins (view, pixel, bin) that a pixel may fall into, and its share in each.
Shares = tuple[NDArray[np.int64], NDArray[np.float64]]


def _places(radon: Radon) -> NDArray[np.float64]:
    """Where the centre of each pixel falls, in bins, (view, pixel)."""
    axis = np.arange(radon.size) - (radon.size - 1) / 2
    y, x = np.meshgrid(-axis, axis, indexing="ij")
    theta = np.array(radon.angles)[:, None]
    centre = (radon.detectors - 1) / 2
    return np.asarray(x.ravel() * np.cos(theta) + y.ravel() * np.sin(theta) + centre)


def _hat(radon: Radon) -> Shares:
    places = _places(radon)
    lower = np.clip(np.floor(places), 0, radon.detectors - 2)
    upper = places - lower
    return np.stack([lower, lower + 1], -1).astype(np.int64), np.stack([1 - upper, upper], -1)


def _strip(radon: Radon) -> Shares:
    places = _places(radon)
    sides = np.abs([np.cos(radon.angles), np.sin(radon.angles)])[..., None, None] / 2
    # A shadow without slopes, along an axis, has slopes that are too steep to matter.
    wide, narrow = sides.max(0), np.maximum(sides.min(0), 1e-6)
    # No shadow is longer than the diagonal of a pixel: three bins hold it.
    bins = np.rint(places)[..., None] + np.array([-1, 0, 1])

    def until(t: NDArray[np.float64]) -> NDArray[np.float64]:
        """The share of a shadow on the left of a place."""
        ends = [(wide + narrow, 1), (wide - narrow, -1), (narrow - wide, -1), (-wide - narrow, 1)]
        total = sum(sign * np.maximum(t + end, 0) ** 2 for end, sign in ends)
        return np.asarray(total / (8 * wide * narrow))

    edge = bins - places[..., None]
    shares = np.where(np.abs(edge) < 1.3, until(edge + 0.5) - until(edge - 0.5), 0)
    # What rounding leaves of nothing.
    shares = np.where(shares > 1e-9, shares, 0)
    return np.clip(bins, 0, radon.detectors - 1).astype(np.int64), shares


_FOOTPRINTS = {"strip": _strip, "hat": _hat}
