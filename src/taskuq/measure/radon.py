"""The Radon transform of pixel images: one sparse matrix for a set of views, and its transpose."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taskuq.errors import InputError


@dataclass(frozen=True)
class Radon:
    r"""Line integrals of images along parallel rays.

    .. math:: (A x)_{\theta, s} = \sum_{u} x_u \,
        \Lambda\big(s - \langle u, (\cos\theta, \sin\theta) \rangle\big)

    Each pixel :math:`u` falls on the detector at its projected place and is shared between the two
    nearest bins (:math:`\Lambda` is the hat function), so that no mass is lost. The detector is as
    long as the image's diagonal. The matrix is made once for each size and set of views, and kept.

    Arguments:
        size: Rows and columns of the image.
        angles: Angles :math:`\theta`, in radians.

    Example:
        >>> image = torch.zeros(8, 8)
        >>> image[2, 5] = 3.0
        >>> Radon(8, (0.0, np.pi / 2))(image).sum(-1)
        tensor([3., 3.])
    """

    size: int
    angles: tuple[float, ...]

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
    place, share = _shares(radon)
    rows = (place + detectors * np.arange(views)[:, None]).ravel()
    pixels = np.tile(np.arange(size**2), views)
    where = np.concatenate([rows, rows + 1]), np.concatenate([pixels, pixels])
    values = np.concatenate([1 - share.ravel(), share.ravel()])
    matrix = csr_array((values, where), shape=(views * detectors, size**2))
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


def _shares(radon: Radon) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The lower detector bin of each pixel and the share of the upper one, (view, pixel)."""
    axis = np.arange(radon.size) - (radon.size - 1) / 2
    y, x = np.meshgrid(-axis, axis, indexing="ij")
    theta = np.array(radon.angles)[:, None]
    s = x.ravel() * np.cos(theta) + y.ravel() * np.sin(theta) + (radon.detectors - 1) / 2
    place = np.clip(np.floor(s), 0, radon.detectors - 2)
    return place.astype(np.int64), s - place
