"""Execution engines: local process, Ray and SLURM."""

from __future__ import annotations

import hashlib
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from taskuq._registry import Registry
from taskuq.errors import InputError, MachineError, first_line
from taskuq.pipeline._executor import pick_device
from taskuq.pipeline._progress import Progress

# Ray: seconds in which an address must answer, and how often a chunk is tried.
REACH, TRIES = 5.0, 3
# SLURM: a job has a GPU and four hours unless parameters speak of GPUs or of time.
GPUS, MINUTES = {"gpus_per_node": 1}, {"timeout_min": 240}
# States of a SLURM job that has ended.
ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "GONE", "NODE_FAIL",
    "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT",
}  # fmt: skip
# Seconds until a result is visible to other machines after its job has ended.
GRACE = 15.0
ADVICE = {
    "TIMEOUT": "it reached its time limit; give more, e.g. --slurm timeout_min=600",
    "OUT_OF_MEMORY": "it ran out of memory; give more, e.g. --slurm mem_gb=32",
}


@dataclass(frozen=True)
class EngineOptions:
    address: str | None = None  # of a Ray cluster; 'local' runs SLURM jobs on this machine
    workers: int | None = None  # number of Ray workers or SLURM jobs
    slurm: tuple[str, ...] = ()  # parameters of SLURM jobs, each as name=value
    device: str | None = None  # where networks run

    def refuse_slurm(self) -> None:
        if self.slurm:
            raise InputError("--slurm needs --engine slurm", code="option.unused")


class WorkItems(Protocol):
    """Picklable work items of a run."""

    @property
    def folder(self) -> Path:
        """Folder of finished items, accessible to every worker."""

    @property
    def size(self) -> int:
        """Preferred number of items per batch."""

    def run(self, indices: list[int], progress: Progress | None = None) -> int:
        """Run and store items; return the number of items attempted."""

    def unfinished(self, indices: Sequence[int]) -> list[int]:
        """Return the items that are not stored yet."""

    def record_failure(self, index: int, error: Exception) -> None:
        """Record an item whose worker died repeatedly as failed, or raise MachineError."""


class Engine(Protocol):
    """Protocol of engines that execute work items."""

    @classmethod
    def from_options(cls, options: EngineOptions) -> Engine:
        """Return the engine for command-line options; raise InputError for unused options."""

    def ready(self, scratch: Path) -> AbstractContextManager[None]:
        """Connect to the machines before the computation starts."""

    def run(self, work: WorkItems, todo: list[int], progress: Progress) -> None:
        """Run the items with these indices by calling ``work.run``."""


ENGINES: Registry[type[Engine]] = Registry(
    "engine",
    {
        "local": "taskuq.pipeline._engines:LocalEngine",
        "ray": "taskuq.pipeline._engines:RayOptions",
        "slurm": "taskuq.pipeline._engines:SlurmOptions",
    },
)


@dataclass(frozen=True)
class LocalEngine:
    """Engine that runs all cases in this process."""

    @classmethod
    def from_options(cls, options: EngineOptions) -> LocalEngine:
        options.refuse_slurm()
        if options.workers is not None or options.address is not None:
            text = "the local engine takes no workers or address; use --engine ray or slurm"
            raise InputError(text, code="option.unused")
        return cls()

    def ready(self, scratch: Path) -> AbstractContextManager[None]:
        return nullcontext()

    def run(self, work: WorkItems, todo: list[int], progress: Progress) -> None:
        work.run(todo, progress)


