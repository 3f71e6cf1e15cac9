"""Several networks draw in turn: samples that differ by what no single network can know of itself.

A network's samples say what the measurement leaves open, as far as that network knows. Networks
that were trained with other seeds, or on other patients, disagree where none of them has seen
enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from taskuq.errors import InputError
from taskuq.protocols import BatchRecover, Recover
from taskuq.recover.methods import open_recovery
from taskuq.recover.scan import DrawsCoilImages, Scan
from taskuq.seeds import mixed_seed


@dataclass(frozen=True)
class Ensemble:
    r"""Sample :math:`j` is drawn by member :math:`j \bmod n`, from a seed of that member's own.

    A sample depends on its measurement, the case's seed and its number, as those of the members do:
    not on how many are drawn, nor on which cases are drawn together.

    Arguments:
        members: The recoveries, at least one.

    Example:
        >>> from taskuq.measure.mri import Measurement
        >>> scan = Measurement(torch.ones(4, 8, 8) + 0j, torch.ones(8, dtype=torch.bool), 1.0)
        >>> half = lambda scan, samples, seed: torch.full((samples, 8, 8), 0.5)
        >>> one = lambda scan, samples, seed: torch.full((samples, 8, 8), 1.0)
        >>> Ensemble((half, one))(scan, samples=3, seed=0)[:, 0, 0]
        tensor([0.5000, 1.0000, 0.5000])
    """

    members: tuple[Recover, ...]

    def __post_init__(self) -> None:
        if not self.members:
            raise InputError("the ensemble has no members; name at least one trained network")

    @property
    def rejected(self) -> int:
        """How many draws of its members were out of bounds so far."""
        return sum(getattr(member, "rejected", 0) for member in self.members)

    def __call__(self, measurement: Scan, *, samples: int, seed: int) -> Tensor:
        """Return samples, (sample, height, width)."""
        return self.batch([measurement], samples=samples, seeds=[seed])[0]

    def batch(self, measurements: Sequence[Scan], *, samples: int, seeds: Sequence[int]) -> Tensor:
        """Return samples of several cases, (case, sample, height, width)."""

        def draw(member: Recover, count: int, own: Sequence[int]) -> Tensor:
            if isinstance(member, BatchRecover):
                return torch.as_tensor(member.batch(measurements, samples=count, seeds=own))
            pairs = zip(measurements, own, strict=True)
            return torch.stack(
                [torch.as_tensor(member(y, samples=count, seed=seed)) for y, seed in pairs]
            )

        return self._in_turn(draw, samples, seeds)

    def coil_images(self, measurement: Scan, *, samples: int, seed: int) -> Tensor:
        """Return samples before coils are combined, (sample, coil, height, width)."""

        def draw(member: Recover, count: int, own: Sequence[int]) -> Tensor:
            if not isinstance(member, DrawsCoilImages):
                raise InputError(
                    f"a member of the ensemble, {type(member).__name__}, shows no coil images; "
                    "ask for the images themselves"
                )
            return member.coil_images(measurement, samples=count, seed=own[0])[None]

        return self._in_turn(draw, samples, [seed])[0]

    def _in_turn(self, draw: Any, samples: int, seeds: Sequence[int]) -> Tensor:
        if samples < 1:
            raise InputError(f"{samples} samples are asked for; ask for at least 1")
        turns = len(self.members)
        drawn: Tensor | None = None
        for number, member in enumerate(self.members[:samples]):
            count = len(range(number, samples, turns))
            # Members of one build would turn the same numbers into samples that are alike.
            part = draw(member, count, [mixed_seed(seed, number) for seed in seeds])
            if part.shape[1] != count:
                raise InputError(
                    f"member {number + 1} of the ensemble gives {part.shape[1]} recovery of a case "
                    f"where {count} are asked for; ask for at most {turns} samples, or name "
                    "posterior samplers alone"
                )
            if drawn is None:
                drawn = part.new_empty((part.shape[0], samples, *part.shape[2:]))
            drawn[:, number::turns] = part
        assert drawn is not None
        return drawn


@dataclass(frozen=True)
class EnsembleMethod:
    """The table ``[recover]`` of an ensemble.

    Arguments:
        members: The trained networks: .safetensors files, or names of the package's own; of one
            kind or of several.
    """

    members: tuple[Path, ...] = ()

    def open(self, device: torch.device | str) -> Ensemble:
        """Load every member on a device, each as its own kind is opened."""
        if not self.members:
            raise InputError("recover.members is missing; name the trained networks")
        return Ensemble(tuple(open_recovery(member, device=device) for member in self.members))
