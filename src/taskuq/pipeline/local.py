"""The work of one process: cases in batches, images read ahead, shards as it goes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from taskuq.disk import ended_by_sigterm
from taskuq.errors import InputError, MachineError, whole_sentence
from taskuq.interval import BoolArray
from taskuq.outputs.shards import Header, TableWriter, finished_cases
from taskuq.pipeline.batches import Batches, Ran
from taskuq.pipeline.cases import Cases
from taskuq.pipeline.chain import CaseOutputs, Chain
from taskuq.pipeline.device import pinned_threads
from taskuq.pipeline.log import RunLog
from taskuq.pipeline.progress import Progress
from taskuq.ranges import require_in_ranges

# A shard is written when so many rows or seconds have gathered.
ROWS, SECONDS = 4096, 5.0
# So many failures in a row, and no success before, mean that something is wrong with the set-up.
HOPELESS = 20


@dataclass
class Rows:
    """Finished cases that wait to be written; the one thing here that changes."""

    writer: TableWriter
    cases: Cases
    index: list[int] = field(default_factory=list)
    found: list[CaseOutputs] = field(default_factory=list)
    since: float = field(default_factory=time.monotonic)

    def add(self, index: int, outputs: CaseOutputs) -> None:
        """Take a finished case, and write a shard if it is time."""
        self.index.append(index)
        self.found.append(outputs)
        rows = len(self.index) * len(self.writer.header.accelerations)
        if rows >= ROWS or time.monotonic() - self.since > SECONDS:
            self.flush()

    def _lines(self) -> BoolArray | None:
        """What was measured in each row, (row, line), where a rule chose it."""
        each = [f.lines for f in self.found if f.lines is not None]
        return np.concatenate(np.stack(each, axis=1)) if each else None

    def flush(self) -> None:
        """Write what has gathered as one shard."""
        if self.index:
            rates = self.writer.header.accelerations
            rounds = len(rates)
            outputs = np.stack([f.outputs for f in self.found], axis=1)
            try:
                self.writer.write(
                    np.tile([self.cases.case[i] for i in self.index], rounds),
                    np.repeat(rates, len(self.index)).tolist(),
                    outputs.reshape(-1, *outputs.shape[2:]),
                    np.tile(np.stack([f.targets for f in self.found]), (rounds, 1)),
                    group=_rows(self.cases.group, self.index, rounds),
                    label=_rows(self.cases.label, self.index, rounds),
                    image=np.tile([f.image for f in self.found], rounds),
                    lines=self._lines(),
                )
            except MachineError as error:
                raise MachineError(f"{error}; finished cases are kept") from None
        self.index, self.found, self.since = [], [], time.monotonic()


@dataclass(frozen=True)
class Work:
    """Everything a worker needs, picklable; what it computes it writes into the table itself.

    Arguments:
        chain: Measurement, recovery and task.
        cases: All cases of the run.
        writer: Where rows go: a folder that every worker can reach.
        threads: How many threads torch computes with, here and in every worker.
    """

    chain: Chain
    cases: Cases
    writer: TableWriter
    threads: int | None = None

    @property
    def log(self) -> RunLog:
        """What happens in the run, beside its table."""
        return RunLog(self.writer.folder)

    @property
    def folder(self) -> Path:
        """The folder of the table."""
        return self.writer.folder

    @property
    def size(self) -> int:
        """How many cases run at once."""
        return self.chain.size

    def unfinished(self, todo: Sequence[int]) -> list[int]:
        """Return the cases that no shard holds yet.

        Arguments:
            todo: The numbers of cases.
        """
        names = [self.cases.case[index] for index in todo]
        done = finished_cases(self.folder, self.writer.header, names)
        return [int(index) for index in np.asarray(todo, dtype=int)[~done]]

    def give_up(self, index: int, error: Exception) -> None:
        """Write to the log why a case is missing.

        Arguments:
            index: The number of the case.
            error: The reason.
        """
        self.log.failed(self.cases.case[index], error)

    def do(self, todo: list[int], progress: Progress | None = None) -> int:
        """Run the given cases, write their rows and return how many were tried.

        Cases run in batches; images of the next ones are read meanwhile. A case that fails is
        written to the log with its reason, and the run goes on; memory that runs out halves the
        batches. An interruption writes what is finished before it takes effect.

        Arguments:
            todo: The numbers of the cases to run.
            progress: Told of every case.
        """
        batches = Batches(self.chain, self.cases, self.log)
        with pinned_threads(self.threads), ended_by_sigterm():
            self.keep(batches.run(todo), progress or Progress(len(todo), quiet=True))
        return len(todo)

    def keep(self, found: Iterable[Ran], progress: Progress) -> None:
        """Write what cases gave into the table, or into the log why they gave nothing.

        Arguments:
            found: Cases that were run.
            progress: Told of every case.
        """
        rows = Rows(self.writer, self.cases)
        failures = successes = 0
        try:
            for index, numbers in found:
                error = refusal(numbers, self.writer.header)
                if isinstance(numbers, CaseOutputs) and error is None:
                    successes += 1
                    rows.add(index, numbers)
                    progress.step()
                    continue
                assert error is not None
                self.log.failed(self.cases.case[index], error)
                failures += 1
                progress.step(failed=True)
                if successes == 0 and failures >= HOPELESS:
                    raise InputError(
                        f"the first {failures} cases all failed, the last with "
                        f"{whole_sentence(error, 200)}"
                    ) from error
        finally:
            rows.flush()


def refusal(found: CaseOutputs | Exception, header: Header) -> Exception | None:
    """Return why the numbers of a case cannot stand in a table, or None where they can.

    Arguments:
        found: What running the case gave.
        header: The table's attributes.
    """
    if isinstance(found, Exception):
        return found
    wanted = (len(header.accelerations), header.samples, len(header.task_names))
    if found.outputs.shape != wanted or found.targets.shape != wanted[2:]:
        return InputError(f"the case gave outputs {found.outputs.shape}, the table has {wanted}")
    try:
        require_in_ranges(found.outputs, header.task_ranges, "outputs")
        require_in_ranges(found.targets, header.task_ranges, "targets")
    except InputError as error:
        return error
    return None


def _rows(values: np.ndarray | None, index: list[int], rounds: int) -> np.ndarray | None:
    return None if values is None else np.tile(values[index], rounds)