@dataclass(frozen=True)
class RayOptions:
    """Engine on a Ray cluster, where each worker loads the networks once and writes its shards."""

    address: str | None = None  #: Address of a running cluster; None starts a local one.
    workers: int | None = None  #: Number of workers; None starts as many as fit.
    cpus: float = 1.0  #: CPUs of each worker.
    gpus: float = 0.0  #: GPUs of each worker; with a fraction, workers share a GPU.
    chunk: int = 8  #: Number of cases sent to a worker at a time.
    patience: float = 600.0  #: Seconds without a finished chunk before the run is aborted.

    @classmethod
    def from_options(cls, options: EngineOptions) -> RayOptions:
        """Return the engine for command-line options; if GPUs are used, each worker has one."""
        options.refuse_slurm()
        gpus = float(pick_device(options.device).startswith("cuda"))
        return cls(address=options.address, workers=options.workers, gpus=gpus)

    @contextmanager
    def ready(self, scratch: Path) -> Iterator[None]:
        ray = _extra("ray", "ray")
        started_here = not ray.is_initialized()
        host, _, port = (self.address or "").removeprefix("ray://").rpartition(":")
        try:
            if started_here and host and port.isdigit():
                # Ray itself would try for a minute.
                socket.create_connection((host.strip("[]"), int(port)), timeout=REACH).close()
            if started_here:
                ray.init(address=self.address, log_to_driver=False, include_dashboard=False)
        except (OSError, OverflowError, RuntimeError, ValueError) as error:
            text = f"no Ray cluster answers at {self.address or 'this machine'} "
            text += f"({first_line(error):.120}); check --address, or remove it"
            raise InputError(text, code="dependency.missing") from None
        try:
            room, wanted = self._room(ray), 1 if self.workers is None else self.workers
            if not 1 <= wanted <= room:
                text = f"{wanted} workers of {self.cpus:g} CPUs and {self.gpus:g} GPUs do not fit "
                text += f"{_resources(ray)}; use 1 to {room} workers, or add nodes"
                raise InputError(text, code="value.invalid")
            yield
        finally:
            if started_here:
                ray.shutdown()

    def run(self, work: WorkItems, todo: list[int], progress: Progress) -> None:
        """Run cases on the cluster; replace dead workers and skip cases whose workers often die."""
        ray = _extra("ray", "ray")
        actor = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus)(_RayWorker)
        shared = ray.put(work)
        # Whole batches, so that none is filled up for nothing.
        size = math.ceil(self.chunk / work.size) * work.size
        waiting = deque((todo[at : at + size], 0) for at in range(0, len(todo), size))
        idle: list[Any] = []
        busy: dict[Any, tuple[Any, list[int], int]] = {}
        moved = time.monotonic()
        while waiting or busy:
            room = self.workers or self._room(ray)
            while waiting and (idle or len(busy) < room):
                worker = idle.pop() if idle else actor.remote(shared)
                chunk, deaths = waiting.popleft()
                busy[worker.run.remote(chunk)] = (worker, chunk, deaths)
            while idle:
                # Its place may be what a new worker on a smaller cluster waits for.
                ray.kill(idle.pop())
            if not busy:
                time.sleep(1.0)  # no node is left; another one may join
            for done in ray.wait(list(busy), timeout=5.0)[0] if busy else ():
                moved = time.monotonic()
                worker, chunk, deaths = busy.pop(done)
                try:
                    _count(ray.get(done), progress)
                    idle.append(worker)
                except ray.exceptions.RayTaskError as error:
                    # The worker lives and gives the reason, such as a full disk.
                    text = " ".join(str(error.cause).split())[:400]
                    if isinstance(error.cause, MachineError):
                        raise MachineError(text) from None
                    code: Any = getattr(error.cause, "code", "component.invalid")
                    raise InputError(text, code=code) from None
                except ray.exceptions.RayError as error:
                    if deaths + 1 < TRIES:
                        waiting.appendleft((chunk, deaths + 1))
                        continue
                    for index in chunk:
                        work.record_failure(index, error)
                        progress.step(failed=True)
            if time.monotonic() - moved > self.patience:
                text = f"no chunk was finished for {self.patience:.0f} s on a cluster with "
                text += f"{_resources(ray)}; check its nodes and rerun"
                raise InputError(text, code="dependency.missing")

    def _room(self, ray: Any) -> int:
        found = ray.cluster_resources()
        room = found.get("CPU", 0.0) / max(self.cpus, 1e-9)
        if self.gpus > 0:
            room = min(room, found.get("GPU", 0.0) / self.gpus)
        return int(room + 1e-9)


@dataclass
class _RayWorker:
    work: WorkItems

    def run(self, todo: list[int]) -> int:
        return self.work.run(todo)


