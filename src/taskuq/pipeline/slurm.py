"""SLURM arrays for places without Ray: every job does its share and writes its own shards."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taskuq.errors import InputError, MachineError, first_line
from taskuq.pipeline.engines import Flags
from taskuq.pipeline.local import Work
from taskuq.pipeline.progress import Progress


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

    @classmethod
    def from_flags(cls, flags: Flags) -> SlurmOptions:
        """Take the number of jobs, the cluster, and what submitit is asked for as name=value."""
        parameters: dict[str, Any] = {}
        for setting in flags.slurm:
            name, equals, value = setting.partition("=")
            if not equals or not name:
                raise InputError(f"--slurm got {setting!r}; give name=value, e.g. timeout_min=60")
            parameters[name] = int(value) if value.isdigit() else value
        jobs = cls.jobs if flags.workers is None else flags.workers
        return cls(jobs=jobs, cluster=flags.address or "slurm", parameters=parameters)

    def ready(self, scratch: Path) -> AbstractContextManager[None]:
        """Refuse a machine from which nothing can be submitted."""
        self.executor(scratch)
        return nullcontext()

    def run(self, work: Work, todo: list[int], progress: Progress) -> None:
        """Submit an array of jobs and wait for them.

        A job that dies leaves its finished shards; starting the same command again does the rest.
        """
        if not todo:
            return
        executor = self.executor(work.writer.folder)
        # Every n-th case, so that jobs take about the same time.
        shares = [todo[k :: self.jobs] for k in range(min(self.jobs, len(todo)))]
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
            raise MachineError(
                f"{len(failed)} of {len(jobs)} jobs failed, the first {failed[0]}; start the same "
                "command again to do the rest"
            )

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
            executor.update_parameters(**self.parameters)
        except (RuntimeError, ValueError, NameError, TypeError) as error:
            raise InputError(
                f"jobs cannot be submitted here ({first_line(error):.160}); run on a SLURM login "
                "node, or choose another engine"
            ) from None
        return executor
