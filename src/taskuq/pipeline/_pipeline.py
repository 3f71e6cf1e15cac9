"""Pipeline: run, resume, status, provenance."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

import taskuq
from taskuq._arrays import as_ranges, require_methods
from taskuq._io import ExistingFileError, content_fingerprint, fingerprint, sigterm_as_exit
from taskuq.errors import InputError, describe_error
from taskuq.pipeline._engines import Engine, LocalEngine
from taskuq.pipeline._executor import NAME as LOG
from taskuq.pipeline._executor import (
    BatchRunner,
    CaseOutputs,
    Executor,
    RunCases,
    RunLog,
    as_cases,
    batch_size,
    num_threads,
    pinned_threads,
    reference_image,
)
from taskuq.pipeline._local import (
    HOPELESS,
    CaseWorker,
    as_picture,
    choose_cases,
    store_images,
    verify_resume,
)
from taskuq.pipeline._progress import Progress
from taskuq.protocols import Measure, NamedTask, RangedTask, Recover, StoredRecover, Task
from taskuq.table._parquet import (
    HEADER,
    PICTURES,
    CASE_LIST,
    TableHeader,
    TableWriter,
    finished_cases,
    read_header,
    read_case_list,
    write_case_list,
)
from taskuq.table._table import TaskOutputs, as_rounds
from taskuq.table._terminology import Terminology, as_terminology

# The parts of this package that decide what is in a table.
DECIDING = ("data", "measure", "recover", "task", "training", "pipeline", "_seeds.py", "_arrays.py")
PACKAGES = ("numpy", "torch", "deepinv")


def provenance(configuration: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return what made a table; only what is under ``made_by`` may differ when a run is resumed."""
    return {
        "configuration": dict(configuration),
        "code": _code_fingerprint(),
        "seed": seed,
        "made_by": {
            "taskuq": taskuq.__version__,
            "python": platform.python_version(),
            "revision": _revision(),
            **{name: found for name in PACKAGES if (found := _version(name)) is not None},
        },
    }


