"""The local engine: one process, images read ahead, shards written as it goes."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from taskuq.errors import InputError
from taskuq.pipeline.cases import Cases
from taskuq.pipeline.chain import CaseOutputs, scan_case
from taskuq.pipeline.log import RunLog
from taskuq.pipeline.progress import Progress
from taskuq.protocols import Measure, Recover, Task
from taskuq.shards import TableWriter

# Images read ahead of the one that is being recovered.
AHEAD = 4
# A shard is written when so many rows or seconds have gathered.
ROWS, SECONDS = 4096, 5.0
# So many failures in a row, and no success before, mean that something is wrong with the set-up.
HOPELESS = 20


@dataclass
class Batch:
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
    measure: Measure,
    recover: Recover,
    task: Task,
    cases: Cases,
    todo: list[int],
    writer: TableWriter,
    *,
    seed: int,
    samples: int,
    progress: Progress,
) -> None:
    """Run the given cases in this process and write their rows.

    A case that fails is written to the log with its reason, and the run goes on. An interruption
    writes what is finished before it takes effect.

    Arguments:
        measure: :math:`h`.
        recover: :math:`g`.
        task: :math:`f`.
        cases: All cases.
        todo: The numbers of those to run.
        writer: Where rows go.
        seed: The seed of the run.
        samples: Posterior samples to draw.
        progress: Told of every case.
    """
    log = RunLog(writer.folder)
    batch = Batch(writer, cases)
    failures = successes = 0
    try:
        for index, image in _read_ahead(cases, todo):
            try:
                outputs = scan_case(
                    measure, recover, task, image.result(), case=cases.case[index],
                    accelerations=writer.header.accelerations, samples=samples, seed=seed,
                )  # fmt: skip
                _require_shape(outputs, writer)
            except Exception as error:  # one bad case must not end a run of hours
                log.failed(cases.case[index], error)
                failures += 1
                progress.step(failed=True)
                if successes == 0 and failures >= HOPELESS:
                    raise InputError(
                        f"the first {failures} cases all failed, the last with "
                        f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                    ) from error
                continue
            successes += 1
            batch.add(index, outputs)
            progress.step()
    finally:
        batch.flush()


def _read_ahead(cases: Cases, todo: list[int]) -> Iterator[tuple[int, Future[Any]]]:
    """Yield cases with their images, which a second thread reads while others are recovered."""
    with ThreadPoolExecutor(max_workers=1) as reader:
        waiting: list[tuple[int, Future[Any]]] = []
        for index in todo:
            waiting.append((index, reader.submit(cases.image, index)))
            if len(waiting) > AHEAD:
                yield waiting.pop(0)
        yield from waiting


def _require_shape(outputs: CaseOutputs, writer: TableWriter) -> None:
    header = writer.header
    wanted = (len(header.accelerations), header.samples, len(header.task_names))
    if outputs.outputs.shape != wanted:
        raise InputError(f"the case gave outputs {outputs.outputs.shape}, the table has {wanted}")


def _rows(values: np.ndarray | None, index: list[int], rounds: int) -> np.ndarray | None:
    return None if values is None else np.tile(values[index], rounds)
