"""Pipeline runs: start, resume, status and provenance."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

import taskuq
from taskuq._arrays import as_ranges, require_methods
from taskuq._io import (
    LOCK,
    ExistingFileError,
    content_fingerprint,
    file_lock,
    fingerprint,
    sigterm_as_exit,
)
from taskuq._seeds import as_seed
from taskuq.errors import InputError, MachineError, describe_error
from taskuq.pipeline._engines import Engine, LocalEngine
from taskuq.pipeline._executor import (
    CaseExecutor,
    CaseOutputs,
    Executor,
    num_threads,
    pinned_threads,
    reference_image,
)
from taskuq.pipeline._local import (
    HOPELESS,
    LOG,
    BatchRunner,
    CaseWorker,
    RunCases,
    RunLog,
    as_cases,
    as_display_image,
    batch_size,
    choose_cases,
    store_images,
    verify_resume,
)
from taskuq.pipeline._progress import Progress
from taskuq.protocols import Measure, Recover, StoredRecover, Task, declared_names, declared_range
from taskuq.table._parquet import (
    CASE_LIST,
    HEADER,
    PICTURES,
    TableHeader,
    TableWriter,
    finished_cases,
    read_case_list,
    read_header,
    write_case_list,
)
from taskuq.table._table import TaskOutputs, TaskRanges, as_rounds
from taskuq.table._terminology import Terminology, as_terminology

# The parts of this package that determine the content of a table.
DECIDING = ("data", "measure", "recover", "task", "training", "pipeline", "_seeds.py", "_arrays.py")
PACKAGES = ("numpy", "torch", "deepinv")


def provenance(configuration: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the provenance of a table; a resumed run may differ only in ``made_by``."""
    made_by: dict[str, Any] = {"taskuq": taskuq.__version__, "python": platform.python_version()}
    made_by["revision"] = _revision()
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            made_by[package] = version(package)
    return {
        "configuration": dict(configuration),
        "code": _code_fingerprint(),
        "seed": seed,
        "made_by": made_by,
    }


@lru_cache(maxsize=1)
def _code_fingerprint() -> str:
    root = Path(taskuq.__file__).parent
    files = [p for part in DECIDING for p in (root / part, *(root / part).rglob("*.py"))]
    sources = sorted({p for p in files if p.suffix == ".py"})
    return fingerprint([(str(p.relative_to(root)), content_fingerprint(p)) for p in sources])[:16]


def _revision() -> str | None:
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
    plain = "|".join(map(re.escape, (HEADER, LOG, CASE_LIST, PICTURES, LOCK)))
    known = rf"({plain}|part-\d+-\w+\.parquet)"
    files = sorted(folder.iterdir())
    for path in files:
        is_ours = re.fullmatch(rf"{known}|\.{known}\.\w+\.partial", path.name)
        if not is_ours or not path.is_file() or path.is_symlink():
            text = f"{folder} holds {path.name}, which is not part of a table; use another folder"
            raise InputError(text, code="file.exists")
    for path in files:
        if path.name != LOCK:
            path.unlink()