@lru_cache(maxsize=1)
def _code_fingerprint() -> str:
    """Return a fingerprint of the code that decides what is in a table."""
    root = Path(taskuq.__file__).parent
    files = [p for part in DECIDING for p in (root / part, *(root / part).rglob("*.py"))]
    sources = sorted({p for p in files if p.suffix == ".py"})
    return fingerprint([(str(p.relative_to(root)), content_fingerprint(p)) for p in sources])[:16]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _revision() -> str | None:
    """The revision of the source tree we run from; None for an installed package."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        found = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def _remove_table(folder: Path) -> None:
    """Delete the files of a table."""
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
    """Return True if a run has written this file, whole or in part."""
    plain = "|".join(map(re.escape, (HEADER, LOG, CASE_LIST, PICTURES)))
    known = rf"({plain}|part-\d+-\w+\.parquet)"
    is_name = re.fullmatch(rf"{known}|\.{known}\.\w+\.partial", path.name)
    return is_name is not None and path.is_file() and not path.is_symlink()


@dataclass(frozen=True)
class Pipeline:
    r"""Measurement, recovery and task in a row: :math:`\hat z^{(j)} = f(g(h(x), v^{(j)}))`.

    Any callables will do, on NumPy arrays or torch tensors; see :mod:`taskuq.protocols`.

    Arguments:
        measure: :math:`h`, called with an image and an acceleration.
        recover: :math:`g`, called with a measurement, ``samples`` and ``seed``; or recoveries that
            were made elsewhere, such as a :class:`taskuq.pipeline._adapters.RecoveryFolder`.
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
        >>> pipeline.run(rng.random((6, 8)), accelerations=(4, 2), samples=5, seed=0, progress=False)
        TaskOutputs(2 rounds (R = 4, 2), 6 cases, 5 samples, 1 task)
    """

    measure: Measure
    recover: Recover | StoredRecover
    task: Task
    device: str | None = None

    def __post_init__(self) -> None:
        require_methods(self.measure, "measure", Measure)
        require_methods(self.recover, "recover", (Recover, StoredRecover))
        require_methods(self.task, "task", Task)

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
        keep_images: int = 0,
        terminology: Any = None,
        overwrite: bool = False,
        progress: bool = True,
    ) -> TaskOutputs:
        """Fill a table of task outputs, or go on filling it.

        Started again with the same ``store``, a run that was killed goes on: finished cases are
        not repeated, but for a few that are compared, and half-written work is never read. Other
        settings, images or callables than before are refused. RunCases that fail are listed in the
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
            keep_images: Of how many cases to keep pictures for the explorer; they are chosen before
                anything is recovered, spread over the targets, and lie beside the table.
            terminology: What cases, groups and rounds are called on a page (:class:`taskuq.table._terminology.Terminology`).
            overwrite: Throw away what the folder holds and begin again.
            progress: Show progress.
        """
        if samples < 1:
            raise InputError(f"samples must be at least 1, got {samples}")
        asked, called = as_rounds(accelerations, costs, full_cost, round_names)
        rates = tuple(asked.tolist())
        cases = as_cases(images, case, group, label)
        chosen: Engine = LocalEngine() if engine is None else engine
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
            if overwrite and store is not None:
                _remove_table(folder)
            count = _threads(threads, folder, chosen)
            describe = partial(
                self._header, task_names=task_names, task_range=task_range, called=called,
                configuration=configuration, threads=count, words=as_terminology(terminology),
            )  # fmt: skip
            with pinned_threads(count):
                shown = _shown(chain, cases, seen, keep_images, store)
                table = _fill(folder, chain, cases, seen, describe, chosen, quiet=not progress)
                if not shown:
                    return table
                return replace(table, images_path=store_images(folder, chain, cases, shown))

    def chain(
        self,
        accelerations: Sequence[float],
        *,
        samples: int,
        seed: int,
        size: int = 1,
        round_names: tuple[str, ...] | None = None,
    ) -> Executor:
        """Return the parts with everything that decides their numbers.

        Arguments:
            accelerations: The rounds.
            samples: Posterior samples per case and round.
            seed: The seed of all samples.
            size: How many cases run at once.
            round_names: What rounds are called.
        """
        return Executor(
            self.measure, self.recover, self.task, accelerations, samples, seed, size, self.device,
            round_names,
        )  # fmt: skip

    def _header(
        self,
        folder: Path,
        begun: Mapping[int, CaseOutputs | Exception],
        chain: Executor,
        *,
        task_names: Sequence[str] | None,
        task_range: Any,
        called: tuple[str, ...] | None,
        configuration: Mapping[str, Any] | None,
        threads: int | None,
        words: Terminology,
    ) -> TableHeader:
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
        if words != Terminology():
            made["words"] = words.to_dict()
        made["made_by"] |= {"batch": chain.size, "device": chain.device or "cpu"}
        return TableHeader(
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
    chain: Executor,
    cases: RunCases,
    seen: Mapping[int, Any],
    describe: Callable[[Path, Mapping[int, CaseOutputs | Exception], Executor], TableHeader],
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
    work = CaseWorker(
        chain, cases, TableWriter(folder, header), threads=_threads(None, folder, engine)
    )
    _check_roster(folder, cases)
    done = finished_cases(folder, header, cases.case)
    verify_resume(work, done, is_silent=quiet)
    work.log.write("retrying" if done.any() else "started", cases=int((~done).sum()))
    todo = [int(i) for i in np.nonzero(~done)[0] if int(i) not in begun]
    progress = Progress(len(cases), int(done.sum()), quiet=quiet, since=since)
    with sigterm_as_exit(), _telling_what_is_kept(work), progress:
        work.keep(begun.items(), progress)
        start = time.monotonic()
        engine.run(work, todo, progress)
        # The first cases, which compile and load, are not among these.
        work.log.write("finished", cases=len(todo), seconds=round(time.monotonic() - start, 3))
    _report_failures(work.log, quiet)
    return TaskOutputs.load(folder)


def _shown(
    chain: Executor, cases: RunCases, seen: Mapping[int, Any], pictures: int, store: Any
) -> list[int]:
    """The cases to keep pictures of; refused where there are none to keep, or nowhere."""
    if pictures < 1:
        return []
    if store is None:
        raise InputError("pictures are kept beside the table; give store, the folder of both")
    for image in seen.values():
        as_picture(reference_image(image))
    return choose_cases(chain, cases, pictures)


def _threads(asked: int | None, folder: Path, engine: Engine) -> int | None:
    if asked is not None:
        if asked < 1:
            raise InputError(f"threads must be at least 1, got {asked}")
        return asked
    if (folder / HEADER).exists():
        found = (read_header(folder).provenance or {}).get("threads")
        return found if isinstance(found, int) else None
    # Workers have a core each; that is what Ray and SLURM give where nobody asks for more.
    here = num_threads()
    return here if here is None or isinstance(engine, LocalEngine) else 1


def _first_image(cases: RunCases) -> dict[int, Any]:
    """Return the first image that can be read, by the number of its case."""
    for index in range(min(len(cases), HOPELESS)):
        try:
            return {index: cases.image(index)}
        except Exception:  # it will fail again, as a case of its own
            continue
    return {}


def _begin(
    chain: Executor, cases: RunCases, seen: Mapping[int, Any]
) -> tuple[dict[int, CaseOutputs | Exception], Executor]:
    """Run the first cases until one works, to see what the task gives and how many cases fit."""
    begun: dict[int, CaseOutputs | Exception] = {}
    batches = BatchRunner(chain, cases, seen=seen)
    for start in range(0, min(len(cases), HOPELESS), chain.size):
        begun |= batches.run(range(start, min(start + chain.size, len(cases))))
        if any(isinstance(found, CaseOutputs) for found in begun.values()):
            return begun, batches.chain
    reason = list(begun.values())[-1]
    assert isinstance(reason, Exception)
    raise InputError(f"none of the first cases could be run: {describe_error(reason)}") from reason


@contextmanager
def _telling_what_is_kept(work: CaseWorker) -> Iterator[None]:
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


def _check_roster(folder: Path, cases: RunCases) -> None:
    try:
        if (folder / CASE_LIST).exists():
            raise ExistingFileError
        write_case_list(folder, list(cases.case), cases.group, cases.label)
        return
    except ExistingFileError:
        known = read_case_list(folder) or []
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
    """Return the progress and the failures of a run.

    Arguments:
        folder: The folder of the table.
    """
    path = Path(folder)
    header = read_header(path)
    roster = read_case_list(path) or []
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