def _extra(module: str, engine: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError:
        text = f"{module} is not installed; run pip install 'taskuq[{engine}]'"
        raise InputError(text, code="dependency.missing") from None


def _resources(ray: Any) -> str:
    found = ray.cluster_resources()
    return f"{found.get('CPU', 0):g} CPUs and {found.get('GPU', 0):g} GPUs"


@dataclass(frozen=True)
class SlurmOptions:
    """SLURM engine; each array job runs some cases and writes their shards.

    Args:
        jobs: Number of jobs among which the cases are divided.
        cluster: 'slurm', or 'local' for processes on this machine.
        parameters: Parameters of submitit, e.g. slurm_partition. The defaults are one GPU
            (gpus_per_node) and four hours (timeout_min) per job.
    """

    jobs: int = 2
    cluster: str = "slurm"
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_options(cls, options: EngineOptions) -> SlurmOptions:
        """Return the engine; raise InputError for GPU jobs from a machine without a GPU."""
        parameters: dict[str, Any] = {}
        if options.device is not None and not options.device.startswith("cuda"):
            parameters["gpus_per_node"] = 0
        for setting in options.slurm:
            name, equals, value = setting.partition("=")
            if not equals or not name:
                text = f"--slurm must be name=value, got {setting!r}"
                raise InputError(text, code="value.invalid")
            parameters[name] = int(value) if value.isdigit() else value
        jobs = cls.jobs if options.workers is None else options.workers
        chosen = cls(jobs=jobs, cluster=options.address or "slurm", parameters=parameters)
        needs_gpu = options.address is None and chosen.requested.get("gpus_per_node", 1)
        # Networks stay on the kind of device they are loaded to here.
        if needs_gpu and not pick_device(options.device).startswith("cuda"):
            text = "this node has no GPU, and jobs use the kind of device found here; start on a "
            text += "GPU node, e.g. srun --gpus=1 taskuq run ..., or use --device cpu"
            raise InputError(text, code="dependency.missing")
        return chosen

    @property
    def requested(self) -> dict[str, Any]:
        given = dict(self.parameters)
        has_gpus = any("gpu" in name or "gres" in name for name in given)
        has_time = any(name.removeprefix("slurm_") in ("timeout_min", "time") for name in given)
        return {**({} if has_gpus else GPUS), **({} if has_time else MINUTES), **given}

    def ready(self, scratch: Path) -> AbstractContextManager[None]:
        self._executor(scratch / "table")
        return nullcontext()

    def run(self, work: WorkItems, todo: list[int], progress: Progress) -> None:
        """Wait for the jobs of an earlier run, then submit a job array and wait for its jobs."""
        name, began = _job_name(work.folder), time.monotonic()
        states = _states(f"--name={name}", {}) if self.cluster == "slurm" else {}
        if not ENDED.issuperset(states.values()):
            progress.say(f"waiting for jobs of an earlier start; scancel --name={name} ends them")
        while not ENDED.issuperset(states.values()):
            time.sleep(min(30.0, max(1.0, (time.monotonic() - began) / 10)))
            states = _states(f"--name={name}", states)
        left = work.unfinished(todo)
        _count(len(todo) - len(left), progress)
        if not left:
            return
        shares = [left[k :: self.jobs] for k in range(min(self.jobs, len(left)))]
        jobs = self._submit(work, shares, progress)
        failed: list[tuple[str, Exception]] = []
        try:
            for place, error in _wait(jobs):
                if error is None:
                    _count(len(shares[place]), progress)
                else:
                    failed.append((jobs[place].job_id, error))
        except BaseException:
            for job in jobs:
                job.cancel(check=False)
            raise
        if failed:
            job, first = failed[0]
            text = f"{len(failed)} of {len(jobs)} jobs failed, the first {job}: {first}; rerun"
            if isinstance(first, InputError):
                raise type(first)(text, code=first.code)
            raise MachineError(text)

    def _submit(self, work: WorkItems, shares: list[list[int]], progress: Progress) -> list[Any]:
        executor = self._executor(work.folder)
        from submitit.core.utils import FailedJobError, FailedSubmissionError
        from submitit.helpers import clean_env

        executor.update_parameters(name=_job_name(work.folder))
        kept = {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}
        try:
            with clean_env(), redirect_stderr(StringIO()):
                os.environ.update(kept)
                jobs: list[Any] = executor.map_array(partial(_run_share, work), shares)
        except (FailedJobError, FailedSubmissionError) as error:
            reason = " ".join(str(error).replace("sbatch: error: ", "").split())
            text = f"SLURM refused the jobs ({reason}); use --slurm name=value"
            raise InputError(text, code="value.invalid") from None
        requested = ", ".join(f"{name}={value}" for name, value in self.requested.items())
        many, number = f"{len(jobs)} jobs", jobs[0].job_id.partition("_")[0]
        progress.say(f"{many} ({number}), each with {requested}; change that with --slurm")
        return jobs

    def _executor(self, folder: Path) -> Any:
        submitit = _extra("submitit", "slurm")
        if self.jobs < 1:
            raise InputError(f"jobs must be at least 1, got {self.jobs}", code="value.invalid")
        logs = folder.parent / f"{folder.name}-jobs"
        try:
            executor = submitit.AutoExecutor(folder=str(logs), cluster=self.cluster)
            # SLURM understands no request at all as no GPU.
            asked = {k: v for k, v in self.requested.items() if (k, v) != ("gpus_per_node", 0)}
            executor.update_parameters(**asked)
        except (RuntimeError, ValueError, NameError, TypeError) as error:
            text = f"jobs cannot be submitted here ({first_line(error):.160}); use a login node"
            raise InputError(text, code="dependency.missing") from None
        return executor


class _JobTimeout(BaseException):
    """Time limit of a job; not an Exception, so that no case is recorded as failed."""


def _run_share(work: WorkItems, todo: list[int]) -> Exception | None:
    from submitit.core.job_environment import JobEnvironment

    number = JobEnvironment._usr_sig()
    before: Any = signal.getsignal(number)

    def end(number: int, frame: FrameType | None) -> None:
        # Submitit requeues a preempted job and exits; at a time limit it raises an error wherever
        # the program happens to be, which a case would take for its own.
        try:
            before(number, frame)
        except Exception:
            raise _JobTimeout from None

    signal.signal(number, end)
    try:
        work.run(work.unfinished(todo))
    except (InputError, MachineError) as error:
        return error
    except _JobTimeout:
        done = len(todo) - len(work.unfinished(todo))
        return MachineError(f"{ADVICE['TIMEOUT']}; {done} of its {len(todo)} are kept")
    finally:
        signal.signal(number, before)
    return None


def _job_name(folder: Path) -> str:
    return f"taskuq-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]}"


def _states(which: str, before: dict[str, str]) -> dict[str, str]:
    """Return the job states listed by squeue, or ``before`` if SLURM does not respond."""
    command = ["squeue", "--noheader", "--array", "--states=all", "--format=%F_%K %T", which]
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode == 0:
        rows = (line.split() for line in found.stdout.splitlines())
        return {row[0].removesuffix("_N/A"): row[1] for row in rows if len(row) == 2}
    # An unknown job is gone; else SLURM did not answer, and the last known states stand.
    return {} if "Invalid job id" in found.stderr else before


def _wait(jobs: Sequence[Any]) -> Iterator[tuple[int, Exception | None]]:
    from submitit import SlurmJob

    began, looked, states = time.monotonic(), -math.inf, dict[str, str]()
    waiting, alive = dict(enumerate(jobs)), dict.fromkeys(range(len(jobs)), began)
    while waiting:
        now = time.monotonic()
        pause = min(30.0, max(1.0, (now - began) / 10))
        if isinstance(jobs[0], SlurmJob) and now - looked >= pause:
            looked, states = now, _states(f"--jobs={jobs[0].job_id.partition('_')[0]}", states)
        for place, job in list(waiting.items()):
            state = states.get(job.job_id, "GONE")
            if state not in ENDED:
                alive[place] = now
            if isinstance(job, SlurmJob):
                is_over = job.paths.result_pickle.exists() or now - alive[place] > GRACE
            else:
                is_over = job.done()
            if is_over:
                del waiting[place]
                yield place, _error(job, state)
        time.sleep(0.2)


def _error(job: Any, state: str) -> Exception | None:
    if job.paths.result_pickle.exists():
        kind, found = job._get_outcome_and_result()
        if kind == "success":
            return found if isinstance(found, Exception) else None
        state, rows = "FAILED", str(found).splitlines()
    else:
        # Submitit writes to the error stream as well.
        rows = [row for row in (job.stderr() or "").splitlines() if not row.startswith("submitit ")]
    rows = [row for row in rows if row.strip()] or ["it printed nothing"]
    sys.stderr.write("\n".join([f"job {job.job_id}:", *rows, ""]))
    last = next((row for row in rows if state in row), rows[-1])
    return MachineError(ADVICE.get(state, f"{state.lower()}, {last}"))


def _count(cases: int, progress: Progress) -> None:
    for _ in range(cases):
        progress.step()
