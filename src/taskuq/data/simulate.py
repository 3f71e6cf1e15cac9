"""Magnitude images become multi-coil data: simulated coils and phase around any data set."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from taskuq.data.dataset import Dataset, Item
from taskuq.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SimulatedCoils:
    """A data set of magnitude images, seen by simulated coils.

    The cases of a group share their coils; each case has a smooth phase of its own. The RSS of the
    coil images is the magnitude image. Which coils a group gets depends on the seed and its name
    alone.

    Arguments:
        source: A data set of magnitude images (height, width).
        coils: The number of coils.
        seed: Where coils and phases come from.

    Example:
        >>> from taskuq.data.arrays import ArrayDataset
        >>> data = ArrayDataset(np.ones((3, 16, 16)), label=[0, 1, 0], group=["a", "a", "b"])
        >>> SimulatedCoils(data, coils=4, seed=0)[1].image.shape
        torch.Size([4, 16, 16])
    """

    source: Dataset
    coils: int
    seed: int

    @property
    def labels(self) -> NDArray[np.int64]:
        """The label of each case, (case,)."""
        return self.source.labels

    @property
    def groups(self) -> NDArray[np.str_]:
        """The group of each case, (case,)."""
        return self.source.groups

    @property
    def cases(self) -> NDArray[np.str_] | None:
        """The name of each case, (case,), where the source knows them without reading images."""
        return getattr(self.source, "cases", None)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Item:
        from taskuq.measure.sensitivity import simulate_coils, smooth_phase

        item = self.source[index]
        if item.image.ndim != 2 or item.image.is_complex():
            raise InputError(
                f"case {item.case} has shape {tuple(item.image.shape)} and type "
                f"{item.image.dtype}; coils are simulated for magnitude images (height, width)"
            )
        height, width = item.image.shape
        maps = _group_maps(self.coils, height, width, self.seed, item.group)
        rng = np.random.default_rng([self.seed, 1, _number(item.case)])
        phase = smooth_phase(height, width, rng=rng)
        return item._replace(image=simulate_coils(item.image, maps, phase))


@lru_cache(maxsize=64)
def _group_maps(coils: int, height: int, width: int, seed: int, group: str) -> Tensor:
    from taskuq.measure.sensitivity import coil_sensitivities

    rng = np.random.default_rng([seed, 0, _number(group)])
    return coil_sensitivities(coils, height, width, rng=rng)


def _number(name: str) -> int:
    # Python's own hash of a string differs from run to run.
    return zlib.crc32(name.encode())
