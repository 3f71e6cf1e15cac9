"""A run from a configuration file: which data, measurement, recovery and task fill the table."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from taskuq.data.readers import Data, open_all, open_data, paper_data
from taskuq.errors import InputError
from taskuq.measure.masks import MaskConfig
from taskuq.pipeline import Pipeline, RecoveryFolder
from taskuq.pipeline.cases import as_cases
from taskuq.pipeline.chain import scan_case
from taskuq.pipeline.device import pick_device
from taskuq.pipeline.progress import duration
from taskuq.settings import read_settings, to_table
from taskuq.weights import locate


@dataclass(frozen=True)
class RecoverConfig:
    """How images are recovered.

    Arguments:
        kind: 'zero-filled', 'varnet' or 'flow'.
        weights: The trained network: a .safetensors file, or a name of the package's own, e.g.
            'flow-atlas'; not for zero-filled.
        estimate: For a flow around estimates, its variational network where the TOML beside the
            flow's weights does not name it.
        temperature: Of the flow's latents; by default what the flow's TOML says, else 1, which
            draws what was learned.
        precision: 'auto' draws in bfloat16 on a GPU, 'float32' as a CPU does.
    """

    kind: Literal["zero-filled", "varnet", "flow", "folder"] = "zero-filled"
    weights: Path | None = None
    path: Path | None = None
    estimate: Path | None = None
    temperature: float | None = None
    precision: Literal["auto", "float32"] = "auto"


@dataclass(frozen=True)
class TaskConfig:
    """What is read off an image.

    Arguments:
        kind: 'classifier', or 'mean-intensity' of a rectangle for whoever has no network.
        weights: The trained classifier: a .safetensors file, or 'classifier-atlas'.
        rows: The rectangle's first and last edge, as shares of the height.
        columns: The same for the width.
    """

    kind: Literal["classifier", "mean-intensity"] = "mean-intensity"
    weights: Path | None = None
    rows: tuple[float, float] = (0.25, 0.75)
    columns: tuple[float, float] = (0.25, 0.75)


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a table.

    Arguments:
        data: Where images come from.
        part: Which of them: 'all', or the 'training' or 'validation' groups.
        measure: The masks of the rounds.
        noise: Standard deviation of the measurement noise.
        recover: How images are recovered.
        task: What is read off them.
        samples: Posterior samples per case and round.
        seed: The seed of noise and samples.
    """

    data: Data = field(default_factory=paper_data)
    part: Literal["all", "training", "validation"] = "validation"
    measure: MaskConfig = field(default_factory=MaskConfig)
    noise: float = 0.0
    recover: RecoverConfig = field(default_factory=RecoverConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    samples: int = 32
    seed: int = 0


@dataclass(frozen=True)
class Run:
    """A pipeline with its images, ready to start.

    Arguments:
        pipeline: Measurement, recovery and task.
        images: The data set.
        config: What they were made from.
    """

    pipeline: Pipeline
    images: Any
    config: RunConfig

    @property
    def configuration(self) -> dict[str, Any]:
        """The configuration as values that JSON can hold."""
        values = to_table(self.config, complete=True)
        # Where none is given, the weights say at what temperature they are drawn from.
        values["recover"]["temperature"] = getattr(self.pipeline.recover, "temperature", None)
        return values


def read_run(path: Path) -> RunConfig:
    """Read the configuration of a run from TOML.

    Arguments:
        path: The file.
    """
    config: RunConfig = read_settings(RunConfig, path)
    return config


def open_run(config: RunConfig, device: str | None = None) -> Run:
    """Open the data and load the networks of a run.

    Arguments:
        config: The configuration.
        device: Where networks run: 'cpu', 'cuda', 'mps'; the best there is where None.
    """
    from taskuq.measure.mri import MultiCoilMRI

    chosen = pick_device(device)
    images = _images(config)
    width = int(images[0].image.shape[-1])
    measure = MultiCoilMRI(
        config.measure.masks(width),
        config.measure.accelerations,
        noise=config.noise,
        seed=config.seed,
    )
    pipeline = Pipeline(
        measure, _recovery(config.recover, chosen), _task(config.task, chosen), device=chosen
    )
    return Run(pipeline, images, config)


@dataclass(frozen=True)
class Cost:
    """What a run will take, from a few cases.

    Arguments:
        cases: How many cases there are.
        seconds: The time they will take.
        bytes: The disk space of the table.
        memory: The largest memory of this process so far, in bytes.
    """

    cases: int
    seconds: float
    bytes: float
    memory: float

    @property
    def sentence(self) -> str:
        """All of it in words."""
        return (
            f"{self.cases} cases will take about {duration(self.seconds)}, "
            f"{self.bytes / 1e6:.1f} MB of disk and {self.memory / 1e9:.2f} GB of memory."
        )


def foresee(run: Run, probes: int = 3) -> Cost:
    """Run a few cases and say what all of them will take; nothing is written.

    Arguments:
        run: The run.
        probes: How many cases to try.
    """
    import resource

    cases = as_cases(run.images)
    chain = run.pipeline.chain(
        run.config.measure.accelerations, samples=run.config.samples, seed=run.config.seed
    )
    times, numbers = [], 0
    for index in np.linspace(0, len(cases) - 1, min(probes, len(cases))).astype(int):
        start = time.perf_counter()
        found = scan_case(chain, cases.image(int(index)), cases.case[index])
        times.append(time.perf_counter() - start)
        numbers = found.outputs.size
    # The first case pays for what is loaded and compiled once.
    steady = times[1:] or times
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Cost(len(cases), float(np.mean(steady)) * len(cases), 4.2 * numbers * len(cases), peak)


def _images(config: RunConfig) -> Any:
    if config.part == "all":
        return open_all(config.data)
    training, validation = open_data(config.data)
    return training if config.part == "training" else validation


def _recovery(config: RecoverConfig, device: str) -> Any:
    import torch

    from taskuq.recover import VarNetRecovery, ZeroFilled
    from taskuq.recover.opening import open_recovery

    if config.kind == "zero-filled":
        return ZeroFilled()
    if config.kind == "folder":
        if config.path is None:
            raise InputError("recover.path is missing; name the folder of recoveries")
        return RecoveryFolder(config.path)
    if config.weights is None:
        raise InputError(f"recover.weights is missing; name the trained {config.kind}")
    recovery = open_recovery(
        config.weights,
        estimate=config.estimate,
        device=device,
        dtype=torch.float32 if config.precision == "float32" else None,
        temperature=config.temperature,
    )
    if isinstance(recovery, VarNetRecovery) == (config.kind == "flow"):
        raise InputError(f"{config.weights} does not hold a {config.kind}; name another file")
    return recovery


def _task(config: TaskConfig, device: str) -> Any:
    from taskuq.task.catalog import load
    from taskuq.task.simple import MeanIntensity

    if config.kind == "mean-intensity":
        return MeanIntensity(config.rows, config.columns)
    if config.weights is None:
        raise InputError("task.weights is missing; name the trained classifier")
    return load(locate(config.weights)).to(device)
