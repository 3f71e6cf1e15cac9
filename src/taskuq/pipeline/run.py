"""Running a pipeline: what is finished stays finished, whatever happens in between."""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from taskuq.errors import InputError
from taskuq.outputs.roster import NAME as ROSTER
from taskuq.outputs.roster import read_roster, write_roster
from taskuq.outputs.shards import HEADER, Header, TableWriter, read_header
from taskuq.outputs.table import TaskOutputs, as_accelerations
from taskuq.pipeline.batches import Batches, batch_size
from taskuq.pipeline.cases import Cases, as_cases
from taskuq.pipeline.chain import CaseOutputs, Chain
from taskuq.pipeline.cluster import RayOptions, ray_cluster, run_on_ray
from taskuq.pipeline.local import HOPELESS, Rows, refusal, run_cases
from taskuq.pipeline.log import NAME as LOG
from taskuq.pipeline.log import RunLog
from taskuq.pipeline.progress import Progress
from taskuq.pipeline.provenance import provenance
from taskuq.pipeline.slurm import SlurmOptions, open_executor, run_on_slurm
from taskuq.pipeline.work import Work
from taskuq.protocols import Measure, Recover, Task


@dataclass(frozen=True)
class Pipeline:
    r"""Measurement, recovery and task in a row: :math:`\hat z^{(j)} = f(g(h(x), v^{(j)}))`.

    Any callables will do, on NumPy arrays or torch tensors; see :mod:`taskuq.protocols`.

    Arguments:
        measure: :math:`h`, called with an image and an acceleration.
        recover: :math:`g`, called with a measurement, ``samples`` and ``seed``.
        task: :math:`f`, called with images.
        device: Where tensors are put before they are measured; where they are by default.

    Example:
        >>> def measure(image, acceleration):
        ...     return image[:: int(acceleration)]
        >>> def recover(measurement, *, samples, seed):
        ...     noise = np.random.default_rng(seed).standard_normal((samples, 1))
        ...     return measurement.mean() + 0.1 * noise
        >>> def task(images):
        ...     return images.reshape(len(images), -1).mean(axis=1)
        >>> pipeline = Pipeline(measure, recover, task)
        >>> pipeline.run(rng.random((6, 8)), accelerations=(4, 2), samples=5, seed=0, quiet=True)
        TaskOutputs(2 rounds (R = 4, 2), 6 cases, 5 samples, 1 task)
    """

    measure: Measure
    recover: Recover
    task: Task
    device: str | None = None

    def run(
        self,
        images: Any,
        *,
        accelerations: Sequence[float],
        samples: int,
        seed: int,
        store: str | Path | None = None,
        case: Sequence[Any] | None = None,
        group: Sequence[Any] | None = None,
        label: Sequence[Any] | None = None,
        task_names: Sequence[str] | None = None,
        task_range: tuple[float, float] | None = None,
        configuration: Mapping[str, Any] | None = None,
        engine: RayOptions | SlurmOptions | None = None,
        batch: int | None = None,
        fresh: bool = False,
        quiet: bool = False,
    ) -> TaskOutputs:
        """Fill a table of task outputs, or go on filling it.

        Started again with the same ``store``, a run that was killed goes on: finished cases are
        not repeated, and half-written work is never read. Cases that fail are listed in the
        table's ``missing`` and, with the reason, in its log.

        Arguments:
            images: A data set, an array (case, ...), or a sequence of images.
            accelerations: The rounds, the fewest measurements first.
            samples: Posterior samples per case and round.
            seed: The seed of all samples.
            store: The folder of the table; a temporary one where None.
            case: The identity of each image.
            group: The group of each image.
            label: The class of each image.
            task_names: One per task.
            task_range: The range of the task.
            configuration: Remembered with the table; a resumed run must have the same.
            engine: A Ray cluster or SLURM jobs to share the work; this process alone where None.
            batch: How many cases run at once where the recovery has a method ``batch``; chosen by
                memory where None, and halved when memory runs out all the same.
            fresh: Throw away what the folder holds and begin again.
            quiet: Show no progress.
        """
        if samples < 1:
            raise InputError(f"samples must be at least 1, got {samples}")
        rates = tuple(as_accelerations(accelerations, len(accelerations)).tolist())
        cases = as_cases(images, case, group, label)
        chain = self._chain(cases, rates, samples, seed, batch)
        with tempfile.TemporaryDirectory() as scratch, _ready(engine, scratch):
            folder = Path(scratch if store is None else store)
            if fresh and store is not None:
                remove_table(folder)
            begun: dict[int, CaseOutputs | Exception] = {}
            since = time.monotonic()
            if not (folder / HEADER).exists():
                begun, chain = _begin(chain, cases)
            header = self._header(folder, begun, chain, task_names, task_range, configuration)
            writer = TableWriter(folder, header)
            _check_roster(folder, cases)
            done = writer.finished_cases(cases.case)
            log = RunLog(folder)
            log.write("retrying" if done.any() else "started", cases=int((~done).sum()))
            progress = Progress(len(cases), int(done.sum()), quiet=quiet, since=since)
            _write_begun(begun, cases, writer, log, progress)
            todo = [int(i) for i in np.nonzero(~done)[0] if int(i) not in begun]
            _do(Work(chain, cases, folder, header), todo, progress, engine)
            _report_failures(log, quiet)
            return TaskOutputs.load(folder)

    def _chain(
        self,
        cases: Cases,
        accelerations: tuple[float, ...],
        samples: int,
        seed: int,
        batch: int | None,
    ) -> Chain:
        """Put the parts together; how many cases run at once follows from the size of an image."""
        size = 1
        for index in range(min(len(cases), HOPELESS)):
            try:
                image = cases.image(index)
            except Exception:  # it will fail again, as a case of its own
                continue
            size = batch_size(
                self.recover, image, samples=samples, cases=len(cases), device=self.device,
                batch=batch,
            )  # fmt: skip
            break
        return Chain(
            self.measure, self.recover, self.task, accelerations, samples, seed, size, self.device
        )

    def _header(
        self,
        folder: Path,
        begun: Mapping[int, CaseOutputs | Exception],
        chain: Chain,
        task_names: Sequence[str] | None,
        task_range: tuple[float, float] | None,
        configuration: Mapping[str, Any] | None,
    ) -> Header:
        """Describe the table; how many samples and tasks there are is seen on the first cases."""
        if (folder / HEADER).exists():
            found = read_header(folder)
            drawn, tasks = found.samples, len(found.task_names)
        else:
            first = next(f for f in begun.values() if isinstance(f, CaseOutputs))
            drawn, tasks = int(first.outputs.shape[1]), len(first.targets)
        names = task_names or getattr(self.task, "names", None)
        if names is None:
            names = ["task"] if tasks == 1 else [f"task{i}" for i in range(tasks)]
        if len(names) != tasks or len(set(names)) != tasks:
            raise InputError(f"the task gives {tasks} numbers, which need as many different names")
        range_ = task_range if task_range is not None else getattr(self.task, "range", None)
        made = provenance({"samples": chain.samples, **(configuration or {})}, chain.seed)
        made["made_by"] |= {"batch": chain.size, "device": chain.device or "cpu"}
        return Header(
            accelerations=tuple(chain.accelerations),
            samples=drawn,
            task_names=tuple(map(str, names)),
            task_range=None if range_ is None else (float(range_[0]), float(range_[1])),
            order="roster",
            provenance=made,
        )


