"""SLURM arrays for places without Ray: every job does its share and writes its own shards."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taskuq.errors import InputError
from taskuq.pipeline.progress import Progress
from taskuq.pipeline.work import Work


@dataclass(frozen=True)
class SlurmOptions:
    """How jobs are submitted.

    Arguments:
        jobs: How many jobs share the cases.
        cluster: 'slurm', or 'local' for processes on this machine.
        logs: Where submitit keeps its files; beside the table where None.
        parameters: Passed on to submitit, e.g. slurm_partition, gpus_per_node, timeout_min.
    """

    jobs: int = 2
    cluster: str = "slurm"
    logs: Path | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)


def run_on_slurm(work: Work, todo: list[int], progress: Progress, options: SlurmOptions) -> None:
    """Submit an array of jobs and wait for them.

    A job that dies leaves its finished shards; starting the same command again does the rest.

    Arguments:
        work: What every job needs.
        todo: The numbers of the cases to run.
        progress: Told of finished jobs.
        options: How jobs are submitted.
    """
    if not todo:
        return
    executor = open_executor(options, work.folder)
    # Every n-th case, so that jobs take about the same time.
    shares = [todo[k :: options.jobs] for k in range(min(options.jobs, len(todo)))]
    jobs = executor.map_array(work.do, shares)
    failed = []
    for job, share in zip(jobs, shares, strict=True):
        while not job.done():
            time.sleep(0.5)
        error = job.exception()
        if error is not None:
            failed.append(f"{job.job_id}: {' '.join(str(error).split())[:200]}")
        else:
            for _ in share:
                progress.step()
    if failed:
        raise InputError(
            f"{len(failed)} of {len(jobs)} jobs failed, the first {failed[0]}; start the same "
            "command again to do the rest"
        )


def open_executor(options: SlurmOptions, folder: Path) -> Any:
    """Get ready to submit jobs, or say why that is impossible here.

    Arguments:
        options: How jobs are submitted.
        folder: The folder of the table, beside which submitit keeps its files.
    """
    try:
        import submitit
    except ModuleNotFoundError:
        raise InputError(
            "the slurm engine needs submitit; run pip install 'taskuq[slurm]'"
        ) from None
    if options.jobs < 1:
        raise InputError(f"{options.jobs} jobs were asked for; at least 1 is needed")
    logs = options.logs or folder.parent / f"{folder.name}-jobs"
    try:
        executor = submitit.AutoExecutor(folder=str(logs), cluster=options.cluster)
        executor.update_parameters(**options.parameters)
    except (RuntimeError, ValueError, NameError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"jobs cannot be submitted here ({reason:.160}); run on a SLURM login node, or choose "
            "another engine"
        ) from None
    return executor
