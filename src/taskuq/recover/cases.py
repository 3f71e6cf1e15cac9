"""Cases for training a recovery network: an image, and one of the masks drawn for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taskuq.data.dataset import Dataset, Item, precision_of
from taskuq.data.memory import whole_images
from taskuq.data.readers import Data, open_data, paper_data
from taskuq.errors import InputError
from taskuq.measure.coils import rss
from taskuq.measure.masks import MaskConfig
from taskuq.recover.columns import central_lines
from taskuq.training.config import TrainingConfig
from taskuq.training.feed import Stock
from taskuq.training.fit import Machine


@dataclass(frozen=True, eq=False)
class MeasuredCases:
    """A data set seen through masks, addressed by (epoch, index).

    Arguments:
        source: Complex coil images (coil, height, width), or magnitude images, which count as one
            coil.
        masks: Booleans (round, width).
        seed: Draws one of the masks for each case and epoch, each with the same probability. None
            gives case i the mask i modulo the number of rounds, as validation needs.
        ranges: The data range of each group; the maximum of the case itself by default.

    Example:
        >>> from taskuq.data.arrays import ArrayDataset
        >>> data = ArrayDataset(np.ones((2, 8, 8)), label=[0, 1], group="each")
        >>> masks = np.array([[0, 0, 0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 1, 0, 1, 0]], dtype=bool)
        >>> cases = MeasuredCases(data, masks, seed=0)
        >>> case = cases[5, 1]  # epoch 5, case 1
        >>> case["image"].shape, case["mask"].shape
        (torch.Size([1, 8, 8]), torch.Size([8]))
    """

    source: Dataset
    masks: NDArray[np.bool_]
    seed: int | None
    ranges: Mapping[str, float] = field(default_factory=dict)
    # What one look at a case tells stays true: looking again in every epoch would cost more than a
    # training step, and on a GPU each look waits for it.
    _looked_at: dict[int, float] = field(init=False, repr=False, default_factory=dict)

    @property
    def precision(self) -> str | None:
        """How exact the images are, where their source says."""
        return precision_of(self.source)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, place: tuple[int, int]) -> dict[str, Tensor]:
        epoch, index = place
        item = self.source[index]
        which = self.round(epoch, index)
        return {
            "image": as_coils(item.image),
            "mask": self._rounds[0][which],
            "low_frequencies": self._rounds[1][which],
            "data_range": torch.tensor(self._range(index, item), dtype=torch.float32),
        }

    def stock(self, device: torch.device, most: float) -> Stock | None:
        """All cases and masks on a device."""
        images = whole_images(self.source, as_coils, device, most)
        if images is None:
            return None
        ranges = [self._range(index, self.source[index]) for index in range(len(self))]
        masks, lines = (values.to(device) for values in self._rounds)
        return Stock(
            by_case={"image": images, "data_range": torch.tensor(ranges, device=device)},
            by_draw={"mask": masks, "low_frequencies": lines},
            drawn=self.round,
        )

    def _range(self, index: int, item: Item) -> float:
        if index not in self._looked_at:
            self._looked_at[index] = self._largest(as_coils(item.image), item.case)
        return self.ranges.get(item.group) or self._looked_at[index]

    def _largest(self, image: Tensor, case: str) -> float:
        """The largest magnitude of an image that is fit for training."""
        if image.shape[-1] != self.masks.shape[1]:
            raise InputError(
                f"case {case} has {image.shape[-1]} columns, the masks have "
                f"{self.masks.shape[1]}; use images of one size"
            )
        if not bool(torch.isfinite(torch.view_as_real(image)).all()):
            raise InputError(f"case {case} holds NaN or infinite values; leave it out")
        return float(rss(image).max())

    @cached_property
    def _rounds(self) -> tuple[Tensor, Tensor]:
        """Mask and low-frequency lines of each round."""
        masks = torch.as_tensor(self.masks)
        return masks, central_lines(masks)

    def round(self, epoch: int, index: int) -> int:
        """Which mask a case has in an epoch."""
        if self.seed is None:
            return index % len(self.masks)
        return int(np.random.default_rng([self.seed, epoch, index]).integers(len(self.masks)))


def as_coils(image: Tensor) -> Tensor:
    """Return complex64 coil images (coil, height, width) of anything a data set gives.

    Arguments:
        image: Complex coil images, or one magnitude image (height, width).

    Example:
        >>> as_coils(torch.ones(4, 4)).shape
        torch.Size([1, 4, 4])
    """
    if image.ndim == 2:
        image = image[None]
    return image.to(torch.complex64)


def group_ranges(source: Dataset) -> dict[str, float]:
    """Return the largest magnitude of each group: the data range of its volume.

    Arguments:
        source: The data set; every case is read once.

    Example:
        >>> from taskuq.data.arrays import ArrayDataset
        >>> images = np.stack([np.full((4, 4), 1.0), np.full((4, 4), 3.0)])
        >>> data = ArrayDataset(images, label=[0, 0], group=["a", "a"], normalise=False)
        >>> group_ranges(data)
        {'a': 3.0}
    """
    ranges: dict[str, float] = {}
    for index in range(len(source)):
        item = source[index]
        largest = float(rss(as_coils(item.image)).max())
        ranges[item.group] = max(largest, ranges.get(item.group, 0.0))
    return ranges


@dataclass(frozen=True)
class RecoveryTraining:
    """What the TOML file of a recovery network's training says, whatever the network.

    Arguments:
        network: The size of the network.
        training: Optimiser, epochs, batch.
        data: Where cases come from.
        measure: The masks, one of which is drawn for each case and epoch.
    """

    network: Any = None
    training: TrainingConfig = field(default_factory=TrainingConfig)
    data: Data = field(default_factory=paper_data)
    measure: MaskConfig = field(default_factory=lambda: MaskConfig(published=True))

    def measured(
        self, machine: Machine, data: tuple[Dataset, Dataset] | None, *, by_volume: bool = False
    ) -> tuple[MeasuredCases, MeasuredCases]:
        """The cases to train on and to validate by, each with its masks.

        Arguments:
            machine: On what to train.
            data: Training and validation data; by default those that the settings name.
            by_volume: Whether the data range is that of a volume, for which each case is read once.
        """
        training, validation = data or open_data(self.data)
        masks = self.measure.masks(as_coils(training[0].image).shape[-1])
        ranges = [group_ranges(part) if by_volume else {} for part in (training, validation)]
        return (
            MeasuredCases(training, masks, self.training.seed, ranges[0]),
            MeasuredCases(validation, masks, None, ranges[1]),
        )
