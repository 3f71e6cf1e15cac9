"""Where a training runs: in this process, or in a SLURM job that is watched from here."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from taskuq.errors import InputError, MachineError
from taskuq.pipeline.jobs import ADVICE, TimeIsUp, told_of_the_end
from taskuq.pipeline.slurm import SlurmOptions, as_parameters, finish
from taskuq.runs.training import foresee_training, train_from
from taskuq.settings import read_settings
from taskuq.training.fit import PROBES, Machine, own_batch
from taskuq.training.log import read_log
from taskuq.training.networks import NETWORKS

LOG = "metrics.csv"


@dataclass(frozen=True)
class Here:
    """Trainings in this process.

    Arguments:
        machine: On what to train.
        said: What SLURM is asked for: nothing.
        tell: Called with sentences.
        detach: Whether to leave a job to itself: there is none.

    Example:
        >>> Here(Machine(), said=["timeout_min=60"])
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: --slurm and --detach are for the slurm engine; choose ...
    """

    machine: Machine
    said: Sequence[str] = ()
    tell: Callable[[str], None] = lambda line: None
    detach: bool = False

    def __post_init__(self) -> None:
        if self.said or self.detach:
            raise InputError(
                "--slurm and --detach are for the slurm engine; choose --engine slurm, or leave "
                "them out"
            )

    def train(
        self,
        kind: str,
        config: Path,
        folder: Path,
        *,
        fresh: bool = False,
        steps: int | None = None,
    ) -> Path:
        """Train as :func:`taskuq.runs.training.train_from` does."""
        return train_from(
            kind, config, folder,
            machine=self.machine, fresh=fresh, steps=steps, tell=self.tell,
        )  # fmt: skip

    def foresee(
        self, kind: str, config: Path, folder: Path, *, steps: int = PROBES
    ) -> dict[str, Any]:
        """Time a few steps as :func:`taskuq.runs.training.foresee_training` does."""
        return foresee_training(kind, config, machine=self.machine, steps=steps)


@dataclass(frozen=True)
class Slurm:
    """Trainings on SLURM, each a job with a process for each device.

    A job has as many GPUs on each node as the machine has devices, four hours, and a core for each
    process that reads data; what is said to SLURM changes that.

    Arguments:
        machine: On what to train.
        said: What SLURM is asked for, each as name=value.
        tell: Called with sentences: what was asked for, and every epoch.
        detach: Whether to leave the job to itself once it is submitted.
    """

    machine: Machine
    said: Sequence[str] = ()
    tell: Callable[[str], None] = lambda line: None
    detach: bool = False

    def train(
        self,
        kind: str,
        config: Path,
        folder: Path,
        *,
        fresh: bool = False,
        steps: int | None = None,
    ) -> Path | None:
        """Train as :func:`taskuq.runs.training.train_from` does; None where the job is on its own.

        Arguments:
            kind: A name of the list of networks.
            config: The TOML file.
            folder: Where weights, logs and the state go.
            fresh: Whether to begin again and overwrite what is there.
            steps: After how many steps a trial stops; None trains all epochs.
        """
        epochs = self._checked(kind, config).epochs
        watch = _Watch(folder, epochs, self.tell)
        do = partial(_train, kind, config, folder, self.machine, fresh, steps)
        job = self._submitted(kind, config, folder, do)
        if self.detach:
            return None
        for line in _result(job, watch):
            self.tell(line)
        return folder / "best.safetensors"

    def foresee(
        self, kind: str, config: Path, folder: Path, *, steps: int = PROBES
    ) -> dict[str, Any]:
        """Time a few steps as :func:`taskuq.runs.training.foresee_training` does.

        Arguments:
            kind: A name of the list of networks.
            config: The TOML file.
            folder: Where a training would go; files of the job lie beside it.
            steps: How many steps to take, of each part.
        """
        do = partial(foresee_training, kind, config, machine=self.machine, steps=steps)
        record: dict[str, Any] = _result(self._submitted(kind, config, folder, do), lambda: None)
        return record

    def _submitted(self, kind: str, config: Path, folder: Path, do: Callable[[], Any]) -> Any:
        """The job that does something, when those of earlier starts have ended."""
        options = SlurmOptions(jobs=1, parameters=self._asked(kind, config))
        # Refuses a machine without SLURM, on which nobody could be asked for earlier jobs.
        options.executor(folder)
        options.wait_for_earlier(folder, self.tell)
        (job,) = options.submit(folder, InJob(do, self.machine.processes), [0], self.tell)
        self.tell(f"what it says goes to {job.task(0).paths.stderr}")
        return job

    def _checked(self, kind: str, config: Path) -> Any:
        """How a network is trained; a mistake in its file shows before anything is submitted."""
        how = read_settings(NETWORKS[kind].training, config).training
        own_batch(how, self.machine, how.batch)
        return how

    def _asked(self, kind: str, config: Path) -> dict[str, Any]:
        machine, said = self.machine, as_parameters(self.said)
        mine: dict[str, Any] = {"cpus_per_task": 1 + self._checked(kind, config).workers}
        if not any("gpu" in name or "gres" in name for name in said):
            mine["gpus_per_node"] = 0 if machine.accelerator == "cpu" else machine.devices
        if machine.processes > 1:
            mine |= {"nodes": machine.nodes, "tasks_per_node": machine.devices}
            # Who is left without the others would wait for them until its time is up.
            mine["slurm_srun_args"] = ["--kill-on-bad-exit=1"]
        return {**mine, **said}


@dataclass(frozen=True)
class InJob:
    """Something that is done in a job, whose errors reach whoever submitted it.

    Arguments:
        do: What is done.
        processes: How many processes do it together.
    """

    do: Callable[[], Any]
    processes: int

    def __call__(self, number: int) -> Any:
        """Do it, and return what came out or what a person should read."""
        try:
            with told_of_the_end():
                return self.do()
        except (InputError, MachineError) as error:
            if self.processes > 1:
                raise  # the others would wait for this one, and have to end as well
            return error
        except TimeIsUp:
            return MachineError(ADVICE["TIMEOUT"])


def _train(
    kind: str, config: Path, folder: Path, machine: Machine, fresh: bool, steps: int | None
) -> list[str]:
    """What runs in the job; returns what there is to tell."""
    lines: list[str] = []
    # A job that was put back in line goes on with what it had begun afresh.
    is_first = os.environ.get("SLURM_RESTART_COUNT", "0") == "0"
    train_from(
        kind, config, folder,
        machine=machine, fresh=fresh and is_first, steps=steps, tell=lines.append,
    )  # fmt: skip
    return lines


def _result(job: Any, look: Callable[[], None]) -> Any:
    """What a job returns in the end; looks at its training meanwhile."""
    finish([job], lambda place: look(), look=look, rest="to go on behind the last whole epoch")
    return job.task(0).result()


class _Watch:
    """Tells of every epoch that a training adds to its learning curve."""

    def __init__(self, folder: Path, epochs: int, tell: Callable[[str], None]) -> None:
        self.files = [folder / "pretrain" / LOG, folder / LOG]
        self.epochs, self.tell = epochs, tell
        self.times: dict[Path, float] = {}
        self.said: set[str] = set()
        self.seen = {self._name(path, row) for path in self.files for row in self._news(path)}

    def __call__(self) -> None:
        for path in self.files:
            try:
                rows = self._news(path)
            except (InputError, MachineError, OSError) as error:
                # A disk that fails for a moment is no reason to end a job that trains.
                self._say_once(f"{error}; the job goes on, and is looked at again")
                continue
            for row in rows:
                if self._name(path, row) not in self.seen:
                    self.seen.add(self._name(path, row))
                    self.tell(self._sentence(path, row))

    def _say_once(self, sentence: str) -> None:
        if sentence not in self.said:
            self.said.add(sentence)
            self.tell(sentence)

    def _news(self, path: Path) -> list[dict[str, float]]:
        changed = path.stat().st_mtime if path.exists() else 0.0
        if self.times.get(path, 0.0) == changed:
            return []
        rows = read_log(path)
        self.times[path] = changed
        return rows

    def _name(self, path: Path, row: dict[str, float]) -> tuple[Any, ...]:
        return (path, *row.items())

    def _sentence(self, path: Path, row: dict[str, float]) -> str:
        is_whole = path == self.files[-1]
        which = f"epoch {row['epoch'] + 1:.0f}" + (f" of {self.epochs}" if is_whole else "")
        values = [
            f"{name.replace('_', ' ')} {value:.4g}" for name, value in row.items() if "loss" in name
        ]
        before = "" if is_whole else "before the whole, "
        return f"{before}{which}: {', '.join(values)}, {row['seconds']:.3g} s"


LAUNCHERS: dict[str, type[Here | Slurm]] = {"local": Here, "slurm": Slurm}
