"""SLURM arrays for places without Ray: every job does its share and writes its own shards."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stderr
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from taskuq.errors import InputError, MachineError, first_line
from taskuq.pipeline.device import pick_device
from taskuq.pipeline.engines import Flags, Work
from taskuq.pipeline.jobs import Failure, Queue, Share, wait
from taskuq.pipeline.progress import Progress

# What each job gets where nobody asks for anything else: a GPU, and four hours.
GPUS, MINUTES = {"gpus_per_node": 1}, {"timeout_min": 240}


@dataclass(frozen=True)
class SlurmOptions:
    """How jobs are submitted.

    Arguments:
        jobs: How many jobs share the cases.
        cluster: 'slurm', or 'local' for processes on this machine.
        logs: Where submitit keeps its files; beside the table where None.
        parameters: Passed on to submitit, e.g. slurm_partition; a job has a GPU and four hours
            unless gpus_per_node and timeout_min say otherwise.

    Example:
        >>> SlurmOptions(parameters={"slurm_partition": "gpu"}).asked
        {'gpus_per_node': 1, 'timeout_min': 240, 'slurm_partition': 'gpu'}
        >>> SlurmOptions(parameters={"slurm_gres": "gpu:a100:2", "timeout_min": 600}).asked
        {'slurm_gres': 'gpu:a100:2', 'timeout_min': 600}
    """

    jobs: int = 2
    cluster: str = "slurm"
    logs: Path | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_flags(cls, flags: Flags) -> SlurmOptions:
        """Take the number of jobs, the cluster, and what submitit is asked for as name=value."""
        parameters = as_parameters(flags.slurm)
        if flags.device is not None and not flags.device.startswith("cuda"):
            parameters = {"gpus_per_node": 0, **parameters}
        jobs = cls.jobs if flags.workers is None else flags.workers
        chosen = cls(jobs=jobs, cluster=flags.address or "slurm", parameters=parameters)
        if flags.address is None and chosen.asked.get("gpus_per_node", 1):
            _require_gpu_here(flags.device)
        return chosen

    @property
    def asked(self) -> dict[str, Any]:
        """What each job asks for: what was said, and else a GPU and four hours."""
        said = dict(self.parameters)
        speaks_of_gpus = any("gpu" in name or "gres" in name for name in said)
        speaks_of_time = any(
            name.removeprefix("slurm_") in ("timeout_min", "time") for name in said
        )
        return {
            **({} if speaks_of_gpus else GPUS),
            **({} if speaks_of_time else MINUTES),
            **said,
        }

    def ready(self, scratch: Path) -> AbstractContextManager[None]:
        """Refuse a machine from which nothing can be submitted."""
        self.executor(scratch / "table")
        return nullcontext()

    def run(self, work: Work, todo: list[int], progress: Progress) -> None:
        """Submit an array of jobs and wait for them.

        A job that dies leaves its finished shards; starting the same command again does the rest.
        Jobs of an earlier start that are still at work are waited for first. Whoever stops the
        run stops its jobs.
        """
        folder = work.folder
        self.wait_for_earlier(folder, progress.say)
        left = work.unfinished(todo)
        _count(len(todo) - len(left), progress)
        if not left:
            return
        # Every n-th case, so that jobs take about the same time.
        shares = [left[k :: self.jobs] for k in range(min(self.jobs, len(left)))]
        jobs = self.submit(folder, Share(work), shares, progress.say)
        finish(jobs, lambda place: _count(len(shares[place]), progress))

    def wait_for_earlier(self, folder: Path, say: Callable[[str], None]) -> None:
        """Wait for jobs whose starter was killed: they go on, and would be done twice.

        Arguments:
            folder: What they work on.
            say: Called with a sentence where there are any.
        """
        if self.cluster != "slurm":
            return
        name = _name(folder)
        queue, is_said = Queue(f"--name={name}"), False
        while going := queue.going():
            if not is_said:
                say(
                    f"waiting for {len(going)} jobs of an earlier start ({going[0]} and others; "
                    f"scancel --name={name} ends them)"
                )
                is_said = True
            time.sleep(0.2)

    def submit(
        self,
        folder: Path,
        work: Callable[[Any], Any],
        shares: Sequence[Any],
        say: Callable[[str], None],
    ) -> list[Any]:
        """Submit an array of jobs, and say what they ask for.

        Arguments:
            folder: What they work on; submitit keeps its files beside it.
            work: What each job does with its share.
            shares: One for each job.
            say: Called with the sentence.
        """
        executor = self.executor(folder)
        executor.update_parameters(name=_name(folder))
        jobs = _submit(executor, work, shares)
        asked = ", ".join(f"{name}={value}" for name, value in self.asked.items())
        number = jobs[0].job_id.partition("_")[0]
        many = f"{len(jobs)} jobs ({number}), each" if len(jobs) > 1 else f"job {number}"
        say(f"{many} with {asked}; change that with --slurm name=value")
        return jobs

    def executor(self, folder: Path) -> Any:
        """Get ready to submit jobs, or say why that is impossible here.

        Arguments:
            folder: The folder of the table, beside which submitit keeps its files.
        """
        try:
            import submitit
        except ModuleNotFoundError:
            raise InputError(
                "the slurm engine needs submitit; run pip install 'taskuq[slurm]'"
            ) from None
        if self.jobs < 1:
            raise InputError(f"{self.jobs} jobs were asked for; at least 1 is needed")
        logs = self.logs or folder.parent / f"{folder.name}-jobs"
        try:
            executor = submitit.AutoExecutor(folder=str(logs), cluster=self.cluster)
            # None at all is what SLURM understands by no GPU.
            asked = {k: v for k, v in self.asked.items() if (k, v) != ("gpus_per_node", 0)}
            executor.update_parameters(**asked)
        except (RuntimeError, ValueError, NameError, TypeError) as error:
            raise InputError(
                f"jobs cannot be submitted here ({first_line(error):.160}); run on a SLURM login "
                "node, or choose another engine"
            ) from None
        return executor


def _require_gpu_here(device: str | None) -> None:
    """Refuse jobs with a GPU from a machine without one: networks stay where they were loaded."""
    if not pick_device(device).startswith("cuda"):
        raise InputError(
            "no GPU was found here, and jobs compute on the kind of device that networks are "
            "loaded to here; start the command on a node that has one, e.g. srun --gpus=1 taskuq "
            "run ..., or give --device cpu"
        )


def _name(folder: Path) -> str:
    """Return the name of a table's jobs, by which a later start finds them."""
    return f"taskuq-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]}"


