"""Registry, measurement check, zero-filled, ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from taskuq._seeds import mix_seeds
from taskuq.errors import InputError
from taskuq.measure._coils import rss
from taskuq.pipeline._adapters import RecoveryFolder
from taskuq.protocols import BatchRecover, Recover
from taskuq.training._networks import MethodRegistry
from taskuq.training._weights import locate, read_card


@runtime_checkable
class MeasurementLike(Protocol):
    """Protocol of a measurement: zero_filled and mask."""

    @property
    def zero_filled(self) -> Tensor:
        """Coil images, complex (coil, height, width)."""

    @property
    def mask(self) -> Tensor:
        """The measured columns, booleans (width,)."""


@runtime_checkable
class _SamplesCoilImages(Protocol):
    """Recovery that also returns coil images."""

    def coil_images(self, measurement: MeasurementLike, *, samples: int, seed: int) -> Tensor:
        """Return samples, complex (sample, coil, height, width)."""


def _check_measurement(measurement: MeasurementLike) -> MeasurementLike:
    """Validate a measurement."""
    if not isinstance(measurement, MeasurementLike):
        raise InputError(
            f"the measurement is a {type(measurement).__name__} without zero_filled or mask; give "
            "one as taskuq.measure._mri makes it"
        )
    y = measurement.zero_filled
    if not isinstance(y, Tensor) or y.ndim != 3 or not y.is_complex():
        raise InputError("zero_filled is not one complex stack (coil, height, width); give that")
    numbers = torch.view_as_real(y)
    # Where a sum is finite all its terms are, and it is ten times as quick; it may overflow.
    if not torch.isfinite(numbers.sum()) and not torch.isfinite(numbers).all():
        raise InputError("the measurement holds NaN or infinite values; measure that case again")
    return measurement


def rescale_pow2(images: Tensor) -> tuple[Tensor, Tensor]:
    """Scale images to [1/2, 1) by powers of two."""
    images = images.to(torch.complex64)
    largest = torch.view_as_real(images).abs().flatten(1).amax(1)
    # Factors stay normal numbers, whose reciprocals are numbers, too.
    power = torch.frexp(largest).exponent.clamp(-126, 126)
    size = torch.ldexp(torch.ones_like(largest), power)
    return images / size.view(-1, *(1,) * (images.ndim - 1)), size


def stack_measurements(measurements: Sequence[MeasurementLike]) -> tuple[Tensor, Tensor]:
    """Stack zero-filled images and masks of several cases."""
    scans = [_check_measurement(measurement) for measurement in measurements]
    return (
        torch.stack([scan.zero_filled for scan in scans]),
        torch.stack([torch.as_tensor(scan.mask).bool() for scan in scans]),
    )


RECOVERIES = MethodRegistry(
    "recovery",
    "recover",
    {
        "zero-filled": "taskuq.recover._methods:ZeroFilled",
        "folder": "taskuq.recover._methods:FolderMethod",
        "back-projection": "taskuq.recover._tomography:FilteredBackProjection",
        "ensemble": "taskuq.recover._methods:EnsembleMethod",
    },
)


@dataclass(frozen=True)
class ZeroFilled:
    """The baseline: zeros in the lines that were not measured, coils combined.

    It is its own table ``[recover]``, which has no keys.

    Example:
        >>> from taskuq.measure._mri import MRIMeasurement
        >>> scan = MRIMeasurement(torch.ones(4, 8, 8) + 0j, torch.ones(8, dtype=torch.bool), 1.0)
        >>> ZeroFilled()(scan, samples=32, seed=0).shape  # a point estimate has one sample
        torch.Size([1, 8, 8])
    """

    def __call__(self, measurement: MeasurementLike, *, samples: int, seed: int) -> Tensor:
        """Return the zero-filled magnitude image, (1, height, width)."""
        return rss(_check_measurement(measurement).zero_filled)[None]

    def batch(
        self, measurements: Sequence[MeasurementLike], *, samples: int, seeds: Sequence[int]
    ) -> Tensor:
        """Return the zero-filled magnitude images of several cases, (case, 1, height, width)."""
        return rss(torch.stack([_check_measurement(scan).zero_filled for scan in measurements]))[
            :, None
        ]

    def open(self, device: torch.device | str) -> ZeroFilled:
        """Return itself: it runs where its measurements are."""
        return self


@dataclass(frozen=True)
class FolderMethod:
    """The table ``[recover]`` of recoveries that were made elsewhere."""

    path: Path | None = None

    def open(self, device: torch.device | str) -> RecoveryFolder:
        """Return the folder."""
        if self.path is None:
            raise InputError("recover.path is missing; name the folder of recoveries")
        return RecoveryFolder(self.path)


def open_recovery(
    weights: Path | str, *, device: torch.device | str = "cpu", **settings: Any
) -> Recover:
    """Load a network of any kind and make it ready to recover for :class:`taskuq.Pipeline`.

    Arguments:
        weights: A .safetensors file, or a name of the package's own networks.
        device: Where to run.
        settings: What else the table ``[recover]`` of its kind may say, e.g. ``temperature`` of a
            flow.

    Example:
        >>> type(open_recovery("varnet-atlas")).__name__
        'VarNetRecovery'
    """
    kind = read_card(locate(weights), RECOVERIES.networks())["kind"]
    opened: Recover = RECOVERIES[kind](weights=weights, **settings).open(device)
    return opened


@dataclass(frozen=True)
class Ensemble:
    r"""Sample :math:`j` is drawn by member :math:`j \bmod n`, from a seed of that member's own."""

    members: tuple[Recover, ...]

    def __post_init__(self) -> None:
        if not self.members:
            raise InputError("the ensemble has no members; name at least one trained network")

    @property
    def rejected(self) -> int:
        return sum(getattr(member, "rejected", 0) for member in self.members)

    def __call__(self, measurement: MeasurementLike, *, samples: int, seed: int) -> Tensor:
        """Return samples, (sample, height, width)."""
        return self.batch([measurement], samples=samples, seeds=[seed])[0]

    def batch(
        self, measurements: Sequence[MeasurementLike], *, samples: int, seeds: Sequence[int]
    ) -> Tensor:
        """Return samples of several cases, (case, sample, height, width)."""

        def draw(member: Recover, count: int, own: Sequence[int]) -> Tensor:
            if isinstance(member, BatchRecover):
                return torch.as_tensor(member.batch(measurements, samples=count, seeds=own))
            pairs = zip(measurements, own, strict=True)
            return torch.stack(
                [torch.as_tensor(member(y, samples=count, seed=seed)) for y, seed in pairs]
            )

        return self._in_turn(draw, samples, seeds)

    def coil_images(self, measurement: MeasurementLike, *, samples: int, seed: int) -> Tensor:
        """Return samples before coils are combined, (sample, coil, height, width)."""

        def draw(member: Recover, count: int, own: Sequence[int]) -> Tensor:
            if not isinstance(member, _SamplesCoilImages):
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
            part = draw(member, count, [mix_seeds(seed, number) for seed in seeds])
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
    """The table ``[recover]`` of an ensemble."""

    members: tuple[Path, ...] = ()

    def open(self, device: torch.device | str) -> Ensemble:
        """Load every member on a device, each as its own kind is opened."""
        if not self.members:
            raise InputError("recover.members is missing; name the trained networks")
        return Ensemble(tuple(open_recovery(member, device=device) for member in self.members))
