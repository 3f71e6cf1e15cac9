"""K-space that is put together while its lines arrive: a scanner waits from the last one on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Canvas:
    """The k-space of a slice, zero where no line was put, in the order of the Fourier transform.

    K-space is not shifted as a whole, and images are shifted at once and not axis by axis; what
    comes out is what :func:`taskuq.measure.mri.joined` makes of the same lines, to the bit.

    Arguments:
        shape: Coil, height, width.
    """

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.kspace = torch.zeros(shape, dtype=torch.complex64)
        self.columns: set[int] = set()
        # The same memory: a line at a time is put there faster by NumPy.
        self._array: NDArray[np.complex64] = self.kspace.numpy()

    def put_line(self, column: int, line: NDArray[np.complex64]) -> None:
        """Put one line, (coil, height)."""
        _, height, width = self.kspace.shape
        rows, place = height // 2, (column - width // 2) % width
        self._array[:, height - rows :, place] = line[:, :rows]
        self._array[:, : height - rows, place] = line[:, rows:]
        self.columns.add(column)

    def put(self, columns: NDArray[Any], kspace: Any) -> None:
        """Put the lines of a piece, (coil, height, line)."""
        _, height, width = self.kspace.shape
        rows, place = height // 2, torch.as_tensor((columns - width // 2) % width)
        lines = torch.as_tensor(kspace).to(torch.complex64)
        self.kspace[:, height - rows :].index_copy_(2, place, lines[:, :rows])
        self.kspace[:, : height - rows].index_copy_(2, place, lines[:, rows:])
        self.columns.update(columns.tolist())

    def images(self, into: Tensor) -> Tensor:
        """Return the images of all coils, in the memory of another tensor, or of k-space itself."""
        _, height, width = self.kspace.shape
        found = torch.fft.ifft2(self.kspace, norm="ortho")
        for here, there in _halves(height):
            for left, right in _halves(width):
                into[:, here, left] = found[:, there, right]
        return into


def _halves(size: int) -> list[tuple[slice, slice]]:
    """Where each half of an axis goes when its origin moves to the middle, and where it was."""
    middle = size // 2
    return [
        (slice(middle, None), slice(None, size - middle)),
        (slice(None, middle), slice(size - middle, None)),
    ]
