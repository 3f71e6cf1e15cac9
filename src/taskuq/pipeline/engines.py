"""Where the cases of a run are computed: one list of engines, each with its options."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from taskuq.errors import InputError
from taskuq.kinds import Kinds
from taskuq.pipeline.progress import Progress


@dataclass(frozen=True)
class Flags:
    """What the command line may say about an engine.

    Arguments:
        address: Of a running Ray cluster; 'local' with slurm runs jobs on this machine.
        workers: How many Ray workers or SLURM jobs.
        slurm: What SLURM is asked for, name=value.
        device: Where networks run; a Ray worker on a GPU asks for a whole one.
    """

    address: str | None = None
    workers: int | None = None
    slurm: tuple[str, ...] = ()
    device: str | None = None

    def refuse_slurm(self) -> None:
        """Refuse what only SLURM understands."""
        if self.slurm:
            raise InputError(
                "--slurm is for the slurm engine; choose --engine slurm, or leave it out"
            )


class Work(Protocol):
    """What an engine shares out: pieces by number, such as the cases of a run; picklable."""

    @property
    def folder(self) -> Path:
        """Where finished pieces are kept, within reach of every worker."""

    @property
    def size(self) -> int:
        """How many pieces are best done together."""

    def do(self, todo: list[int], progress: Progress | None = None) -> int:
        """Do pieces, keep each, tell of each, and return how many were tried."""

    def unfinished(self, todo: Sequence[int]) -> list[int]:
        """Return the pieces that are not kept yet."""

    def give_up(self, index: int, error: Exception) -> None:
        """Go on without a piece that ends whoever tries it, or raise."""


class Engine(Protocol):
    """Options of an engine, and how it goes through work with them."""

    @classmethod
    def from_flags(cls, flags: Flags) -> Engine:
        """Take what the command line was told, and refuse what means nothing here."""

    def ready(self, scratch: Path) -> AbstractContextManager[None]:
        """Reach the machines before anything is computed, so that a mistake shows at once."""

    def run(self, work: Work, todo: list[int], progress: Progress) -> None:
        """Have the pieces of these numbers done, in the end by ``work.do``."""


ENGINES: Kinds[type[Engine]] = Kinds(
    "engine",
    {
        "local": "taskuq.pipeline.engines:ThisProcess",
        "ray": "taskuq.pipeline.cluster:RayOptions",
        "slurm": "taskuq.pipeline.slurm:SlurmOptions",
    },
)


@dataclass(frozen=True)
class ThisProcess:
    """The engine that needs nothing: all cases run here, one batch after the other.

    Example:
        >>> ENGINES["local"].from_flags(Flags(workers=4))
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: the local engine takes no workers or address; ...
    """

    @classmethod
    def from_flags(cls, flags: Flags) -> ThisProcess:
        """Take what the command line was told: nothing."""
        flags.refuse_slurm()
        if flags.workers is not None or flags.address is not None:
            raise InputError(
                "the local engine takes no workers or address; choose --engine ray or slurm"
            )
        return cls()

    def ready(self, scratch: Path) -> AbstractContextManager[None]:
        """There is nobody to reach."""
        return nullcontext()

    def run(self, work: Work, todo: list[int], progress: Progress) -> None:
        """Run the cases in this process."""
        work.do(todo, progress)
