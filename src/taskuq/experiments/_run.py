"""Runs from configuration files."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from taskuq._config import Count, NonNegative, Seed, read_config, to_toml_table
from taskuq.data._atlas import AtlasData, PatientDistribution
from taskuq.data._dataset import precision_of
from taskuq.data._readers import Data, open_all, open_data, paper_data
from taskuq.errors import InputError
from taskuq.measure._adaptive import AdaptiveConfig, AdaptiveLines
from taskuq.measure._masks import mask_fingerprint, mask_provenance, masks_to_text
from taskuq.measure._mri import MaskConfig
from taskuq.measure._systems import AnySystem
from taskuq.pipeline._executor import (
    CaseExecutor,
    CaseOutputs,
    Executor,
    peak_host_bytes,
    pick_device,
)
from taskuq.pipeline._local import as_cases
from taskuq.pipeline._pipeline import Pipeline
from taskuq.pipeline._progress import duration
from taskuq.recover._methods import RECOVERIES, ZeroFilled
from taskuq.table._terminology import Terminology
from taskuq.task._methods import TASKS, MeanIntensityMethod
from taskuq.training._networks import MethodConfig
from taskuq.training._weights import _mark, referenced_files


@dataclass(frozen=True)
class ImagingConfig:
    """Settings shared by runs and mask learning."""

    data: Data = field(default_factory=paper_data)  #: Images to measure.
    measure: AnySystem = field(default_factory=MaskConfig)  #: Measurement rounds.
    noise: NonNegative = 0.0  #: Standard deviation of the MRI measurement noise.
    #: Recovery method g.
    recover: Annotated[MethodConfig, RECOVERIES] = field(default_factory=ZeroFilled)
    task: Annotated[MethodConfig, TASKS] = field(default_factory=MeanIntensityMethod)  #: Task f.
    samples: Count = 32  #: Number of posterior samples per case and round.
    seed: Seed = 0  #: Seed of noise and samples.


@dataclass(frozen=True)
class RunConfig(ImagingConfig):
    """Settings of a run that computes a table."""

    subset: Literal["all", "training", "validation"] = "validation"  #: Subset of the data to use.
    #: Display names in the report; default: those of the imaging system.
    terminology: Terminology = field(default_factory=Terminology)
    adaptive: AdaptiveConfig | None = None  #: Adaptive choice of lines for each case.


@dataclass(frozen=True)
class _Run:
    pipeline: Pipeline
    images: Any
    config: RunConfig
    masks: Any

    @property
    def configuration(self) -> dict[str, Any]:
        values = to_toml_table(self.config, complete=True)
        # They decide no number, so that terms may change when a table is resumed.
        del values["terminology"]
        if self.config.adaptive is None:
            del values["adaptive"]
        temperature = getattr(self.pipeline.recover, "temperature", None)
        if temperature is not None:
            # Where none is given, the temperature is that of the weights.
            values["recover"]["temperature"] = temperature
        if isinstance(self.config.data, AtlasData) and self.config.data.coils:
            # The scanner service compares scans with it.
            plan, size = PatientDistribution(), self.config.data.size
            fov = [plan.field_of_view, plan.field_of_view, plan.spacing]
            values["geometry"] = {
                "coils": self.config.data.coils, "matrix": [size, size], "field_of_view": fov
            }  # fmt: skip
        if isinstance(self.config.measure, MaskConfig):
            values["masks"] = masks_to_text(self.masks)
        return values | {"fingerprints": self.fingerprints}

    @property
    def terminology(self) -> Terminology:
        chosen = self.config.terminology
        return self.config.measure.terminology if chosen == Terminology() else chosen

    @property
    def fingerprints(self) -> dict[str, str]:
        found = {"masks": mask_fingerprint(self.masks)}
        precision = precision_of(self.images)
        if precision is not None:
            found["images"] = precision
        for name in ("data", "recover", "task"):
            files = list(referenced_files(getattr(self.config, name)))
            if files:
                found[name] = _mark(files)
        if isinstance(self.pipeline.measure, AdaptiveLines):
            found["rule"] = self.pipeline.measure.fingerprint
        return {name: value[:16] for name, value in found.items()}


def read_run(path: Path) -> RunConfig:
    config: RunConfig = read_config(RunConfig, path)
    return config


def open_run(config: RunConfig, device: str | None = None) -> _Run:
    """Open the data and load the networks of a run."""
    chosen = pick_device(device)
    if config.subset == "all":
        images = open_all(config.data)
    else:
        images = open_data(config.data)[config.subset == "validation"]
    width = int(images[0].image.shape[-1])
    masks = config.measure.masks(width)
    measure = config.measure.scanner(width, noise=config.noise, seed=config.seed)
    if config.adaptive is not None:
        config.adaptive.require_samples(config.samples)
        measure = config.adaptive.rule(measure, masks, config.measure.accelerations)
    recover, task = config.recover.open(chosen), config.task.open(chosen)
    run = _Run(Pipeline(measure, recover, task, device=chosen), images, config, masks)
    _refuse_own_order(run)
    return run


def _refuse_own_order(run: _Run) -> None:
    path = getattr(run.config.measure, "path", None)
    if path is None:
        return
    made = mask_provenance(path)
    then = made.get("configuration", {})
    data, learned_on = to_toml_table(run.config, complete=True)["data"], then.get("data")
    if not isinstance(learned_on, dict) or learned_on.get("kind") != data["kind"]:
        return
    files, were = run.fingerprints.get("data"), then.get("fingerprints", {}).get("data")
    alike = files == were if files or were else learned_on.get("seed") == data["seed"]
    own = set(as_cases(run.images).case).intersection(made.get("cases", ()))
    if own and (alike or learned_on == data):
        text = f"{path} was learned on {len(own)} cases of this run (such as {min(own)}), so that "
        raise InputError(f"{text}nothing is guaranteed; run on other patients", code="data.leak")


def estimate_run_cost(run: _Run) -> str:
    """Run a few cases; return a sentence with estimated time, disk and memory of all cases."""
    cases = as_cases(run.images)
    config, pipeline = run.config, run.pipeline
    executor = CaseExecutor(
        pipeline.measure, Executor(pipeline.recover, pipeline.task, config.seed),
        config.measure.accelerations, config.samples, device=pipeline.device,
    )  # fmt: skip
    times, numbers = [], 0
    for index in np.linspace(0, len(cases) - 1, min(3, len(cases))).astype(int):
        start = time.perf_counter()
        (found,) = executor.run([executor.place(cases.image(int(index)))], [cases.case[index]])
        times.append(time.perf_counter() - start)
        if not isinstance(found, CaseOutputs):
            raise found
        numbers = found.outputs.size
    steady = times[1:] or times
    return (
        f"{len(cases)} cases will take about {duration(float(np.mean(steady)) * len(cases))}, "
        f"{4.2e-6 * numbers * len(cases):.1f} MB of disk and "
        f"{peak_host_bytes() / 1e9:.2f} GB of memory."
    )
