"""Training data of recovery networks: random masks, augmentation and simulated scans."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taskuq._config import Acceleration, Seed, Unit, Within, check_ranges
from taskuq._seeds import batch_seed, mix_seeds, per_case_random
from taskuq.data._dataset import Case, Dataset, load_all_images, precision_of
from taskuq.data._readers import Data, open_data, paper_data
from taskuq.errors import InputError
from taskuq.measure._coils import random_phases, random_sensitivities, rss
from taskuq.measure._fourier import broadcast_mask, central_lines, complex_noise, fft2c
from taskuq.measure._mri import MaskConfig
from taskuq.training._config import Batch, TrainingConfig
from taskuq.training._determinism import DeviceDataset
from taskuq.training._fit import TrainerOptions

PATTERNS = ("inverse-distance", "uniform", "equidistant")
CoilCount = Annotated[int, Within("[1, 256]")]
Half = Annotated[float, Within("[0, 0.5]")]
# Above every key that Gumbel noise of a float gives, and below the centre's.
_FIRST = 1e6


@dataclass(frozen=True)
class _RandomMasks:
    """Settings of [randomise.masks]: random masks with a fully sampled centre."""

    #: Lowest and highest acceleration; the number of lines is drawn log-uniformly.
    acceleration_range: tuple[Acceleration, Acceleration] = (2.0, 16.0)
    #: Range of the fraction of a mask's lines that form its fully sampled centre.
    acs_fraction: tuple[Unit, Unit] = (0.2, 0.7)
    patterns: tuple[str, ...] = PATTERNS  #: Possible patterns of the other lines of a mask.

    def __post_init__(self) -> None:
        check_ranges(self)
        for name in ("acceleration_range", "acs_fraction"):
            low, high = getattr(self, name)
            if low > high:
                text = f"{name} must be increasing, got {low:g} and {high:g}"
                raise InputError(text, code="value.invalid")
        if not self.patterns or set(self.patterns) - set(PATTERNS):
            text = f"patterns must be from {PATTERNS}, got {self.patterns}"
            raise InputError(text, code="choice.unknown")

    def __call__(self, cases: int, width: int, generator: torch.Generator) -> Tensor:
        """Return masks, booleans (case, width); True is measured."""
        uniform = partial(_uniform, generator)
        low, high = (math.log(R) for R in self.acceleration_range)
        lines = torch.round(width * torch.exp(-(low + (high - low) * uniform(cases))))
        lines = lines.long().clamp(1, width)
        narrow, wide = self.acs_fraction
        fraction = narrow + (wide - narrow) * uniform(cases)
        centre = torch.round(fraction * lines).long().clamp_min(1)
        column = torch.arange(width, device=generator.device)
        start = width // 2 - centre[:, None] // 2
        is_centre = (column >= start) & (column < start + centre[:, None])
        # The largest of log-weights with Gumbel noise are a draw without replacement.
        noise = -torch.log(-torch.log(uniform(cases, width)))
        distance = (column - width // 2).abs().clamp_min(1)
        # Equidistant lines outside the centre, from a random offset.
        left = (~is_centre).sum(1, keepdim=True)
        shifted = torch.minimum((uniform(cases)[:, None] * left).long(), left - 1).clamp_min(0)
        index, count = (~is_centre).cumsum(1), (lines - centre)[:, None]
        before, after = (
            torch.div(k * count + shifted, left.clamp_min(1), rounding_mode="floor")
            for k in (index - 1, index)
        )
        spaced = ~is_centre & (after > before)
        by_rule = (noise - distance.log(), noise, torch.where(spaced, _FIRST, noise))
        keys = torch.stack([by_rule[PATTERNS.index(rule)] for rule in self.patterns], dim=1)
        which = (len(self.patterns) * uniform(cases)).long().clamp_max(len(self.patterns) - 1)
        keys = keys.take_along_dim(which[:, None, None], dim=1)[:, 0]
        keys = torch.where(is_centre, math.inf, keys)
        rank = keys.argsort(dim=1, descending=True).argsort(dim=1)
        return rank < lines[:, None]


@dataclass(frozen=True, eq=False)
class MaskedDataset:
    source: Dataset
    masks: NDArray[np.bool_]
    seed: Seed | None
    ranges: Mapping[str, float] = field(default_factory=dict)
    # Computing the maximum anew in every epoch would cost more than a training step.
    _maxima: dict[int, float] = field(init=False, repr=False, default_factory=dict)

    @property
    def precision(self) -> str | None:
        return precision_of(self.source)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, place: tuple[int, int]) -> dict[str, Tensor]:
        item, which = self.source[place[1]], self.round(*place)
        return {
            "image": as_coil_images(item.image),
            "mask": self._rounds[0][which],
            "low_frequencies": self._rounds[1][which],
            "data_range": torch.tensor(self._range(place[1], item), dtype=torch.float32),
        }

    def stock(self, device: torch.device, most: float) -> DeviceDataset | None:
        images = load_all_images(self.source, as_coil_images, device, most)
        if images is None:
            return None
        ranges = [self._range(index, self.source[index]) for index in range(len(self))]
        masks, lines = (values.to(device) for values in self._rounds)
        return DeviceDataset(
            by_case={"image": images, "data_range": torch.tensor(ranges, device=device)},
            by_draw={"mask": masks, "low_frequencies": lines},
            drawn=self.round,
        )

    def _range(self, index: int, item: Case) -> float:
        if index not in self._maxima:
            image, width = as_coil_images(item.image), self.masks.shape[1]
            if image.shape[-1] != width:
                text = f"case {item.case} has {image.shape[-1]} columns, the masks have {width}"
                raise InputError(text, code="shape.mismatch")
            if not bool(torch.isfinite(torch.view_as_real(image)).all()):
                text = f"case {item.case} contains NaN or infinities; remove it"
                raise InputError(text, code="value.nonfinite")
            self._maxima[index] = float(rss(image).max())
        return self.ranges.get(item.group) or self._maxima[index]

    @cached_property
    def _rounds(self) -> tuple[Tensor, Tensor]:
        masks = torch.as_tensor(self.masks)
        return masks, central_lines(masks)

    def round(self, epoch: int, index: int) -> int:
        return random_round(self.seed, epoch, index, len(self.masks))


def random_round(seed: int | None, epoch: int, index: int, rounds: int) -> int:
    """Return a random round for a case and epoch; without a seed, ``index`` modulo ``rounds``."""
    if seed is None:
        return index % rounds
    return int(np.random.default_rng([seed, epoch, index]).integers(rounds))


def as_coil_images(image: Tensor) -> Tensor:
    return (image[None] if image.ndim == 2 else image).to(torch.complex64)


def _volume_maxima(source: Dataset) -> dict[str, float]:
    ranges: dict[str, float] = {}
    for index in range(len(source)):
        item = source[index]
        largest = float(rss(as_coil_images(item.image)).max())
        ranges[item.group] = max(largest, ranges.get(item.group, 0.0))
    return ranges


@dataclass(frozen=True)
class RecoveryTraining:
    """Settings shared by all training runs of recovery networks."""

    network: Any = None  #: Size of the network.
    training: TrainingConfig = field(default_factory=TrainingConfig)  #: Optimiser and schedule.
    data: Data = field(default_factory=paper_data)  #: Training data.
    #: Masks of the rounds; one is drawn per case and epoch.
    measure: MaskConfig = field(default_factory=lambda: MaskConfig(published=True))

    def measured(
        self, machine: TrainerOptions, data: tuple[Dataset, Dataset] | None, by_volume: bool = False
    ) -> tuple[MaskedDataset, MaskedDataset]:
        training, validation = data or open_data(self.data)
        masks = self.measure.masks(as_coil_images(training[0].image).shape[-1])
        ranges = [_volume_maxima(part) if by_volume else {} for part in (training, validation)]
        return (
            MaskedDataset(training, masks, self.training.seed, ranges[0]),
            MaskedDataset(validation, masks, None, ranges[1]),
        )


@dataclass(frozen=True)
class CoilAugmentation:
    """Settings of [augment]: random rotation, shift, stretch and flip of coil images."""

    rotation: Annotated[float, Within("[0, 45]")] = 10.0  #: Maximum rotation in degrees.
    shift: Half = 0.1  #: Maximum shift, as a fraction of the side.
    stretch: Half = 0.1  #: Maximum relative stretch of each side.
    flip: Half = 0.5  #: Probability of a left-right flip.

    def __post_init__(self) -> None:
        check_ranges(self)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return transformed coil images, complex (case, coil, height, width)."""
        cases, device = len(images), images.device

        def within(limit: float, *count: int) -> Tensor:
            shape = (*count, cases)
            numbers = per_case_random(torch.rand, shape, generator, axis=len(count), device=device)
            return limit * (2 * numbers - 1)

        is_flipped = per_case_random(torch.rand, (cases,), generator, device=device) < self.flip
        images = torch.where(is_flipped.view(-1, 1, 1, 1), images.flip(-1), images)
        for axis, by, scale in zip(
            (-2, -1), within(self.shift, 2), 1 + within(self.stretch, 2), strict=True
        ):
            images = _resample(images, axis, scale, by * images.shape[axis])
        angle = within(math.radians(self.rotation))
        across, along = -torch.tan(angle / 2), torch.sin(angle)
        for axis, slope in ((-1, across), (-2, along), (-1, across)):
            images = _shear(images, slope, axis)
        phase = within(math.pi)
        return images * torch.polar(torch.ones_like(phase), phase).view(-1, 1, 1, 1)


