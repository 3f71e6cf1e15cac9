"""Magnitude images become multi-coil data: simulated coils and phase around any data set."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from taskuq.data.dataset import Changed, Dataset, Item
from taskuq.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


def simulated_coils(dataset: Dataset, coils: int, *, seed: int) -> Changed:
    """A data set of magnitude images, seen by simulated coils: complex (coil, height, width).

    The cases of a group share their coils; each case has a smooth phase of its own. The RSS of the
    coil images is the magnitude image. Which coils a group gets depends on the seed and its name
    alone. Cases that have coils already, complex (coil, height, width), stay as they are.

    Arguments:
        dataset: A data set of magnitude images (height, width).
        coils: The number of coils.
        seed: Where coils and phases come from.

    Example:
        >>> from taskuq.data.arrays import ArrayDataset
        >>> data = ArrayDataset(np.ones((3, 16, 16)), label=[0, 1, 0], group=["a", "a", "b"])
        >>> simulated_coils(data, 4, seed=0)[1].image.shape
        torch.Size([4, 16, 16])
    """
    return Changed(dataset, _Coils(coils, seed))


@dataclass(frozen=True)
class _Coils:
    """Simulated coils of a case; a class, so that it can be sent to other processes."""

    coils: int
    seed: int

    def __call__(self, item: Item) -> Item:
        from taskuq.measure.sensitivity import simulate_coils, smooth_phase

        image = item.image
        if image.ndim == 3 and image.is_complex():
            return item
        if image.ndim != 2 or image.is_complex():
            raise InputError(
                f"case {item.case} has shape {tuple(image.shape)} and type {image.dtype}; coils "
                "are simulated for magnitude images (height, width)",
                code="shape.axes",
            )
        height, width = image.shape
        maps = _group_maps(self.coils, height, width, self.seed, item.group)
        rng = np.random.default_rng([self.seed, 1, _number(item.case)])
        phase = smooth_phase(height, width, rng=rng)
        return item._replace(image=simulate_coils(image, maps, phase))


@lru_cache(maxsize=64)
def _group_maps(coils: int, height: int, width: int, seed: int, group: str) -> Tensor:
    from taskuq.measure.sensitivity import coil_sensitivities

    rng = np.random.default_rng([seed, 0, _number(group)])
    return coil_sensitivities(coils, height, width, rng=rng)


def _number(name: str) -> int:
    # Python's own hash of a string differs from run to run.
    return zlib.crc32(name.encode())
