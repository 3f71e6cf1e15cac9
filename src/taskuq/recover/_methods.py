"""Registry of recovery methods, zero-filled recovery and ensembles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from taskuq._seeds import mix_seeds
from taskuq.errors import InputError
from taskuq.measure._coils import rss
from taskuq.pipeline._executor import RecoveryFolder
from taskuq.protocols import BatchRecover, Recover
from taskuq.training._networks import MethodRegistry
from taskuq.training._weights import load_weights, locate, read_card


@runtime_checkable
class MeasurementLike(Protocol):
    """Protocol of a measurement with ``zero_filled`` and ``mask``."""

    @property
    def zero_filled(self) -> Tensor: ...  # coil images, complex (coil, height, width)

    @property
    def mask(self) -> Tensor: ...  # measured columns, booleans (width,)


class BatchRecovery(ABC):
    """Base class of recovery methods that treat a single case as a batch of one."""

    def __call__(self, measurement: Any, *, samples: int, seed: int) -> Tensor:
        """Return the samples of one case, (sample, height, width)."""
        return self.batch([measurement], samples=samples, seeds=[seed])[0]

    @abstractmethod
    def batch(self, measurements: Sequence[Any], *, samples: int, seeds: Sequence[int]) -> Tensor:
        """Return the samples of several cases, (case, sample, height, width)."""


def check_samples(samples: int) -> None:
    if samples < 1:
        raise InputError(f"samples must be at least 1, got {samples}", code="value.invalid")


def init_weights(network: nn.Module, weights: Path | None, kind: str) -> None:
    if weights is not None:
        path = locate(weights)
        read_card(path, (kind,))
        load_weights(network, path)


def set_float32(precision: str) -> bool:
    """Return True for "float32", and turn off the lower default precision of convolutions."""
    if precision == "float32":
        torch.backends.cudnn.allow_tf32 = False
    return precision == "float32"


def rescale_pow2(images: Tensor) -> tuple[Tensor, Tensor]:
    """Divide each image by a power of two, to a maximum in [1/2, 1); return images and divisors."""
    images = images.to(torch.complex64)
    largest = torch.view_as_real(images).abs().flatten(1).amax(1)
    # Factors stay normal numbers, whose reciprocals are numbers, too.
    power = torch.frexp(largest).exponent.clamp(-126, 126)
    size = torch.ldexp(torch.ones_like(largest), power)
    return images / size.view(-1, *(1,) * (images.ndim - 1)), size


def stack_measurements(measurements: Sequence[Any]) -> tuple[Tensor, Tensor]:
    for measurement in measurements:
        if not isinstance(measurement, MeasurementLike):
            text = f"a measurement must have zero_filled and mask, got {type(measurement).__name__}"
            raise InputError(text, code="component.invalid")
        y = measurement.zero_filled
        if not isinstance(y, Tensor) or y.ndim != 3 or not y.is_complex():
            text = "zero_filled must be a complex tensor (coil, height, width)"
            raise InputError(text, code="shape.axes")
        numbers = torch.view_as_real(y)
        # Where a sum is finite all its terms are, and it is ten times as quick; it may overflow.
        if not torch.isfinite(numbers.sum()) and not torch.isfinite(numbers).all():
            raise InputError("the measurement has NaN or infinite values", code="value.nonfinite")
    masks = [torch.as_tensor(measurement.mask).bool() for measurement in measurements]
    return torch.stack([one.zero_filled for one in measurements]), torch.stack(masks)


N = TypeVar("N", bound=nn.Module)


def load_network(weights: Path | str, kind: type[N]) -> N:
    net = RECOVERIES.load(locate(weights))
    if not isinstance(net, kind):
        text = f"estimate names {weights}, which is not a {kind.__name__}"
        raise InputError(text, code="weights.mismatch")
    return net


RECOVERIES = MethodRegistry(
    "recovery",
    "recover",
    {
        "zero-filled": "taskuq.recover._methods:ZeroFilled",
        "folder": "taskuq.recover._methods:FolderMethod",
        "filtered-back-projection": "taskuq.recover._tomography:FilteredBackProjection",
        "ensemble": "taskuq.recover._methods:EnsembleMethod",
    },
)


@dataclass(frozen=True)
class ZeroFilled(BatchRecovery):
    """Zero-filled baseline: zeros in unmeasured lines, with coils combined.

    Example:
        >>> from taskuq.measure._mri import MRIMeasurement
        >>> scan = MRIMeasurement(torch.ones(4, 8, 8) + 0j, torch.ones(8, dtype=torch.bool), 1.0)
        >>> ZeroFilled()(scan, samples=32, seed=0).shape  # a point estimate has one sample
        torch.Size([1, 8, 8])
    """

    def batch(
        self, measurements: Sequence[MeasurementLike], *, samples: int, seeds: Sequence[int]
    ) -> Tensor:
        return rss(stack_measurements(measurements)[0])[:, None]

    def open(self, device: torch.device | str) -> ZeroFilled:
        return self


@dataclass(frozen=True)
class FolderMethod:
    """Settings of [recover] for precomputed reconstructions."""

    path: Path | None = None  #: Folder of reconstructions.

    def open(self, device: torch.device | str) -> RecoveryFolder:
        if self.path is None:
            raise InputError("recover.path is missing; name a folder", code="config.missing")
        return RecoveryFolder(self.path)


def open_recovery(
    weights: Path | str, *, device: torch.device | str = "cpu", **settings: Any
) -> Recover:
    """Load a trained network as a recovery method for :class:`taskuq.Pipeline`.

    Args:
        weights: A .safetensors file, or the name of a bundled network.
        device: Device to run on.
        settings: Further keys of ``[recover]``, e.g. ``temperature`` of a flow.

    Example:
        >>> type(open_recovery("varnet-atlas")).__name__
        'VarNetRecovery'
    """
    kind = read_card(locate(weights), RECOVERIES.networks())["kind"]
    recovery: Recover = RECOVERIES[kind](weights=weights, **settings).open(device)
    return recovery


@dataclass(frozen=True)
class Ensemble(BatchRecovery):
    r"""Ensemble of :math:`n` members; member :math:`j \bmod n` draws sample :math:`j`."""

    members: tuple[Recover, ...]

    def __post_init__(self) -> None:
        if not self.members:
            raise InputError("recover.members is empty; name networks", code="config.missing")

    @property
    def rejected(self) -> int:
        return sum(getattr(member, "rejected", 0) for member in self.members)

    def batch(
        self, measurements: Sequence[MeasurementLike], *, samples: int, seeds: Sequence[int]
    ) -> Tensor:
        check_samples(samples)
        n = len(self.members)
        parts = []
        for index, member in enumerate(self.members[:samples]):
            count = len(range(index, samples, n))
            # Members of one architecture would turn equal seeds into samples that are alike.
            own = [mix_seeds(seed, index) for seed in seeds]
            if isinstance(member, BatchRecover):
                part = torch.as_tensor(member.batch(measurements, samples=count, seeds=own))
            else:
                pairs = zip(measurements, own, strict=True)
                drawn = [member(y, samples=count, seed=seed) for y, seed in pairs]
                part = torch.stack([torch.as_tensor(images) for images in drawn])
            if part.shape[1] != count:
                text = f"member {index + 1} returned {part.shape[1]} samples instead of {count}; "
                text += f"pass samples <= {n}, or use posterior samplers only"
                raise InputError(text, code="component.invalid")
            parts.append(part)
        return torch.stack([parts[j % n][:, j // n] for j in range(samples)], dim=1)


@dataclass(frozen=True)
class EnsembleMethod:
    """Settings of [recover] for an ensemble."""

    members: tuple[Path, ...] = ()  #: Member networks: weights files or bundled names.

    def open(self, device: torch.device | str) -> Ensemble:
        return Ensemble(tuple(open_recovery(member, device=device) for member in self.members))