def _begin(chain: Chain, cases: Cases) -> tuple[dict[int, CaseOutputs | Exception], Chain]:
    """Run the first cases until one works, to see what the task gives and how many cases fit.

    What they give is kept; nothing is run twice.
    """
    begun: dict[int, CaseOutputs | Exception] = {}
    batches = Batches(chain)
    for start in range(0, min(len(cases), HOPELESS), chain.size):
        begun |= run_cases(batches, cases, range(start, min(start + chain.size, len(cases))))
        if any(isinstance(found, CaseOutputs) for found in begun.values()):
            return begun, batches.chain
    reason = list(begun.values())[-1]
    assert isinstance(reason, Exception)
    raise InputError(
        f"none of the first cases could be run: {type(reason).__name__}: "
        f"{' '.join(str(reason).split())[:300]}"
    ) from reason


def _write_begun(
    begun: Mapping[int, CaseOutputs | Exception],
    cases: Cases,
    writer: TableWriter,
    log: RunLog,
    progress: Progress,
) -> None:
    """Write the cases that were run before the table was there."""
    rows = Rows(writer, cases)
    for index, found in begun.items():
        error = refusal(found, writer.header)
        if isinstance(found, CaseOutputs) and error is None:
            rows.add(index, found)
        elif error is not None:
            log.failed(cases.case[index], error)
        progress.step(failed=error is not None)
    rows.flush()