def as_parameters(settings: Sequence[str]) -> dict[str, Any]:
    """Read what SLURM is asked for on a command line.

    Arguments:
        settings: Each as name=value.

    Example:
        >>> as_parameters(["slurm_partition=gpu", "timeout_min=600"])
        {'slurm_partition': 'gpu', 'timeout_min': 600}
    """
    parameters: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise InputError(f"--slurm got {setting!r}; give name=value, e.g. timeout_min=60")
        parameters[name] = int(value) if value.isdigit() else value
    return parameters


def finish(
    jobs: Sequence[Any],
    done: Callable[[int], None],
    *,
    look: Callable[[], None] = lambda: None,
    rest: str = "to do the rest",
) -> None:
    """Wait for jobs, show what failed ones said, and raise the first one's error.

    Whoever stops waiting stops the jobs.

    Arguments:
        jobs: What was submitted.
        done: Called with the place of each job that did its share.
        look: Called now and then.
        rest: What the same command is started again for.
    """
    failed: list[tuple[str, Failure]] = []
    try:
        for place, failure in wait(jobs, look):
            if failure is not None:
                failed.append((jobs[place].job_id, failure))
            else:
                done(place)
    except BaseException:
        for job in jobs:
            job.cancel(check=False)
        raise
    if failed:
        raise _sum_up(failed, len(jobs), rest)


def _submit(executor: Any, share: Callable[[Any], Any], shares: Sequence[Any]) -> list[Any]:
    """Submit an array, also from within another job, whose settings it must not inherit."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError
    from submitit.helpers import clean_env

    kept = {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}
    try:
        with clean_env(), redirect_stderr(StringIO()):
            os.environ.update(kept)
            jobs: list[Any] = executor.map_array(share, shares)
    except (FailedJobError, FailedSubmissionError) as error:
        reason = " ".join(str(error).replace("sbatch: error: ", "").split())
        raise InputError(
            f"SLURM refused the jobs ({reason}); change what they ask for with --slurm name=value"
        ) from None
    return jobs


def _sum_up(failed: list[tuple[str, Failure]], jobs: int, rest: str) -> Exception:
    """Show what failed jobs said, whole, and return the sentence that ends the run."""
    for job, failure in failed:
        if failure.words:
            sys.stderr.write(f"job {job} said:\n{failure.words}\n")
    job, first = failed[0]
    kind = type(first.error) if isinstance(first.error, InputError) else MachineError
    which = f"{len(failed)} of {jobs} jobs failed, the first {job}" if jobs > 1 else f"job {job}"
    return kind(f"{which}: {first.error}; start the same command again {rest}")


def _count(cases: int, progress: Progress) -> None:
    for _ in range(cases):
        progress.step()
