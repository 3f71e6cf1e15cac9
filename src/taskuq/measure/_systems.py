"""Registry of imaging systems."""

from __future__ import annotations

from typing import Annotated, Protocol

from taskuq._registry import Registry
from taskuq.interval import BoolArray
from taskuq.protocols import Measure
from taskuq.table._terminology import Terminology


class MeasureConfig(Protocol):
    """Settings [measure]: a frozen dataclass with one field per key."""

    @property
    def accelerations(self) -> tuple[float, ...]:
        """R of the rounds, decreasing."""

    @property
    def round_names(self) -> tuple[str, ...] | None:
        """Display names of the rounds; None to display R."""

    @property
    def terminology(self) -> Terminology:
        """Display names of cases, groups, images and measurements."""

    def masks(self, width: int) -> BoolArray:
        """Return the lines or views of each round for images of a given width, (round, line)."""

    def scanner(self, width: int, *, noise: float, seed: int) -> Measure:
        """Return the imaging system for images of a given width and noise standard deviation."""


SYSTEMS: Registry[type[MeasureConfig]] = Registry(
    "imaging system",
    {
        "mri": "taskuq.measure._mri:MaskConfig",
        "tomography": "taskuq.measure._tomography:TomographyConfig",
    },
)
# A field of settings whose table is one of them; MRI by default.
AnySystem = Annotated[MeasureConfig, SYSTEMS]