def _shear(images: Tensor, slope: Tensor, axis: int) -> Tensor:
    size, other = images.shape[axis], images.shape[-3 - axis]
    distance = torch.arange(other, device=images.device) - (other - 1) / 2
    frequency = torch.fft.fftfreq(size, device=images.device)
    angle = -2 * math.pi * slope.view(-1, 1, 1) * distance[:, None] * frequency
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]
    turn = turn if axis == -1 else turn.mT
    moved: Tensor = torch.fft.ifft(torch.fft.fft(images, dim=axis) * turn, dim=axis)
    return moved


def _resample(images: Tensor, axis: int, scale: Tensor, shift: Tensor) -> Tensor:
    size = images.shape[axis]
    pixel = torch.arange(size, device=images.device)
    centre = (size - 1) / 2
    place = (pixel - centre - shift[:, None]) / scale[:, None] + centre
    # Frequencies that do not fit into a shorter image are left out.
    frequency = torch.fft.fftfreq(size, device=images.device) * size
    fits = frequency.abs() <= size / 2 * scale.clamp_max(1)[:, None]
    angle = 2 * math.pi * place[:, :, None] * frequency / size
    waves = torch.polar(torch.ones_like(angle), angle) * fits[:, None]
    inside = (place > -0.5) & (place < size - 0.5)
    waves = (waves * inside[:, :, None] / size)[:, None]
    spectrum: Tensor = torch.fft.fft(images, dim=axis)
    moved: Tensor = spectrum @ waves.mT if axis == -1 else waves @ spectrum
    return moved


