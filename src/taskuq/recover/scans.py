"""Scans of any kind: every case of every step gets other coils, noise, contrast and lines.

A network that has seen one set of masks loses decibels on any other, and one that has seen eight
coils of one ring and no noise may fail on a real scanner. Everything is drawn for a whole batch at
once, where the images are, from the generator of the step: the same after every restart.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from taskuq.errors import InputError
from taskuq.measure.coils import rss
from taskuq.measure.fourier import fft2c
from taskuq.measure.noise import complex_noise
from taskuq.measure.projections import broadcast_mask
from taskuq.measure.random_masks import RandomMasks
from taskuq.measure.sensitivity import random_phases, random_sensitivities
from taskuq.recover.columns import central_lines
from taskuq.recover.views import CoilViews
from taskuq.seeds import batch_seed, mixed_seed, numbers_of_cases
from taskuq.training.recipe import Batch


@dataclass(frozen=True)
class AnyScan:
    r"""How scans differ from case to case in training.

    Arguments:
        rounds: The share of cases that are seen through a mask of the table ``[measure]``; the
            others get one of their own.
        masks: What masks of their own are like.
        coils: Numbers of coils, one of which is drawn for each batch; the images must then be
            magnitudes (``coils = 0`` in ``[data]``). None leaves the coils of the data.
        noisy: The share of cases whose k-space gets noise; the truth has none.
        snr: The smallest and the largest signal-to-noise ratio of those, in decibels:
            :math:`20 \log_{10}` of the root mean square of the image over the standard deviation of
            the real and of the imaginary part of the noise of each coil.
        contrast: How far a random monotone map of the magnitudes may go: 0 leaves them, 1 may make
            a tenth of the range flat.

    Example:
        >>> images = torch.rand(3, 1, 32, 48) + 0j
        >>> batch = {"image": images, "mask": torch.ones(3, 48, dtype=torch.bool)}
        >>> seen = AnyScan(coils=(5,), contrast=0.0)(batch, torch.Generator().manual_seed(0))
        >>> seen["image"].shape, torch.allclose(rss(seen["image"]), images[:, 0].abs(), atol=1e-5)
        (torch.Size([3, 5, 32, 48]), True)
        >>> lost = ~seen["mask"][:, None, None].expand(seen["kspace"].shape)
        >>> float(seen["kspace"][lost].abs().sum())  # nothing but what was measured
        0.0
    """

    rounds: float = 0.25
    masks: RandomMasks = field(default_factory=RandomMasks)
    coils: tuple[int, ...] = ()
    noisy: float = 0.5
    snr: tuple[float, float] = (20.0, 60.0)
    contrast: float = 0.5

    def __post_init__(self) -> None:
        shares = (self.rounds, self.noisy, self.contrast)
        if min(shares) < 0 or max(shares) > 1:
            raise InputError(
                f"rounds is {self.rounds}, noisy {self.noisy} and contrast {self.contrast}; give "
                "shares between 0 and 1"
            )
        if min(self.coils, default=1) < 1 or self.snr[0] > self.snr[1]:
            raise InputError(
                f"coils are {list(self.coils)} and snr {list(self.snr)}; give numbers of at least "
                "1 coil, and the smallest ratio before the largest"
            )

    def __call__(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the batch with true coil images, ``kspace``, mask and its central lines.

        Arguments:
            batch: ``image``, complex (case, coil, height, width), and ``mask``, (case, width), of
                a round.
            generator: Of this step, on the device of the batch.
        """
        images, mask = batch["image"], batch["mask"]
        if self.contrast:
            images = remapped(images, self.contrast, generator)
        if self.coils:
            images = self._seen_by_coils(images, generator)
        cases, width = mask.shape
        own = self.masks(cases, width, generator)[:, 0]
        is_round = _uniform(generator, cases) < self.rounds
        mask = torch.where(is_round[:, None], mask, own)
        noise = self._deviation(images, generator).view(-1, 1, 1, 1)
        kspace = fft2c(images) + noise * complex_noise(images, generator)
        return {
            **batch,
            "image": images,
            "mask": mask,
            "low_frequencies": central_lines(mask),
            "kspace": _kept(kspace, mask),
        }

    def _seen_by_coils(self, images: Tensor, generator: torch.Generator) -> Tensor:
        cases, count, height, width = images.shape
        if count != 1:
            raise InputError(
                f"scans.coils simulates coils, and the images have {count} already; set coils = 0 "
                "in the table data"
            )
        # The seed is known here: reading a number drawn on a GPU would wait for it.
        coils = self.coils[mixed_seed(batch_seed(generator), len(self.coils)) % len(self.coils)]
        maps = random_sensitivities(cases, coils, height, width, generator)
        return images * random_phases(cases, height, width, generator)[:, None] * maps

    def _deviation(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The standard deviation of each case's noise, (case,)."""
        signal = images.abs().square().sum(1).mean((1, 2)).sqrt()
        low, high = self.snr
        decibels = low + (high - low) * _uniform(generator, len(images))
        is_noisy = _uniform(generator, len(images)) < self.noisy
        return torch.where(is_noisy, signal * 10 ** (-decibels / 20), 0)


def measured(
    batch: Batch,
    generator: torch.Generator,
    *,
    views: CoilViews | None = None,
    scans: AnyScan | None = None,
) -> Batch:
    """Return a batch with its measured ``kspace``, moved and scanned as the settings say.

    Arguments:
        batch: ``image`` and ``mask``.
        generator: Of this step.
        views: How images are moved first.
        scans: How they are scanned; by default through the batch's own masks, without noise.

    Example:
        >>> batch = {"image": torch.ones(1, 2, 8, 8) + 0j, "mask": torch.arange(8)[None] == 4}
        >>> measured(batch, torch.Generator())["kspace"].abs().sum((0, 1, 2)).tolist()
        [0.0, 0.0, 0.0, 0.0, 16.0, 0.0, 0.0, 0.0]
    """
    if views is not None:
        batch = {**batch, "image": views(batch["image"], generator)}
    if scans is not None:
        return scans(batch, generator)
    return {**batch, "kspace": _kept(fft2c(batch["image"]), batch["mask"])}


def remapped(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    r"""Map the magnitudes of each case by a random increasing function; 0 and the largest stay.

    .. math:: m \mapsto L \sum_{k=1}^{10} d_k\, \min(\max(10\, m / L - k + 1, 0), 1), \qquad
        d_k \ge 0, \quad \textstyle\sum_k d_k = 1

    :math:`L` is the largest magnitude. Coils keep their phase and their share of a pixel.

    Arguments:
        images: Complex (case, coil, height, width).
        strength: Between 0, where every :math:`d_k` is 1/10, and 1.
        generator: Where the functions come from.

    Example:
        >>> x = torch.linspace(0, 2, 16).reshape(1, 1, 4, 4) + 0j
        >>> y = remapped(x, 1.0, torch.Generator().manual_seed(0)).real.flatten()
        >>> bool((y.diff() >= 0).all()), round(float(y[-1]), 5)
        (True, 2.0)
    """
    cases, steps = len(images), 10
    rise = 1 - strength + strength * 2 * _uniform(generator, cases, steps)
    rise = rise / rise.sum(1, keepdim=True).clamp_min(1e-6)
    magnitude = rss(images)[:, None]
    tiny = torch.finfo(magnitude.dtype).tiny
    largest = magnitude.amax((-2, -1), keepdim=True).clamp_min(tiny)
    place = steps * magnitude / largest
    mapped = sum(rise[:, k].view(-1, 1, 1, 1) * (place - k).clamp(0, 1) for k in range(steps))
    return images * (mapped * largest / magnitude.clamp_min(tiny))


def _kept(kspace: Tensor, mask: Tensor) -> Tensor:
    return torch.where(broadcast_mask(mask, kspace), kspace, 0)


def _uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return numbers_of_cases(torch.rand, shape, generator, device=generator.device)
