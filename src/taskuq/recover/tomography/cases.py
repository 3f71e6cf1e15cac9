"""Cases for training recoveries from views: an image, and the views of one of the rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from taskuq.data.dataset import Dataset
from taskuq.data.memory import whole_images
from taskuq.data.readers import READERS, Data, open_data
from taskuq.errors import InputError
from taskuq.measure.radon import Radon
from taskuq.measure.sinograms import Sinograms
from taskuq.measure.tomography import TomographyConfig, view_angles
from taskuq.recover.views import CoilViews
from taskuq.seeds import numbers_of_cases
from taskuq.training.config import TrainingConfig
from taskuq.training.feed import Stock
from taskuq.training.fit import Machine
from taskuq.training.recipe import Batch


@dataclass(frozen=True, eq=False)
class ViewCases:
    """A data set seen at the views of its rounds, addressed by (epoch, index).

    Arguments:
        source: Real images (height, width), as high as wide.
        rounds: How many rounds there are.
        seed: Draws a round for each case and epoch, each with the same probability. None gives
            case i the round i modulo their number, as validation needs.

    Example:
        >>> from taskuq.data.arrays import ArrayDataset
        >>> data = ArrayDataset(np.ones((2, 8, 8)), label=[0, 1], group="each")
        >>> case = ViewCases(data, 4, seed=None)[0, 1]
        >>> case["image"].shape, case["round"]
        (torch.Size([8, 8]), tensor(1))
    """

    source: Dataset
    rounds: int
    seed: int | None

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, place: tuple[int, int]) -> dict[str, Tensor]:
        epoch, index = place
        item = self.source[index]
        if item.image.ndim != 2 or item.image.is_complex() or len(set(item.image.shape)) > 1:
            raise InputError(
                f"case {item.case} has shape {tuple(item.image.shape)} and type "
                f"{item.image.dtype}; tomography takes real square images (coils = 0 in data)"
            )
        return {"image": item.image.float(), "round": torch.tensor(self._round(epoch, index))}

    def stock(self, device: torch.device, most: float) -> Stock | None:
        """All images on a device."""
        self[0, 0]  # images in memory are of one shape, or no stock
        images = whole_images(self.source, torch.Tensor.float, device, most)
        if images is None:
            return None
        rounds = torch.arange(self.rounds, device=device)
        return Stock({"image": images}, {"round": rounds}, self._round)

    def _round(self, epoch: int, index: int) -> int:
        if self.seed is None:
            return index % self.rounds
        return int(np.random.default_rng([self.seed, epoch, index]).integers(self.rounds))


@dataclass(frozen=True)
class ViewsTraining:
    """What the TOML file of a training from views says, whatever the network.

    Arguments:
        network: The size of the network.
        training: Optimiser, epochs, batch.
        data: Where cases come from.
        measure: The views of the rounds, one of which is drawn for each case and epoch.
        views: How images are moved before they are measured, in training alone.
        anywhere: The share of training cases that are seen through random views of their own: for
            networks that shall do well whatever views are chosen.
    """

    network: Any = None
    training: TrainingConfig = field(default_factory=TrainingConfig)
    data: Data = field(default_factory=lambda: READERS["chest"]())
    measure: TomographyConfig = field(default_factory=TomographyConfig)
    views: CoilViews | None = None
    anywhere: float = 0.0

    def scanning(self) -> Scanning:
        """How batches are measured."""
        return Scanning(self.measure, self.views, self.anywhere)

    def prepare(self, machine: Machine, data: Any = None) -> tuple[Any, ...]:
        """The cases to train on and to validate by."""
        training, validation = data or open_data(self.data)
        rounds = len(self.measure.accelerations)
        return (
            ViewCases(training, rounds, self.training.seed),
            ViewCases(validation, rounds, None),
        )


class Scanning:
    """Measures a batch of cases where it is, each at the views of its round.

    Arguments:
        measure: The views of the rounds, and their counts. In training counts are drawn as
            normal numbers, which differ little from Poisson's above some ten photons.
        views: How images are moved first, in training alone.
        anywhere: The share of cases that are seen through random views, in training alone: as many
            as between the first and the last round, log-uniform.

    Example:
        >>> batch = {"image": torch.ones(2, 16, 16), "round": torch.tensor([0, 1])}
        >>> scan = Scanning(TomographyConfig((4.0, 2.0), views=16))
        >>> scan(batch, torch.Generator())[0].mask.sum(1)
        tensor([4, 8])
    """

    def __init__(
        self, measure: TomographyConfig, views: CoilViews | None = None, anywhere: float = 0.0
    ) -> None:
        if not 0 <= anywhere <= 1:
            raise InputError(f"anywhere is {anywhere}; give a share of cases between 0 and 1")
        self.measure, self.views, self.anywhere = measure, views, anywhere
        masks = measure.masks(0)
        # Rounds are nested: without random views no other one is ever looked at.
        kept = np.arange(measure.views) if anywhere else np.flatnonzero(masks[-1])
        self.masks, self.angles = torch.as_tensor(masks[:, kept]), view_angles(kept, measure.views)
        self.shares = 1 / torch.tensor(measure.accelerations)

    def __call__(self, batch: Batch, generator: torch.Generator) -> tuple[Sinograms, Tensor]:
        """Measured views, and the images that were measured, (case, height, width)."""
        images = batch["image"]
        if self.views is not None and "progress" in batch:
            images = self.views(images[:, None] + 0j, generator)[:, 0].abs()
        which = batch["round"]
        mask = self.masks.to(images.device)[which]
        share = self.shares.to(images.device)[which]
        if self.anywhere and "progress" in batch:
            mask, share = self._anywhere(mask, share, generator)
        radon = Radon(images.shape[-1], self.angles)
        exact = radon(images)
        counts, size = self.measure.counts, radon.size
        read = exact
        if counts.photons:
            rate = counts.rate(exact, size)
            shape = tuple(rate.shape)
            noise = numbers_of_cases(torch.randn, shape, generator, device=images.device)
            read = counts.read(rate + rate.sqrt() * noise, size)
        read = read * mask[:, :, None]
        variance = counts.variance(read, size) * mask[:, :, None]
        mean = variance.sum((1, 2)) / (mask.sum(1) * radon.detectors)
        return Sinograms(read, mask, radon, share, mean), images

    def _anywhere(
        self, mask: Tensor, share: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Masks (case, view) in which some cases have views of their own, and measured shares."""
        cases, total = mask.shape

        def uniform(*shape: int) -> Tensor:
            return numbers_of_cases(torch.rand, shape, generator, device=mask.device)

        few, many = 1 / max(self.measure.accelerations), 1 / min(self.measure.accelerations)
        counts = torch.round(total * few * (many / few) ** uniform(cases)).clamp(1, total)
        rank = uniform(cases, total).argsort(dim=1).argsort(dim=1)
        own = uniform(cases) < self.anywhere
        drawn = torch.where(own[:, None], rank < counts[:, None], mask)
        return drawn, torch.where(own, counts / total, share)
