"""Optional capabilities of trainings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from taskuq.training.fit import Machine


@runtime_checkable
class Staged(Protocol):
    """Settings of a training before which other networks are trained."""

    def stages(
        self,
        cases: tuple[Any, ...],
        folder: Path,
        *,
        machine: Machine,
        fresh: bool,
        steps: int | None,
    ) -> tuple[Any, ...]:
        """Train them, in folders of their own, and return the cases that they leave."""


@runtime_checkable
class Storing(Protocol):
    """Settings whose opened data leave a file for the trainings that follow."""

    def open_unstored(self) -> Any:
        """Open the data for ``prepare`` and leave nothing; what is stored is still agreed with."""
