"""A share of a run that some process is to do: picklable, and complete in itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from taskuq.outputs.shards import Header, TableWriter
from taskuq.pipeline.cases import Cases
from taskuq.pipeline.chain import Chain
from taskuq.pipeline.local import run_locally
from taskuq.pipeline.progress import Progress


@dataclass(frozen=True)
class Work:
    """Everything a worker needs; what it computes it writes into the table itself.

    Arguments:
        chain: Measurement, recovery and task.
        cases: All cases of the run.
        folder: The folder of the table, which every worker can reach.
        header: The table's attributes.
    """

    chain: Chain
    cases: Cases
    folder: Path
    header: Header

    def do(self, todo: list[int], progress: Progress | None = None) -> int:
        """Run the given cases, write their rows and return how many were tried."""
        run_locally(
            self.chain, self.cases, todo, TableWriter(self.folder, self.header),
            progress=progress or Progress(len(todo), quiet=True),
        )  # fmt: skip
        return len(todo)


def chunks(todo: list[int], size: int) -> list[list[int]]:
    """Cut a list of cases into pieces of at most ``size``.

    Example:
        >>> chunks([3, 4, 5], 2)
        [[3, 4], [5]]
    """
    return [todo[start : start + size] for start in range(0, len(todo), size)]
