"""Multi-coil MRI and simulated scanners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taskuq._config import Acceleration, Count, Positive, Seed
from taskuq.errors import InputError
from taskuq.interval import BoolArray
from taskuq.measure._coils import rss
from taskuq.measure._fourier import broadcast_mask, fft2c, ifft2c, noise_for, require_seed, round_at
from taskuq.measure._masks import (
    Rule,
    acs_width,
    center_lines,
    nested_masks,
    published_masks,
    read_masks,
    with_random_lines,
)
from taskuq.protocols import Measure
from taskuq.table._terminology import MRI

# New columns of a round, and their k-space (coil, height, column).
Columns = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class MaskConfig:
    """Settings of [measure] for MRI: masks of the rounds; training draws one per case and epoch."""

    #: Acceleration R of each round.
    accelerations: tuple[Acceleration, ...] = (16.0, 8.0, 4.0, 2.0)
    published: bool = False  #: Use the paper's masks (320 columns; R = 16, 8, 4, 2).
    pattern: Rule = "inverse-distance"  #: Density of the random lines added to the first mask.
    seed: Seed = 0  #: Seed of the random lines.
    #: Number of contiguous central lines in each round; default: as in the paper.
    acs: tuple[Count, ...] | None = None
    #: Ratio of central to mean line density in the first mask; default: 15/16 of its R.
    density: Positive | None = None
    sharpness: Positive = 8.0  #: Exponent of the decrease in density from the centre.
    path: Path | None = None  #: Mask file written by taskuq masks.
    round_names = None
    terminology = MRI

    def __post_init__(self) -> None:
        if self.published and self.path is not None:
            raise InputError("set only measure.published or measure.path", code="option.conflict")
        is_fixed = self.published or self.path is not None
        if is_fixed and (self.acs is not None or self.density is not None):
            text = "measure.acs and measure.density do not apply to published masks or a mask file"
            raise InputError(f"{text}; remove them", code="option.conflict")

    def masks(self, width: int) -> BoolArray:
        """Return the masks, booleans (round, width)."""
        if self.path is not None:
            return read_masks(self.path, self.accelerations, width)
        if self.published:
            if width != 320:
                text = f"published masks have 320 columns, the images have {width};"
                raise InputError(f"{text} set measure.published = false", code="shape.mismatch")
            return published_masks(self.accelerations)
        return nested_masks(
            width, self.accelerations, seed=self.seed, rule=self.pattern, acs=self.acs,
            density=self.density, sharpness=self.sharpness,
        )  # fmt: skip

    def scanner(self, width: int, *, noise: float, seed: int) -> Measure:
        return MultiCoilMRI(self.masks(width), self.accelerations, noise=noise, seed=seed)


@dataclass(frozen=True, eq=False)
class MRIMeasurement:
    """Measured k-space, mask and zero-filled image."""

    zero_filled: Tensor
    mask: Tensor
    acceleration: float

    @property
    def preview(self) -> Tensor:
        """RSS of the zero-filled coil images."""
        return rss(self.zero_filled)

    @property
    def kspace(self) -> Tensor:
        """Measured lines of k-space, and exact zeros elsewhere."""
        kspace = fft2c(self.zero_filled)
        return torch.where(broadcast_mask(self.mask, kspace), kspace, 0)


@dataclass(frozen=True, eq=False)
class MultiCoilMRI:
    """Imaging system that measures whole columns of the k-space of every coil."""

    masks: BoolArray
    accelerations: Sequence[float]
    noise: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        masks = np.asarray(self.masks, dtype=bool)
        if masks.ndim != 2 or len(masks) != len(self.accelerations):
            given = f"masks have shape {masks.shape} for {len(self.accelerations)} accelerations"
            raise InputError(f"{given}; pass one mask for each", code="shape.mismatch")
        if (masks[1:] < masks[:-1]).any():
            raise InputError("masks are not nested; use nested_masks", code="rounds.invalid")
        require_seed(self.noise, self.seed)
        object.__setattr__(self, "masks", masks)

    def mask(self, acceleration: float) -> BoolArray:
        """Return a mask of the columns measured at one acceleration; all columns at R = 1."""
        everything = np.ones((1, self.masks.shape[1]), dtype=bool)
        rounds = np.concatenate([self.masks, everything])
        return np.asarray(rounds[round_at(acceleration, [*self.accelerations, 1])])

    def __call__(self, image: Tensor, acceleration: float) -> MRIMeasurement:
        """Measure coil images (..., coil, height, width), complex or real, on any device."""
        return self.measure_lines(image, acceleration, self.mask(acceleration))

    @property
    def n_lines(self) -> int:
        return int(self.masks.shape[1])

    def initial_lines(self, n: int) -> BoolArray:
        """Return a mask of the n columns at the centre of k-space."""
        return center_lines(self.n_lines, n)

    def add_random_lines(
        self, lines: BoolArray, n: int, seed: int | np.random.Generator
    ) -> BoolArray:
        """Add n random columns to a mask, with higher probability near the centre."""
        rng = np.random.default_rng(seed)
        return with_random_lines(lines, int(lines.sum()) + n, "inverse-distance", rng)

    def measure_lines(self, image: Tensor, acceleration: float, lines: BoolArray) -> MRIMeasurement:
        """Measure the k-space columns that a boolean mask (width,) selects."""
        if image.ndim < 3 or image.shape[-1] != self.masks.shape[1]:
            given, need = tuple(image.shape), f"(coil, height, {self.n_lines})"
            raise InputError(f"the image is {given}; pass {need}", code="shape.mismatch")
        mask = torch.as_tensor(np.asarray(lines, dtype=bool), device=image.device)
        kspace = fft2c(image)
        if self.noise > 0:
            flat = image.reshape(-1, *image.shape[-3:])
            parts = torch.stack([noise_for(one, (2, *one.shape), self.seed) for one in flat])
            noise = torch.complex(parts[:, 0], parts[:, 1]).reshape(image.shape)
            kspace = kspace + self.noise * noise.to(image.device)
        return MRIMeasurement(ifft2c(torch.where(mask, kspace, 0)), mask, float(acceleration))

    def line_values(self, images: Tensor, measurement: MRIMeasurement) -> Tensor:
        """Return the k-space columns of samples; coil sensitivities come from the central lines."""
        measured = measurement.mask.cpu().numpy()
        centre = center_lines(len(measured), max(1, acs_width(measured)))
        kept = torch.as_tensor(centre & measured, device=images.device)
        smooth = ifft2c(torch.where(kept, fft2c(measurement.zero_filled.to(images.device)), 0))
        maps = smooth / rss(smooth)[None].clamp_min(torch.finfo(torch.float32).tiny)
        transformed = torch.fft.fft(images[:, None] * maps, norm="ortho")
        columns: Tensor = torch.fft.fftshift(transformed, dim=-1)
        return columns.permute(3, 0, 1, 2).flatten(2)


@dataclass(frozen=True, eq=False)
class SimulatedMRIScanner:
    """Simulated scanner of a known image, which measures the columns that each round adds."""

    image: Tensor
    masks: BoolArray
    accelerations: Sequence[float]

    def measure(self, round: int) -> Columns:
        if not 0 <= round <= len(self.masks):
            raise InputError(f"round is {round}; pass 0 to {len(self.masks)}", code="value.invalid")
        return self.measure_columns(added_columns(self.masks)[round])

    def measure_columns(self, columns: NDArray[np.int64]) -> Columns:
        return {"columns": columns, "kspace": fft2c(self.image)[..., columns].numpy()}

    def combine(self, pieces: Sequence[Columns]) -> MRIMeasurement:
        return combine_columns(pieces, tuple(self.image.shape), self.accelerations)


def combine_columns(
    pieces: Sequence[Columns], shape: tuple[int, ...], accelerations: Sequence[float]
) -> MRIMeasurement:
    """Join the columns of all rounds into a measurement, zero-filled where not measured."""
    mask = torch.zeros(shape[-1], dtype=torch.bool)
    kspace = torch.zeros(shape, dtype=torch.complex64)
    for piece in pieces:
        columns = np.asarray(piece["columns"], dtype=int)
        mask[columns] = True
        # Only measured columns are shifted, and not the whole of k-space.
        kspace.numpy()[..., columns - shape[-1] // 2] = np.fft.ifftshift(piece["kspace"], axes=-2)
    images = torch.fft.ifft2(kspace, norm="ortho").numpy()
    # NumPy shifts both axes in one copy.
    zero_filled = torch.from_numpy(np.fft.fftshift(images, axes=(-2, -1)))
    R = [*map(float, accelerations), 1.0][len(pieces) - 1]
    return MRIMeasurement(zero_filled, mask, R)


def added_columns(masks: BoolArray) -> list[NDArray[np.intp]]:
    """Return the column indices that each round adds, then those that no round measures."""
    everything = np.ones((1, masks.shape[1]), dtype=bool)
    until = np.concatenate([~everything, masks, everything])
    return [np.flatnonzero(now & ~before) for before, now in pairwise(until)]
