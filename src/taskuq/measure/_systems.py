"""Registry of imaging systems."""

from __future__ import annotations

from typing import Annotated, Protocol

from taskuq._registry import Registry
from taskuq.interval import BoolArray
from taskuq.protocols import Measure
from taskuq.table._terminology import Terminology


class _MeasureConfig(Protocol):
    """A table ``[measure]``: a frozen dataclass whose fields are the table's keys."""

    @property
    def accelerations(self) -> tuple[float, ...]:
        """R of the rounds, decreasing."""

    @property
    def round_names(self) -> tuple[str, ...] | None:
        """What rounds are called wherever a person reads; None where R says all."""

    @property
    def words(self) -> Terminology:
        """What cases, groups, pictures and measurements are called."""

    def masks(self, width: int) -> BoolArray:
        """What each round measures of images of a width, booleans (round, line or view)."""

    def scanner(self, width: int, *, noise: float, seed: int) -> Measure:
        """The imaging system for images of a width.

        Arguments:
            width: Of the images, in pixels.
            noise: Standard deviation of the measurement noise.
            seed: Together with an image it decides the noise.
        """


SYSTEMS: Registry[type[_MeasureConfig]] = Registry(
    "imaging system",
    {
        "mri": "taskuq.measure._mri:MaskConfig",
        "tomography": "taskuq.measure._tomography:TomographyConfig",
    },
)
# A field of settings whose table is one of them; MRI where it says nothing.
AnySystem = Annotated[_MeasureConfig, SYSTEMS]
