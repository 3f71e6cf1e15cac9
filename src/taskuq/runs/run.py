"""A run from a configuration file: which data, measurement, recovery and task fill the table."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np

from taskuq.data.dataset import precision_of
from taskuq.data.readers import open_all, open_data
from taskuq.errors import InputError
from taskuq.fingerprints import content_fingerprint, fingerprint
from taskuq.measure.adaptive import AdaptiveLines, Choosing
from taskuq.measure.mask_files import how_made, mask_mark
from taskuq.pipeline import Pipeline
from taskuq.pipeline.cases import as_cases
from taskuq.pipeline.chain import CaseOutputs
from taskuq.pipeline.device import peak_host_bytes, pick_device
from taskuq.pipeline.progress import duration
from taskuq.protocols import PosteriorRecover
from taskuq.runs.imaging import Imaging
from taskuq.settings import read_settings, read_toml, to_table
from taskuq.weights import locate
from taskuq.words import Words


@dataclass(frozen=True)
class RunConfig(Imaging):
    """Everything that decides a table, beside what every run is made of.

    Arguments:
        part: Which images: 'all', or the 'training' or 'validation' groups.
        words: What things are called on a page; as the imaging system has it by default.
        choose: How the lines of later rounds are chosen for each case; by the masks of all where
            it says nothing.
    """

    part: Literal["all", "training", "validation"] = "validation"
    words: Words = field(default_factory=Words)
    choose: Choosing | None = None


@dataclass(frozen=True)
class Run:
    """A pipeline with its images, ready to start.

    Arguments:
        pipeline: Measurement, recovery and task.
        images: The data set.
        config: What they were made from.
        masks: The lines or views that each round measures, (round, line).
    """

    pipeline: Pipeline
    images: Any
    config: RunConfig
    masks: Any

    @property
    def configuration(self) -> dict[str, Any]:
        """The configuration as values that JSON can hold."""
        values = to_table(self.config, complete=True)
        # They decide no number, so that another word may be found for a table that goes on.
        del values["words"]
        if self.config.choose is None:
            del values["choose"]
        if isinstance(self.pipeline.recover, PosteriorRecover):
            # Where none is given, the weights say at what temperature they are drawn from.
            values["recover"]["temperature"] = self.pipeline.recover.temperature
        return values | {"fingerprints": self.fingerprints}

    @property
    def words(self) -> Words:
        """What things are called: as the file says, or else as the imaging system does."""
        return self.config.measure.words if self.config.words == Words() else self.config.words

    @property
    def fingerprints(self) -> dict[str, str]:
        """What lies behind the names in the configuration: files of data and weights, and masks.

        Images that a store may have rounded say how exact they are.
        """
        found = {"masks": mask_mark(self.masks)}
        precision = precision_of(self.images)
        if precision is not None:
            found["images"] = precision
        for name in ("data", "recover", "task"):
            files = list(files_of(getattr(self.config, name)))
            if files:
                found[name] = _mark(files)
        if isinstance(self.pipeline.measure, AdaptiveLines):
            found["rule"] = self.pipeline.measure.fingerprint
        return {name: value[:16] for name, value in found.items()}


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
    chosen = pick_device(device)
    images = _images(config)
    width = int(images[0].image.shape[-1])
    masks = config.measure.masks(width)
    measure = config.measure.scanner(width, noise=config.noise, seed=config.seed)
    if config.choose is not None:
        config.choose.require_samples(config.samples)
        measure = config.choose.rule(measure, masks, config.measure.accelerations)
    recover, task = config.recover.open(chosen), config.task.open(chosen)
    run = Run(Pipeline(measure, recover, task, device=chosen), images, config, masks)
    for name, part in (("recover", recover), ("task", task)):
        # A scan under a policy says by this whether it has the networks it was calibrated with.
        object.__setattr__(part, "fingerprint", run.fingerprints.get(name, ""))
    _refuse_own_order(run)
    return run


def _refuse_own_order(run: Run) -> None:
    """Refuse an order of lines that was learned on cases of this run.

    A promise is about cases that nothing was learned from. Data are the same where their files
    are; those that are made up, where their seed is.
    """
    path = getattr(run.config.measure, "file", None)
    made = {} if path is None else how_made(path)
    then = made.get("configuration", {})
    data, learned_on = to_table(run.config, complete=True)["data"], then.get("data")
    if not isinstance(learned_on, dict) or learned_on.get("kind") != data["kind"]:
        return
    files, were = run.fingerprints.get("data"), then.get("fingerprints", {}).get("data")
    alike = files == were if files or were else learned_on.get("seed") == data["seed"]
    own = set(as_cases(run.images).case).intersection(made.get("cases", ()))
    if own and (alike or learned_on == data):
        raise InputError(
            f"{path} was learned on {len(own)} cases of this run (such as {min(own)}), so that "
            "nothing can be promised from its table; run on patients whom it has not seen"
        )


def files_of(settings: Any) -> Iterator[Path]:
    """Yield the files and folders that settings name, and what the cards of networks name in turn.

    Arguments:
        settings: A dataclass whose fields may be paths.
    """
    for field_ in fields(settings):
        value = getattr(settings, field_.name)
        if isinstance(value, dict):
            # Tables by names of the user's choice.
            for part in value.values():
                yield from files_of(part)
            continue
        for named in value if isinstance(value, tuple) else (value,):
            if field_.name != "cache" and isinstance(named, Path):
                yield from _files_behind(named)


def mark_of(weights: Path | str) -> str:
    """Return what a run calls a network with these weights in its fingerprints.

    Arguments:
        weights: A .safetensors file, or a name of the package's own networks.

    Example:
        >>> len(mark_of("varnet-atlas"))
        16
    """
    return _mark(_files_behind(Path(weights)))


def _mark(files: Iterable[Path]) -> str:
    return fingerprint([content_fingerprint(path) for path in files])[:16]


def _files_behind(named: Path) -> Iterator[Path]:
    """The file or folder that a path names, or those of a network."""
    path = named if named.exists() or named.suffix else locate(named)
    if path.suffix == ".safetensors":
        yield from _network_files(path)
    elif path.exists():
        yield path


def _network_files(path: Path) -> Iterator[Path]:
    """Weights and the card beside them; and the network around whose estimates they draw."""
    card = path.with_suffix(".toml")
    yield from (path, card)
    named = read_toml(card).get("estimate")
    if isinstance(named, dict):
        # A sampler's table names it, or it lies where it was trained.
        named = named.get("weights", "estimate/best.safetensors")
    if isinstance(named, str):
        beside = path.parent / named
        other = beside if beside.exists() else locate(named)
        if other.exists() and other != path:
            yield from (other, other.with_suffix(".toml"))


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
    cases = as_cases(run.images)
    chain = run.pipeline.chain(
        run.config.measure.accelerations, samples=run.config.samples, seed=run.config.seed
    )
    times, numbers = [], 0
    for index in np.linspace(0, len(cases) - 1, min(probes, len(cases))).astype(int):
        start = time.perf_counter()
        (found,) = chain.scan([chain.place(cases.image(int(index)))], [cases.case[index]])
        times.append(time.perf_counter() - start)
        if not isinstance(found, CaseOutputs):
            raise found
        numbers = found.outputs.size
    # The first case pays for what is loaded and compiled once.
    steady = times[1:] or times
    return Cost(
        len(cases),
        float(np.mean(steady)) * len(cases),
        4.2 * numbers * len(cases),
        peak_host_bytes(),
    )


def _images(config: RunConfig) -> Any:
    if config.part == "all":
        return open_all(config.data)
    training, validation = open_data(config.data)
    return training if config.part == "training" else validation