@dataclass(frozen=True)
class Pipeline:
    r"""Measurement, recovery and task: :math:`\hat z^{(j)} = f(g(h(x), v^{(j)}))`.

    All three may be any callables on NumPy arrays or torch tensors; see :mod:`taskuq.protocols`.

    Args:
        measure: :math:`h`, called with an image and an acceleration.
        recover: :math:`g`, called with a measurement, ``samples`` and ``seed``; or stored
            reconstructions, e.g. a :class:`taskuq.pipeline.RecoveryFolder`.
        task: :math:`f`, called with images. It may declare ``names`` and ``range`` of its outputs.
            Image quality (:class:`taskuq.task.ImageQuality`) compares the mean of the samples with
            each sample and with the true image.
        device: Device to which tensors are moved before they are measured.

    Example:
        >>> def measure(image, acceleration):
        ...     return image[:: int(acceleration)]
        >>> def recover(measurement, *, samples, seed):
        ...     noise = np.random.default_rng(seed).standard_normal((samples, 8))
        ...     return measurement.mean() + 0.1 * noise
        >>> def task(images):
        ...     return images.reshape(len(images), -1).mean(axis=1)
        >>> pipeline = Pipeline(measure, recover, task)
        >>> pipeline.run(
        ...     rng.random((6, 8)), accelerations=(4, 2), samples=5, seed=0, progress=False
        ... )
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
        seed: int | np.random.Generator,
        store: str | Path | None = None,
        case: ArrayLike | None = None,
        group: ArrayLike | None = None,
        site: ArrayLike | None = None,
        label: ArrayLike | None = None,
        task_names: Sequence[str] | None = None,
        task_range: TaskRanges = None,
        configuration: Mapping[str, Any] | None = None,
        engine: Engine | None = None,
        batch: int | None = None,
        threads: int | None = None,
        keep_images: int | Sequence[str] = 0,
        terminology: Terminology | Mapping[str, str] | None = None,
        overwrite: bool = False,
        progress: bool = True,
    ) -> TaskOutputs:
        """Compute a table of task outputs, or resume it.

        An interrupted run resumes if it is called with the same ``store``: finished cases are not
        repeated, except for a few that are compared with their stored results. Different settings,
        images or callables raise an error. Cases that fail are listed in ``missing_cases`` of the
        table and in its log.

        Args:
            images: A data set, an array (case, ...), or a sequence of images.
            accelerations: Acceleration of each round, decreasing, or a mapping from round names.
            costs: Instead of accelerations, the total cost of each round, increasing; :math:`h` is
                called with ``full_cost / cost``.
            full_cost: Cost of a full measurement.
            round_names: Display names of the rounds.
            samples: Number of posterior samples per case and round.
            seed: Integer or Generator for all samples; a run with a Generator cannot resume.
            store: Folder of the table; default: a temporary folder.
            case: Id of each image.
            group: Group of each image.
            site: Site of each image, e.g. a hospital.
            label: Class of each image.
            task_names: Names of the outputs, instead of those that the task declares.
            task_range: Range of the outputs, instead of the one that the task declares: one
                range for all, one range per output, or a mapping from names.
            configuration: Configuration to store with the table; a resumed run must have the same
                one.
            engine: Ray, SLURM or custom engine; default: this process.
            batch: Number of cases per batch if the recovery has a method ``batch``; default: as
                many as fit in memory, halved if memory runs out.
            threads: Number of torch threads per worker; default: that of this process, or one
                on other engines; a resumed run keeps its number. Tables computed with equal
                threads and batches are bit-identical.
            keep_images: Cases whose images are stored for the report: their names, or a number of
                cases spread over the targets, chosen before any reconstruction.
            terminology: Display names of cases, groups and rounds in the report.
            overwrite: Delete the table in the folder first.
            progress: Show a progress bar.

        Raises:
            InputError: If images, rounds or ids do not match, or the store holds another run.
        """
        if samples < 1:
            raise InputError(f"samples must be at least 1, got {samples}", code="value.invalid")
        keeps = keep_images > 0 if isinstance(keep_images, int) else len(keep_images) > 0
        if keeps and store is None:
            raise InputError("keep_images needs store=, the table's folder", code="option.missing")
        rates, names = as_rounds(accelerations, costs, full_cost, round_names)
        cases = as_cases(images, case, group, site, label)
        with tempfile.TemporaryDirectory() as scratch:
            run = _TableRun(
                cases=cases,
                # Within the scratch, so that what an engine leaves next to a table is removed.
                folder=Path(scratch) / "table" if store is None else Path(store),
                engine=LocalEngine() if engine is None else engine,
                task_names=task_names or declared_names(self.task),
                task_range=declared_range(self.task) if task_range is None else task_range,
                configuration={"samples": samples, **(configuration or {})},
                terminology=as_terminology(terminology),
                quiet=not progress,
            )
            first = _first_image(cases)
            size = 1
            for image in first.values():
                size = batch_size(
                    self.recover, image, samples=samples, cases=len(cases), device=self.device,
                    batch=batch,
                )  # fmt: skip
            executor = CaseExecutor(
                self.measure, Executor(self.recover, self.task, as_seed(seed)),
                tuple(rates.tolist()), samples, size, self.device, names,
            )  # fmt: skip
            with run.engine.ready(Path(scratch)), run.only_writer():
                if overwrite and store is not None:
                    _remove_table(run.folder)
                threads = run.threads(threads)
                with pinned_threads(threads):
                    shown: list[int] = []
                    if keeps:
                        for image in first.values():
                            # Refused before anything is computed.
                            as_display_image(reference_image(image))
                        shown = choose_cases(executor, cases, keep_images)
                    table = run.fill(executor, first, threads)
                    if not shown:
                        return table
                    path = store_images(run.folder, executor, cases, shown)
                    return replace(table, images_path=path)


@dataclass(frozen=True)
class _TableRun:
    cases: RunCases
    folder: Path
    engine: Engine
    task_names: Sequence[str] | None
    task_range: Any
    configuration: Mapping[str, Any]
    terminology: Terminology
    quiet: bool

    def only_writer(self) -> AbstractContextManager[None]:
        if self.folder.exists() and not self.folder.is_dir():
            raise MachineError(f"{self.folder} is a file, not a table; use another name")
        return file_lock(self.folder / LOCK, what=str(self.folder))

    def threads(self, threads: int | None) -> int | None:
        if threads is not None:
            if threads < 1:
                raise InputError(f"threads must be at least 1, got {threads}", code="value.invalid")
            return threads
        if (self.folder / HEADER).exists():
            stored = (read_header(self.folder).provenance or {}).get("threads")
            return stored if isinstance(stored, int) else None
        # Workers of Ray and SLURM have one core each by default.
        here = num_threads()
        return here if here is None or isinstance(self.engine, LocalEngine) else 1

    def fill(
        self, executor: CaseExecutor, images: Mapping[int, Any], threads: int | None
    ) -> TaskOutputs:
        first: dict[int, CaseOutputs | Exception] = {}
        since = time.monotonic()
        if not (self.folder / HEADER).exists():
            first, executor = _run_first(executor, self.cases, images)
        header = self._header(first, executor, threads)
        writer = TableWriter(self.folder, header)
        work = CaseWorker(executor, self.cases, writer, threads=threads)
        _check_case_list(self.folder, self.cases)
        done = finished_cases(self.folder, header, self.cases.case)
        verify_resume(work, done, quiet=self.quiet)
        work.log.write("retrying" if done.any() else "started", cases=int((~done).sum()))
        rest = [int(i) for i in np.nonzero(~done)[0] if int(i) not in first]
        progress = Progress(len(self.cases), int(done.sum()), quiet=self.quiet, since=since)
        try:
            with sigterm_as_exit(), progress:
                work.store(first.items(), progress)
                start = time.monotonic()
                if rest:
                    self.engine.run(work, rest, progress)
                # Without the first cases, which compile and load.
                seconds = round(time.monotonic() - start, 3)
                done = finished_cases(self.folder, header, self.cases.case)
                work.log.write("finished", cases=int(done.sum()), timed=len(rest), seconds=seconds)
        except (KeyboardInterrupt, SystemExit) as stopped:
            n, names = int(finished_cases(self.folder, header, self.cases.case).sum()), self.cases
            stopped.add_note(
                f"stopped; {n} of {len(names)} cases are finished and kept in {self.folder}; the "
                "same command resumes with the rest"
            )
            raise
        failures = work.log.failures()
        if failures and not self.quiet:
            case, reason = next(iter(failures.items()))
            count = f"{len(failures)} of {len(self.cases)} cases"
            sys.stderr.write(f"failed and missing from the table: {count}, e.g. {case}: {reason}\n")
        return TaskOutputs.load(self.folder)

    def _header(
        self,
        first: Mapping[int, CaseOutputs | Exception],
        executor: CaseExecutor,
        threads: int | None,
    ) -> TableHeader:
        if (self.folder / HEADER).exists():
            stored = read_header(self.folder)
            samples, tasks, lines = stored.samples, len(stored.task_names), stored.lines
            depends = stored.round_targets
        else:
            row = next(f for f in first.values() if isinstance(f, CaseOutputs))
            samples, tasks = int(row.outputs.shape[1]), int(row.targets.shape[-1])
            depends = row.targets.ndim == 2
            lines = None if row.lines is None else int(row.lines.shape[1])
        default = ["task"] if tasks == 1 else [f"task{i}" for i in range(tasks)]
        names = tuple(map(str, self.task_names or default))
        if len(names) != tasks or len(set(names)) != tasks:
            text = f"the task has {tasks} outputs, got names {', '.join(names)}; pass unique names"
            raise InputError(text, code="shape.mismatch")
        made = provenance(self.configuration, executor.executor.seed)
        made["threads"] = threads
        if self.terminology != Terminology():
            made["words"] = self.terminology.to_dict()
        made["made_by"] |= {"batch": executor.size, "device": executor.device or "cpu"}
        return TableHeader(
            accelerations=tuple(executor.accelerations),
            samples=samples,
            task_names=names,
            task_ranges=as_ranges(self.task_range, names),
            round_names=executor.round_names,
            lines=lines,
            round_targets=depends,
            order="roster",
            provenance=made,
        )


def _first_image(cases: RunCases) -> dict[int, Any]:
    for index in range(min(len(cases), HOPELESS)):
        try:
            return {index: cases.image(index)}
        except Exception:  # it will fail again, as a case of its own
            continue
    return {}


def _run_first(
    executor: CaseExecutor, cases: RunCases, images: Mapping[int, Any]
) -> tuple[dict[int, CaseOutputs | Exception], CaseExecutor]:
    first: dict[int, CaseOutputs | Exception] = {}
    batches = BatchRunner(executor, cases, images=images)
    for start in range(0, min(len(cases), HOPELESS), executor.size):
        first |= batches.run(range(start, min(start + executor.size, len(cases))))
        if any(isinstance(row, CaseOutputs) for row in first.values()):
            return first, batches.executor
    reason = list(first.values())[-1]
    assert isinstance(reason, Exception)
    text = f"none of the first cases could be run: {describe_error(reason)}"
    raise InputError(text, code="component.invalid") from reason


def _check_case_list(folder: Path, cases: RunCases) -> None:
    with suppress(ExistingFileError):
        if not (folder / CASE_LIST).exists():
            ids = {"group": cases.group, "site": cases.site, "label": cases.label}
            write_case_list(folder, list(cases.case), **ids)
            return
    stored = read_case_list(folder) or []
    if stored != list(cases.case):
        differ = (a for a, b in zip(stored, cases.case, strict=False) if a != b)
        text = f"{folder} has {len(stored)} cases, got {len(cases)} (first difference: "
        text += f"{next(differ, 'their number')}); use another folder, or overwrite=True"
        raise InputError(text, code="resume.mismatch")


def status(folder: str | Path) -> dict[str, Any]:
    """Return the progress and failures of a run.

    Args:
        folder: Folder of the table.
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
