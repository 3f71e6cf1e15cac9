"""The local engine: one process, cases in batches, images read ahead, shards as it goes."""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from taskuq.checks import require_finite, require_in_range
from taskuq.errors import InputError
from taskuq.outputs.shards import Header, TableWriter
from taskuq.pipeline.batches import Batches
from taskuq.pipeline.cases import Cases
from taskuq.pipeline.chain import CaseOutputs, Chain
from taskuq.pipeline.log import RunLog
from taskuq.pipeline.progress import Progress

# Images read ahead of those that are being recovered, at least.
AHEAD = 4
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

    def flush(self) -> None:
        """Write what has gathered as one shard."""
        if not self.index:
            self.since = time.monotonic()
            return
        rates = self.writer.header.accelerations
        rounds = len(rates)
        case = np.tile([self.cases.case[i] for i in self.index], rounds)
        outputs = np.concatenate(
            [np.stack([f.outputs[k] for f in self.found]) for k in range(rounds)]
        )
        try:
            self.writer.write(
                case,
                np.repeat(rates, len(self.index)).tolist(),
                outputs,
                np.tile(np.stack([f.targets for f in self.found]), (rounds, 1)),
                group=_rows(self.cases.group, self.index, rounds),
                label=_rows(self.cases.label, self.index, rounds),
            )
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise InputError(
                    f"the disk under {self.writer.folder} is full; make room and start the same "
                    "command again, finished cases are kept"
                ) from None
            raise
        self.index, self.found, self.since = [], [], time.monotonic()


def run_locally(
    chain: Chain, cases: Cases, todo: Sequence[int], writer: TableWriter, *, progress: Progress
) -> None:
    """Run the given cases in this process and write their rows.

    Cases run in batches; images of the next ones are read meanwhile. A case that fails is written
    to the log with its reason, and the run goes on; memory that runs out halves the batches. An
    interruption writes what is finished before it takes effect.

    Arguments:
        chain: Measurement, recovery and task.
        cases: All cases.
        todo: The numbers of those to run.
        writer: Where rows go.
        progress: Told of every case.
    """
    log = RunLog(writer.folder)
    rows = Rows(writer, cases)
    failures = successes = 0
    try:
        for index, found in run_cases(Batches(chain), cases, todo, log):
            error = refusal(found, writer.header)
            if isinstance(found, CaseOutputs) and error is None:
                successes += 1
                rows.add(index, found)
                progress.step()
                continue
            assert error is not None
            log.failed(cases.case[index], error)
            failures += 1
            progress.step(failed=True)
            if successes == 0 and failures >= HOPELESS:
                raise InputError(
                    f"the first {failures} cases all failed, the last with "
                    f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
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
        with np.errstate(over="ignore"):
            stored = found.outputs.astype(np.float32)
        require_finite(stored, "outputs")
        require_in_range(stored, header.task_range, "outputs")
        require_in_range(found.targets, header.task_range, "targets")
    except InputError as error:
        return error
    return None


def run_cases(
    batches: Batches, cases: Cases, todo: Sequence[int], log: RunLog | None = None
) -> Iterator[tuple[int, CaseOutputs | Exception]]:
    """Yield the numbers of each case, or why there are none, batch by batch.

    Arguments:
        batches: Run what is put together here.
        cases: All cases.
        todo: The numbers of those to run.
        log: Told when memory has run out.
    """
    together: list[tuple[int, str, Any]] = []

    def finish() -> Iterator[tuple[int, CaseOutputs | Exception]]:
        before = batches.halvings
        yield from batches.run(together)
        if batches.halvings > before and log is not None:
            log.write("out of memory", batch=batches.chain.size)
        together.clear()

    for index, reading in _read_ahead(cases, todo, max(AHEAD, 2 * batches.chain.size)):
        try:
            # Here, not in the thread that reads: GPU work cannot be recorded while another thread
            # sets aside memory on the same device.
            image = batches.chain.place(reading.result())
        except Exception as error:  # a file that cannot be read is the failure of its case alone
            yield index, error
            continue
        if together and _shape(together[0][2]) != _shape(image):
            yield from finish()
        together.append((index, cases.case[index], image))
        if len(together) >= batches.chain.size:
            yield from finish()
    yield from finish()


def _shape(image: Any) -> tuple[int, ...]:
    return tuple(getattr(image, "shape", ()))


def _read_ahead(cases: Cases, todo: Sequence[int], ahead: int) -> Iterator[tuple[int, Future[Any]]]:
    """Yield cases with their images, which a second thread reads while others are recovered."""
    with ThreadPoolExecutor(max_workers=1) as reader:
        waiting: deque[tuple[int, Future[Any]]] = deque()
        for index in todo:
            waiting.append((index, reader.submit(cases.image, index)))
            if len(waiting) > ahead:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()


def _rows(values: np.ndarray | None, index: list[int], rounds: int) -> np.ndarray | None:
    return None if values is None else np.tile(values[index], rounds)
