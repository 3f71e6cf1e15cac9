"""Imaging systems by name: the one list, whose settings are the table ``[measure]``."""

from __future__ import annotations

from typing import Annotated, Protocol

from taskuq.interval import BoolArray
from taskuq.kinds import Kinds
from taskuq.protocols import Measure
from taskuq.words import Words


class System(Protocol):
    """A table ``[measure]``: a frozen dataclass whose fields are the table's keys."""

    @property
    def accelerations(self) -> tuple[float, ...]:
        """R of the rounds, decreasing."""

    @property
    def round_names(self) -> tuple[str, ...] | None:
        """What rounds are called wherever a person reads; None where R says all."""

    @property
    def words(self) -> Words:
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


SYSTEMS: Kinds[type[System]] = Kinds(
    "imaging system",
    {
        "mri": "taskuq.measure.masks:MaskConfig",
        "tomography": "taskuq.measure.tomography:TomographyConfig",
    },
)
# A field of settings whose table is one of them; MRI where it says nothing.
AnySystem = Annotated[System, SYSTEMS]