def _ready(engine: RayOptions | SlurmOptions | None, scratch: str) -> AbstractContextManager[None]:
    """Reach the cluster before anything is computed, so that a mistake shows at once."""
    if isinstance(engine, RayOptions):
        return ray_cluster(engine)
    if isinstance(engine, SlurmOptions):
        open_executor(engine, Path(scratch))
    return nullcontext()


def _do(
    work: Work, todo: list[int], progress: Progress, engine: RayOptions | SlurmOptions | None
) -> None:
    if isinstance(engine, RayOptions):
        run_on_ray(work, todo, progress, engine)
    elif isinstance(engine, SlurmOptions):
        run_on_slurm(work, todo, progress, engine)
    else:
        work.do(todo, progress)


def remove_table(folder: Path) -> None:
    """Remove the files of a table and its log; refuse a folder that holds anything else.

    Arguments:
        folder: The folder of the table.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder} is a file, not a table; choose another name")
    files = sorted(folder.iterdir())
    strangers = [path.name for path in files if not _is_ours(path)]
    if strangers:
        raise InputError(
            f"{folder} holds {strangers[0]}, which is not part of a table; choose another folder"
        )
    for path in files:
        path.unlink()


def _is_ours(path: Path) -> bool:
    """Whether a run has written this file, whole or in part."""
    known = rf"({re.escape(HEADER)}|{re.escape(LOG)}|{re.escape(ROSTER)}|part-\d+-\w+\.parquet)"
    is_name = re.fullmatch(rf"{known}|\.{known}\.\w+\.partial", path.name)
    return is_name is not None and path.is_file() and not path.is_symlink()


def _check_roster(folder: Path, cases: Cases) -> None:
    known = read_roster(folder)
    if known is None:
        write_roster(folder, list(cases.case), cases.group, cases.label)
    elif known != list(cases.case):
        other = next(
            (a for a, b in zip(known, cases.case, strict=False) if a != b), "another number"
        )
        raise InputError(
            f"{folder} was begun with other cases ({len(known)}, first difference {other}), now "
            f"there are {len(cases)}; choose another folder or start afresh"
        )


def _report_failures(log: RunLog, quiet: bool) -> None:
    failures = log.failures()
    if failures and not quiet:
        case, reason = next(iter(failures.items()))
        sys.stderr.write(
            f"{len(failures)} cases failed and are missing from the table, e.g. {case}: {reason}\n"
        )


def status(folder: str | Path) -> dict[str, Any]:
    """Tell how far a run is.

    Arguments:
        folder: The folder of the table.

    Returns:
        Numbers of cases in all, finished, failed and left; and how the table is made.
    """
    path = Path(folder)
    header = read_header(path)
    roster = read_roster(path) or []
    done = TableWriter(path, header).finished_cases(roster)
    failed = RunLog(path).failures()
    return {
        "schema": "taskuq.status/1",
        "cases": len(roster),
        "finished": int(done.sum()),
        "failed": {
            c: failed[c] for c, whole in zip(roster, done, strict=True) if c in failed and not whole
        },
        "left": int((~done).sum()),
        "accelerations": [None if np.isnan(R) else R for R in header.accelerations],
        "samples": header.samples,
        "tasks": list(header.task_names),
        "provenance": dict(header.provenance or {}),
    }
