"""Registry of imaging systems, and systems built from callables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from taskuq._registry import Registry
from taskuq.errors import InputError
from taskuq.interval import BoolArray
from taskuq.protocols import Measure
from taskuq.table._terminology import Terminology


class MeasureConfig(Protocol):
    """Settings of [measure]: a frozen dataclass with one field per key."""

    @property
    def accelerations(self) -> tuple[float, ...]:
        """Acceleration R of each round, in decreasing order."""

    @property
    def round_names(self) -> tuple[str, ...] | None:
        """Names that reports use for the rounds; None to show R instead."""

    @property
    def terminology(self) -> Terminology:
        """Names that reports use for cases, groups, images and measurements."""

    def masks(self, width: int) -> BoolArray:
        """Return masks (round, line) of the measured lines or views, for a given image width."""

    def scanner(self, width: int, *, noise: float, seed: int) -> Measure:
        """Return the imaging system for a given image width and standard deviation of the noise."""


SYSTEMS: Registry[type[MeasureConfig]] = Registry(
    "imaging system",
    {
        "mri": "taskuq.measure._mri:MaskConfig",
        "tomography": "taskuq.measure._tomography:TomographyConfig",
    },
)
AnySystem = Annotated[MeasureConfig, SYSTEMS]


@dataclass(frozen=True)
class CallableMeasure:
    """Imaging system built from one callable per acceleration."""

    systems: Mapping[float, Callable[[Any], Any]]

    def __post_init__(self) -> None:
        if not self.systems or list(self.systems) != sorted(self.systems, reverse=True):
            text = f"accelerations: {list(self.systems)}; pass decreasing accelerations"
            raise InputError(text, code="rounds.invalid")

    @property
    def accelerations(self) -> tuple[float, ...]:
        return tuple(self.systems)

    def __call__(self, image: Any, acceleration: float) -> Any:
        from taskuq.measure._fourier import round_at  # torch

        return self.systems[self.accelerations[round_at(acceleration, self.accelerations)]](image)