@dataclass(frozen=True)
class ScanRandomisation:
    """Settings of [randomise]: random masks, coils, noise and contrast."""

    fixed_mask_fraction: Unit = 0.25  #: Fraction of cases measured with a mask of [measure].
    #: Random masks of the cases that do not have a mask of [measure].
    masks: _RandomMasks = field(default_factory=_RandomMasks)
    #: Possible numbers of coils, one of which is drawn per batch; requires data.coils = 0.
    coils: tuple[CoilCount, ...] = ()
    noise_fraction: Unit = 0.5  #: Fraction of cases with noise added to k-space.
    snr_db: tuple[float, float] = (20.0, 60.0)  #: Range of the signal-to-noise ratio, in decibels.
    contrast: Unit = 0.5  #: Strength of a random monotone change of intensities.

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.snr_db[0] > self.snr_db[1]:
            raise InputError(f"snr_db must be increasing, got {self.snr_db}", code="value.invalid")

    def __call__(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the batch with randomised images, masks, k-space and counts of central lines."""
        images, mask = batch["image"], batch["mask"]
        if self.contrast:
            images = _random_contrast(images, self.contrast, generator)
        if self.coils:
            images = self._simulate_coils(images, generator)
        cases, width = mask.shape
        own = self.masks(cases, width, generator)
        is_round = _uniform(generator, cases) < self.fixed_mask_fraction
        mask = torch.where(is_round[:, None], mask, own)
        signal = images.abs().square().sum(1).mean((1, 2)).sqrt()
        low, high = self.snr_db
        decibels = low + (high - low) * _uniform(generator, cases)
        is_noisy = _uniform(generator, cases) < self.noise_fraction
        deviation = torch.where(is_noisy, signal * 10 ** (-decibels / 20), 0).view(-1, 1, 1, 1)
        kspace = fft2c(images) + deviation * complex_noise(images, generator)
        return {
            **batch,
            "image": images,
            "mask": mask,
            "low_frequencies": central_lines(mask),
            "kspace": _mask_kspace(kspace, mask),
        }

    def _simulate_coils(self, images: Tensor, generator: torch.Generator) -> Tensor:
        cases, count, height, width = images.shape
        if count != 1:
            raise InputError("randomise.coils needs data.coils = 0", code="option.conflict")
        # By the seed: reading a number from a GPU would wait for it.
        coils = self.coils[mix_seeds(batch_seed(generator), len(self.coils)) % len(self.coils)]
        maps = random_sensitivities(cases, coils, height, width, generator)
        return images * random_phases(cases, height, width, generator)[:, None] * maps


def simulate_scan(
    batch: Batch,
    generator: torch.Generator,
    *,
    augment: CoilAugmentation | None = None,
    randomise: ScanRandomisation | None = None,
) -> Batch:
    if augment is not None:
        batch = {**batch, "image": augment(batch["image"], generator)}
    if randomise is not None:
        return randomise(batch, generator)
    return {**batch, "kspace": _mask_kspace(fft2c(batch["image"]), batch["mask"])}


def _random_contrast(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    cases, steps = len(images), 10
    rise = 1 - strength + strength * 2 * _uniform(generator, cases, steps)
    rise = rise / rise.sum(1, keepdim=True).clamp_min(1e-6)
    magnitude = rss(images)[:, None]
    tiny = torch.finfo(magnitude.dtype).tiny
    largest = magnitude.amax((-2, -1), keepdim=True).clamp_min(tiny)
    place = steps * magnitude / largest
    mapped = sum(rise[:, k].view(-1, 1, 1, 1) * (place - k).clamp(0, 1) for k in range(steps))
    return images * (mapped * largest / magnitude.clamp_min(tiny))


def _mask_kspace(kspace: Tensor, mask: Tensor) -> Tensor:
    return torch.where(broadcast_mask(mask, kspace), kspace, 0)


def _uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return per_case_random(torch.rand, shape, generator, device=generator.device)
