"""A scanner that is simulated: it hands out the lines of an image's k-space round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taskuq.errors import InputError
from taskuq.measure.fourier import fft2c, ifft2c
from taskuq.measure.mri import Measurement


@dataclass(frozen=True, eq=False)
class SimulatedScanner:
    """Measures an image that is already known, as a real scanner would measure a patient.

    Every round gives only the columns it adds; nothing is measured twice, and after all rounds the
    rest of k-space follows.

    Arguments:
        image: Complex coil images (coil, height, width).
        masks: Nested masks, boolean (round, width).
        accelerations: R of each round, decreasing.

    Example:
        >>> from taskuq.measure.masks import nested_masks
        >>> masks = nested_masks(32, (8, 4), rng=rng)
        >>> scanner = SimulatedScanner(torch.ones(2, 32, 32) + 0j, masks, (8, 4))
        >>> pieces = [scanner.measure(0), scanner.measure(1)]
        >>> [len(piece["columns"]) for piece in pieces], int(scanner.combine(pieces).mask.sum())
        ([4, 4], 8)
    """

    image: Tensor
    masks: NDArray[np.bool_]
    accelerations: Sequence[float]

    def measure(self, round: int) -> dict[str, NDArray[np.generic]]:
        """Measure what a round adds: its columns, and their k-space (coil, height, column)."""
        if not 0 <= round <= len(self.masks):
            raise InputError(f"round {round} is asked for; there are {len(self.masks)} and a last")
        everything = np.ones((1, self.masks.shape[1]), dtype=bool)
        nothing = np.zeros_like(everything)
        until = np.concatenate([nothing, self.masks, everything])
        columns = np.flatnonzero(until[round + 1] & ~until[round])
        return {"columns": columns, "kspace": fft2c(self.image)[..., columns].numpy()}

    def combine(self, pieces: Sequence[dict[str, NDArray[np.generic]]]) -> Measurement:
        """Join the pieces of all rounds so far into one measurement."""
        mask = torch.zeros(self.masks.shape[1], dtype=torch.bool)
        kspace = torch.zeros(self.image.shape, dtype=torch.complex64)
        for piece in pieces:
            columns = torch.as_tensor(piece["columns"])
            mask[columns] = True
            kspace[..., columns] = torch.as_tensor(piece["kspace"]).to(torch.complex64)
        rounds = len(pieces)
        R = float(self.accelerations[rounds - 1]) if rounds <= len(self.accelerations) else 1.0
        return Measurement(ifft2c(kspace), mask, R)
