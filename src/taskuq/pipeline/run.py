"""Running a pipeline: what is finished stays finished, whatever happens in between."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from taskuq.checks import require_part
from taskuq.disk import ended_by_sigterm
from taskuq.errors import InputError, TakenError, whole_sentence
from taskuq.outputs.columns import ROSTER, read_roster, write_roster
from taskuq.outputs.rounds import as_rounds
from taskuq.outputs.shards import HEADER, Header, TableWriter, finished_cases, read_header
from taskuq.outputs.table import TaskOutputs
from taskuq.pipeline.batches import Batches, batch_size
from taskuq.pipeline.cases import Cases, as_cases
from taskuq.pipeline.chain import CaseOutputs, Chain, true_image
from taskuq.pipeline.device import pinned_threads, threads_here
from taskuq.pipeline.engines import Engine, ThisProcess
from taskuq.pipeline.identity import require_same_run
from taskuq.pipeline.local import HOPELESS, Work
from taskuq.pipeline.log import RunLog
from taskuq.pipeline.pictures import as_picture, choose_cases, keep_pictures
from taskuq.pipeline.progress import Progress
from taskuq.pipeline.provenance import provenance
from taskuq.pipeline.removal import remove_table
from taskuq.protocols import Measure, NamedTask, RangedTask, Recover, StoredRecoveries, Task
from taskuq.ranges import as_ranges
from taskuq.words import Words, as_words


@dataclass(frozen=True)
class Pipeline:
    r"""Measurement, recovery and task in a row: :math:`\hat z^{(j)} = f(g(h(x), v^{(j)}))`.

    Any callables will do, on NumPy arrays or torch tensors; see :mod:`taskuq.protocols`.

    Arguments:
        measure: :math:`h`, called with an image and an acceleration.
        recover: :math:`g`, called with a measurement, ``samples`` and ``seed``; or recoveries that
            were made elsewhere, such as a :class:`taskuq.pipeline.RecoveryFolder`.
        task: :math:`f`, called with images.
        device: Where tensors are put before they are measured; where they are by default.

    Example:
        >>> def measure(image, acceleration):
        ...     return image[:: int(acceleration)]
        >>> def recover(measurement, *, samples, seed):
        ...     noise = np.random.default_rng(seed).standard_normal((samples, 8))
        ...     return measurement.mean() + 0.1 * noise
        >>> def task(images):
        ...     return images.reshape(len(images), -1).mean(axis=1)
        >>> pipeline = Pipeline(measure, recover, task)
        >>> pipeline.run(rng.random((6, 8)), accelerations=(4, 2), samples=5, seed=0, quiet=True)
        TaskOutputs(2 rounds (R = 4, 2), 6 cases, 5 samples, 1 task)
    """

    measure: Measure
    recover: Recover | StoredRecoveries
    task: Task
    device: str | None = None

    def __post_init__(self) -> None:
        require_part(self.measure, "measure", Measure)
        require_part(self.recover, "recover", (Recover, StoredRecoveries))
        require_part(self.task, "task", Task)

    def run(
        self,
        images: Any,
        *,
        accelerations: Sequence[float] | Mapping[str, float] | None = None,
        costs: Sequence[float] | Mapping[str, float] | None = None,
        full_cost: float | None = None,
        round_names: Sequence[str] | None = None,
        samples: int,
        seed: int,
        store: str | Path | None = None,
        case: Sequence[Any] | None = None,
        group: Sequence[Any] | None = None,
        label: Sequence[Any] | None = None,
        task_names: Sequence[str] | None = None,
        task_range: Any = None,
        configuration: Mapping[str, Any] | None = None,
        engine: Engine | None = None,
        batch: int | None = None,
        threads: int | None = None,
        pictures: int = 0,
        words: Any = None,
        fresh: bool = False,
        quiet: bool = False,
    ) -> TaskOutputs:
        """Fill a table of task outputs, or go on filling it.

        Started again with the same ``store``, a run that was killed goes on: finished cases are
        not repeated, but for a few that are compared, and half-written work is never read. Other
        settings, images or callables than before are refused. Cases that fail are listed in the
        table's ``missing`` and, with the reason, in its log.

        Arguments:
            images: A data set, an array (case, ...), or a sequence of images.
            accelerations: The rounds, the fewest measurements first; by name where they have one.
            costs: Instead of accelerations, what each round costs in all, rising; with
                ``full_cost`` they are 'full_cost / cost', which is what h is called with.
            full_cost: What it costs to measure everything.
            round_names: What rounds are called wherever a person reads.
            samples: Posterior samples per case and round.
            seed: The seed of all samples.
            store: The folder of the table; a temporary one where None.
            case: The identity of each image.
            group: The group of each image.
            label: The class of each image.
            task_names: One per task.
            task_range: The range of the task; for several tasks one for each, also by name.
            configuration: Remembered with the table; a resumed run must have the same.
            engine: A Ray cluster or SLURM jobs to share the work, or an engine of your own; this
                process alone where None.
            batch: How many cases run at once where the recovery has a method ``batch``; chosen by
                memory where None, and halved when memory runs out all the same.
            threads: How many threads torch computes with, in every worker. By default as many as
                it has here, one in the workers of another engine, and those of the table where it
                is gone on with. Tables of equal threads and batches are equal bit for bit.
            pictures: Of how many cases to keep pictures for the explorer; they are chosen before
                anything is recovered, spread over the targets, and lie beside the table.
            words: What cases, groups and rounds are called on a page (:class:`taskuq.words.Words`).
            fresh: Throw away what the folder holds and begin again.
            quiet: Show no progress.
        """
        if samples < 1:
            raise InputError(f"samples must be at least 1, got {samples}")
        asked, called = as_rounds(accelerations, costs, full_cost, round_names)
        rates = tuple(asked.tolist())
        cases = as_cases(images, case, group, label)
        chosen: Engine = ThisProcess() if engine is None else engine
        size, seen = 1, _first_image(cases)
        if seen:
            (image,) = seen.values()
            size = batch_size(
                self.recover, image, samples=samples, cases=len(cases), device=self.device,
                batch=batch,
            )  # fmt: skip
        chain = self.chain(rates, samples=samples, seed=seed, size=size, round_names=called)
        with tempfile.TemporaryDirectory() as scratch, chosen.ready(Path(scratch)):
            # Within the scratch, so that what an engine leaves beside a table is gone with it.
            folder = Path(scratch) / "table" if store is None else Path(store)
            if fresh and store is not None:
                remove_table(folder)
            count = _threads(threads, folder, chosen)
            describe = partial(
                self._header, task_names=task_names, task_range=task_range, called=called,
                configuration=configuration, threads=count, words=as_words(words),
            )  # fmt: skip
            with pinned_threads(count):
                shown = _shown(chain, cases, seen, pictures, store)
                table = _fill(folder, chain, cases, seen, describe, chosen, quiet=quiet)
                if not shown:
                    return table
                return replace(table, pictures=keep_pictures(folder, chain, cases, shown))

    def chain(
        self,
        accelerations: Sequence[float],
        *,
        samples: int,
        seed: int,
        size: int = 1,
        round_names: tuple[str, ...] | None = None,
    ) -> Chain:
        """Return the parts with everything that decides their numbers.

        Arguments:
            accelerations: The rounds.
            samples: Posterior samples per case and round.
            seed: The seed of all samples.
            size: How many cases run at once.
            round_names: What rounds are called.
        """
        return Chain(
            self.measure, self.recover, self.task, accelerations, samples, seed, size, self.device,
            round_names,
        )  # fmt: skip

    def _header(
        self,
        folder: Path,
        begun: Mapping[int, CaseOutputs | Exception],
        chain: Chain,
        *,
        task_names: Sequence[str] | None,
        task_range: Any,
        called: tuple[str, ...] | None,
        configuration: Mapping[str, Any] | None,
        threads: int | None,
        words: Words,
    ) -> Header:
        """Describe the table; how many samples and tasks there are is seen on the first cases."""
        if (folder / HEADER).exists():
            found = read_header(folder)
            drawn, tasks, lines = found.samples, len(found.task_names), found.lines
        else:
            first = next(f for f in begun.values() if isinstance(f, CaseOutputs))
            drawn, tasks = int(first.outputs.shape[1]), len(first.targets)
            lines = None if first.lines is None else int(first.lines.shape[1])
        names = task_names or (self.task.names if isinstance(self.task, NamedTask) else None)
        if names is None:
            names = ["task"] if tasks == 1 else [f"task{i}" for i in range(tasks)]
        if len(names) != tasks or len(set(names)) != tasks:
            raise InputError(f"the task gives {tasks} numbers, which need as many different names")
        if task_range is None and isinstance(self.task, RangedTask):
            task_range = self.task.range
        made = provenance({"samples": chain.samples, **(configuration or {})}, chain.seed)
        made["threads"] = threads
        if words != Words():
            made["words"] = words.to_dict()
        made["made_by"] |= {"batch": chain.size, "device": chain.device or "cpu"}
        return Header(
            accelerations=tuple(chain.accelerations),
            samples=drawn,
            task_names=tuple(map(str, names)),
            task_ranges=as_ranges(task_range, tuple(map(str, names))),
            round_names=called,
            lines=lines,
            order="roster",
            provenance=made,
        )


def _fill(
    folder: Path,
    chain: Chain,
    cases: Cases,
    seen: Mapping[int, Any],
    describe: Callable[[Path, Mapping[int, CaseOutputs | Exception], Chain], Header],
    engine: Engine,
    *,
    quiet: bool,
) -> TaskOutputs:
    """Begin a table, or go on with one, and have an engine run what is left."""
    begun: dict[int, CaseOutputs | Exception] = {}
    since = time.monotonic()
    if not (folder / HEADER).exists():
        begun, chain = _begin(chain, cases, seen)
    header = describe(folder, begun, chain)
    work = Work(chain, cases, TableWriter(folder, header), threads=_threads(None, folder, engine))
    _check_roster(folder, cases)
    done = finished_cases(folder, header, cases.case)
    require_same_run(work, done, is_silent=quiet)
    work.log.write("retrying" if done.any() else "started", cases=int((~done).sum()))
    todo = [int(i) for i in np.nonzero(~done)[0] if int(i) not in begun]
    progress = Progress(len(cases), int(done.sum()), quiet=quiet, since=since)
    with ended_by_sigterm(), _telling_what_is_kept(work), progress:
        work.keep(begun.items(), progress)
        start = time.monotonic()
        engine.run(work, todo, progress)
        # The first cases, which compile and load, are not among these.
        work.log.write("finished", cases=len(todo), seconds=round(time.monotonic() - start, 3))
    _report_failures(work.log, quiet)
    return TaskOutputs.load(folder)


def _shown(
    chain: Chain, cases: Cases, seen: Mapping[int, Any], pictures: int, store: Any
) -> list[int]:
    """The cases to keep pictures of; refused where there are none to keep, or nowhere."""
    if pictures < 1:
        return []
    if store is None:
        raise InputError("pictures are kept beside the table; give store, the folder of both")
    for image in seen.values():
        as_picture(true_image(image))
    return choose_cases(chain, cases, pictures)


def _threads(asked: int | None, folder: Path, engine: Engine) -> int | None:
    """How many threads torch is to compute with: as asked, as before, or as is usual here."""
    if asked is not None:
        if asked < 1:
            raise InputError(f"threads must be at least 1, got {asked}")
        return asked
    if (folder / HEADER).exists():
        found = (read_header(folder).provenance or {}).get("threads")
        return found if isinstance(found, int) else None
    # Workers have a core each; that is what Ray and SLURM give where nobody asks for more.
    here = threads_here()
    return here if here is None or isinstance(engine, ThisProcess) else 1


def _first_image(cases: Cases) -> dict[int, Any]:
    """Return the first image that can be read, by the number of its case."""
    for index in range(min(len(cases), HOPELESS)):
        try:
            return {index: cases.image(index)}
        except Exception:  # it will fail again, as a case of its own
            continue
    return {}


def _begin(
    chain: Chain, cases: Cases, seen: Mapping[int, Any]
) -> tuple[dict[int, CaseOutputs | Exception], Chain]:
    """Run the first cases until one works, to see what the task gives and how many cases fit.

    What they give is kept; nothing is run or read twice.
    """
    begun: dict[int, CaseOutputs | Exception] = {}
    batches = Batches(chain, cases, seen=seen)
    for start in range(0, min(len(cases), HOPELESS), chain.size):
        begun |= batches.run(range(start, min(start + chain.size, len(cases))))
        if any(isinstance(found, CaseOutputs) for found in begun.values()):
            return begun, batches.chain
    reason = list(begun.values())[-1]
    assert isinstance(reason, Exception)
    raise InputError(f"none of the first cases could be run: {whole_sentence(reason)}") from reason


@contextmanager
def _telling_what_is_kept(work: Work) -> Iterator[None]:
    """Note on an interruption how many cases are finished, and that they stay."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stopped:
        writer, names = work.writer, work.cases.case
        done = int(finished_cases(writer.folder, writer.header, names).sum())
        stopped.add_note(
            f"stopped; {done} of {len(names)} cases are finished and kept in {writer.folder}, and "
            "the same command goes on with the rest"
        )
        raise


def _check_roster(folder: Path, cases: Cases) -> None:
    try:
        if (folder / ROSTER).exists():
            raise TakenError
        write_roster(folder, list(cases.case), cases.group, cases.label)
        return
    except TakenError:
        known = read_roster(folder) or []
    if known != list(cases.case):
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
    """
    path = Path(folder)
    header = read_header(path)
    roster = read_roster(path) or []
    done = finished_cases(path, header, roster)
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
