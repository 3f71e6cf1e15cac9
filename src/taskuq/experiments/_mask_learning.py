"""Nested orders of lines or views learned from posterior samples."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from taskuq._config import Count, Natural, Positive, check_ranges, to_toml_table
from taskuq._io import complete_record, content_fingerprint, fingerprint, read_json, write_json
from taskuq.conformal._diagnose import crps
from taskuq.data._readers import open_data
from taskuq.errors import InputError
from taskuq.experiments._run import ImagingConfig
from taskuq.interval import BoolArray, FloatArray
from taskuq.measure._adaptive import RIDGE, Aim, line_covariance, require_line_measure, stack_cases
from taskuq.measure._masks import line_counts, save_masks
from taskuq.pipeline._executor import CaseExecutor, Executor, pick_device
from taskuq.pipeline._local import BatchRunner, RunCases, as_cases, batch_size
from taskuq.pipeline._pipeline import provenance
from taskuq.pipeline._progress import Progress
from taskuq.protocols import LineMeasure, Recover, Task
from taskuq.training._weights import referenced_files

SCHEMA = "taskuq.order/1"


@dataclass(frozen=True)
class MaskLearningConfig(ImagingConfig):
    """Settings of taskuq masks --learn."""

    cases: Count = 200  #: Number of training cases, evenly spaced in the data set.
    #: Number of lines measured before any line is chosen; default: half of the first round.
    initial_lines: Count | None = None
    lines_per_step: Count = 4  #: Number of lines to choose before new samples are drawn.
    #: Number of random sets of lines that compete with each chosen set, by CRPS of the task.
    random_candidates: Natural = 0
    #: Reduce the variance of the image ("variance") or of the task, by "gradient" or by "outputs".
    objective: Aim = "gradient"
    regularisation: Positive = RIDGE  #: Noise variance relative to the variance of the samples.

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.samples < 2:
            text = f"samples must be at least 2, got {self.samples}"
            raise InputError(text, code="value.invalid")
        if self.random_candidates and self.objective == "variance":
            text = f"random_candidates must be 0 for 'variance', got {self.random_candidates}"
            raise InputError(text, code="value.invalid")


@dataclass(frozen=True)
class _LineOrder:
    begin: BoolArray
    lines: tuple[int, ...] = ()
    gains: tuple[float, ...] = ()

    def until(self, count: int) -> BoolArray:
        mask = self.begin.copy()
        mask[list(self.lines[: count - int(mask.sum())])] = True
        return mask

    @property
    def all(self) -> list[int]:
        return [*np.flatnonzero(self.begin).tolist(), *self.lines]


@dataclass(frozen=True)
class _MaskLearner:
    config: MaskLearningConfig
    system: LineMeasure
    recover: Recover
    task: Task
    cases: RunCases
    device: str

    @property
    def executor(self) -> Executor:
        return Executor(self.recover, self.task, self.config.seed)

    def next(self, order: _LineOrder, count: int, progress: Progress) -> _LineOrder:
        measured = order.until(int(order.begin.sum()) + len(order.lines))
        rate = self.system.n_lines / int(measured.sum())
        covariances = []
        for index, name in enumerate(self.cases.case):
            image = self.cases.image(index).to(self.device)
            scan = self.system.measure_lines(image, rate, measured)
            samples = self.executor.sample(scan, name, rate, self.config.samples)
            covariances.append(
                line_covariance(
                    self.system, scan, samples, self.executor.cached_task(), measured,
                    objective=self.config.objective, regularisation=self.config.regularisation,
                )
            )  # fmt: skip
            progress.step()
        expected = stack_cases(covariances)
        lines, gains = expected.greedy(count, measured)
        if self.config.random_candidates:
            lines = self._best(lines, measured, progress)
            left = [expected.left(lines[:k]) for k in range(count + 1)]
            gains = [before - after for before, after in pairwise(left)]
        return _LineOrder(order.begin, (*order.lines, *lines), (*order.gains, *gains))

    def _best(self, lines: list[int], measured: BoolArray, progress: Progress) -> list[int]:
        """Return the given lines, or an equally large random set with a lower CRPS."""
        rng = np.random.default_rng([self.config.seed, int(measured.sum())])
        candidates = [lines]
        for _ in range(self.config.random_candidates):
            more = self.system.add_random_lines(measured, len(lines), rng)
            candidates.append(rng.permutation(np.flatnonzero(more & ~measured)).tolist())
        numbers = np.arange(len(measured))
        masks = [measured | np.isin(numbers, some) for some in candidates]
        # Tasks have equal weight, whatever their units.
        each = np.stack([self._crps(mask, progress) for mask in masks])
        relative = each / np.maximum(each.max(axis=0), np.finfo(float).tiny)
        return candidates[int(relative.mean(axis=1).argmin())]

    def _crps(self, measured: BoolArray, progress: Progress) -> FloatArray:
        samples, rate = self.config.samples, self.system.n_lines / int(measured.sum())
        size = batch_size(
            self.recover, self.cases.image(0), samples=samples, cases=len(self.cases),
            device=self.device,
        )  # fmt: skip
        executor = CaseExecutor(
            lambda image, R: self.system.measure_lines(image, R, measured), self.executor,
            (rate,), samples, size, self.device,
        )  # fmt: skip
        results = []
        for _, case in BatchRunner(executor, self.cases).run(range(len(self.cases))):
            if isinstance(case, Exception):
                raise case
            results.append(case)
            progress.step()
        outputs = np.stack([case.outputs for case in results])
        targets = np.stack([case.targets for case in results])
        tasks = range(targets.shape[1])
        return np.array([crps(outputs[:, 0, :, t], targets[:, t]).mean() for t in tasks])


def open_learner(config: MaskLearningConfig, device: str | None = None) -> _MaskLearner:
    """Open data and networks; only training groups are used."""
    chosen = pick_device(device)
    images, _ = open_data(config.data)
    some = np.unique(np.linspace(0, len(images) - 1, min(config.cases, len(images))).astype(int))
    width = int(images[0].image.shape[-1])
    system = config.measure.scanner(width, noise=config.noise, seed=config.seed)
    items = [images[int(k)] for k in some]
    cases = as_cases(items, case=[str(item.case) for item in items])
    recover, task = config.recover.open(chosen), config.task.open(chosen)
    return _MaskLearner(config, require_line_measure(system), recover, task, cases, chosen)


def learn_masks(
    learner: _MaskLearner, output: Path, *, overwrite: bool = False, progress: bool = True
) -> tuple[BoolArray, _LineOrder]:
    """Learn an order of lines block by block, and write the masks of all rounds."""
    config = learner.config
    rates = config.measure.accelerations
    counts = line_counts(learner.system.n_lines, rates)
    first = max(1, counts[0] // 2) if config.initial_lines is None else config.initial_lines
    if first > counts[0]:
        text = f"initial_lines is {first}, and the first round has {counts[0]} lines; set fewer"
        raise InputError(text, code="value.invalid")
    made = provenance(_identity(config), config.seed)
    about = {"configuration": made["configuration"], "code": made["code"]}
    kept = output.with_name(f"{output.stem}.partial.json")
    order = _LineOrder(learner.system.initial_lines(first))
    if kept.exists() and not overwrite:
        order = _load_order(kept, about, order)
    blocks, there = list[int](), first + len(order.lines)
    for end in counts:
        while there < end:
            blocks.append(min(config.lines_per_step, end - there))
            there += blocks[-1]
    draws = 1 + (config.random_candidates + 1 if config.random_candidates else 0)
    total = len(learner.cases) * len(blocks) * draws
    with Progress(total, quiet=not progress, what="draws") as bar:
        for count in blocks:
            try:
                order = learner.next(order, count, bar)
            except (KeyboardInterrupt, SystemExit) as stopped:
                if n := len(order.lines):
                    stopped.add_note(f"stopped; {n} lines are stored in {kept}; run it again")
                raise
            record = {"lines": list(order.lines), "gains": list(order.gains), **about}
            write_json(kept, {"schema": SCHEMA, **record})
    masks = np.stack([order.until(count) for count in counts])
    made["cases"] = list(learner.cases.case)
    save_masks(output, masks, rates, order=order.all, gains=order.gains, provenance=made)
    kept.unlink(missing_ok=True)
    return masks, order


def _identity(config: MaskLearningConfig) -> dict[str, Any]:
    files = {
        name: [content_fingerprint(path) for path in referenced_files(getattr(config, name))]
        for name in ("data", "recover", "task")
    }
    digests = {name: fingerprint(each)[:16] for name, each in files.items() if each}
    return {**to_toml_table(config, complete=True), "fingerprints": digests}


def _load_order(path: Path, about: dict[str, Any], order: _LineOrder) -> _LineOrder:
    record = read_json(path, SCHEMA, remedy="start again with --overwrite")
    if fingerprint({name: record.get(name) for name in about}) != fingerprint(about):
        text = f"{path} was started with other settings, data, networks or code; use --overwrite"
        raise InputError(text, code="resume.mismatch")
    with complete_record(path, "order of lines", "use --overwrite"):
        lines, gains = tuple(map(int, record["lines"])), tuple(map(float, record["gains"]))
    return _LineOrder(order.begin, lines, gains)
