"""Draw from several samplers for the same cases, and keep what task networks and pixels say.

For each sampler a folder with one table of task outputs for each task network, ``pixels.npz`` with
errors, spreads and ranks of each case and round, and ``cost.json``. Images themselves are not kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

from taskuq.data.dataset import Dataset
from taskuq.data.readers import Data, open_all, open_data, paper_data
from taskuq.errors import InputError, first_line
from taskuq.files import read_json, whole_file, write_json
from taskuq.measure.coils import rss
from taskuq.measure.masks import MaskConfig
from taskuq.measure.mri import MultiCoilMRI
from taskuq.outputs import TaskOutputs
from taskuq.pipeline.device import pick_device
from taskuq.pipeline.provenance import provenance
from taskuq.pipeline.removal import remove_table
from taskuq.protocols import BatchRecover, NamedTask, PosteriorRecover, RangedTask
from taskuq.recover.cases import as_coils
from taskuq.recover.methods import RECOVERIES
from taskuq.recover.scan import Scan
from taskuq.seeds import case_seed
from taskuq.settings import to_table
from taskuq.task.methods import TASKS
from taskuq.training.networks import Method

COST = "taskuq.sampler-cost/1"
# Ranks are counted of means over so many rows and columns.
BLOCKS = (4, 16)
# Blocks count whose mean over truth and samples is above this share of the largest.
FOREGROUND = 0.05


@dataclass(frozen=True)
class SamplersConfig:
    """Which samplers are judged, by which task networks, on what.

    Arguments:
        data: Where images come from; nobody among them may have been trained on.
        part: Which of them: 'all', or the 'training' or 'validation' groups.
        measure: The masks of the rounds.
        recover: Tables ``[recover.NAME]``, each as ``[recover]`` of a run.
        task: Tables ``[task.NAME]``, each as ``[task]`` of a run.
        samples: Posterior samples per case and round.
        seed: The seed of the samples.
        batch: How many cases are drawn at once.
    """

    data: Data = field(default_factory=paper_data)
    part: Literal["all", "training", "validation"] = "all"
    measure: MaskConfig = field(default_factory=MaskConfig)
    recover: dict[str, Annotated[Method, RECOVERIES]] = field(default_factory=dict)
    task: dict[str, Annotated[Method, TASKS]] = field(default_factory=dict)
    samples: int = 32
    seed: int = 0
    batch: int = 16

    def __post_init__(self) -> None:
        if self.samples < 2 or self.batch < 1:
            raise InputError(
                f"got {self.samples} samples and batches of {self.batch}; judge samplers by at "
                "least 2 samples, in batches of at least 1"
            )


def draw(
    config: SamplersConfig,
    folder: Path | str,
    *,
    images: Dataset | None = None,
    device: str | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Draw from every sampler for every case and round, and store what is to be judged.

    A case has the seeds that a run of the same seed gives it. A sampler that fails is told of,
    its reason stored, and the others go on.

    Arguments:
        config: What to draw.
        folder: Receives a folder for each sampler; what it holds of the same names is replaced, and
            samples of another seed are left alone and refused.
        images: The cases of ``config.data``, where they are open already.
        device: Where to draw; the best there is where None.
        tell: Called with a line of progress now and then.
    """
    if not config.recover or not config.task:
        raise InputError("no sampler or no task is named; add tables [recover.NAME], [task.NAME]")
    for name in config.recover:
        _refuse_other_seed(Path(folder) / name, config.seed)
    place = torch.device(pick_device(device))
    images = _images(config) if images is None else images
    rates = config.measure.accelerations
    measure = MultiCoilMRI(config.measure.masks(int(images[0].image.shape[-1])), rates)
    tasks = {name: method.open(place) for name, method in config.task.items()}
    drawing = [
        _Drawing(name, method.open(place), tasks, config, len(rates))
        for name, method in config.recover.items()
    ]
    about: dict[str, list[Any]] = {"case": [], "group": [], "label": []}
    targets: dict[str, list[Tensor]] = {name: [] for name in tasks}
    peaks = []
    for items, coils in _batches(images, config.batch, place):
        for key, values in about.items():
            values += [getattr(item, key) for item in items]
        truth = rss(coils)
        peaks.append(truth[: len(items)].amax((1, 2)))
        for name, task in tasks.items():
            targets[name].append(_read(task, truth, name)[: len(items)])
        for k, rate in enumerate(rates):
            scans = [measure(image, rate) for image in coils]
            names = [item.case for item in items] + [items[-1].case] * (len(coils) - len(items))
            seeds = [case_seed(config.seed, name, rate) for name in names]
            for one in drawing:
                one.draw(k, scans, seeds, truth, len(items))
        tell(f"{len(about['case'])} of {len(images)} cases")
    known = {name: torch.cat(parts).double().cpu().numpy() for name, parts in targets.items()}
    return [one.store(Path(folder), about, known, torch.cat(peaks), tell) for one in drawing]


def pixel_summary(drawn: Tensor, truth: Tensor) -> dict[str, Tensor]:
    """Return what is kept of samples: mean squares, and ranks of the truth among them.

    Which blocks count depends on truth and samples alike, so that a perfect sampler has flat
    ranks.

    Arguments:
        drawn: Samples (case, sample, height, width), at least two.
        truth: True images (case, height, width).

    Returns:
        ``error`` of the samples' mean, ``error_of_one`` of the first sample and ``variance`` of
        the samples, each averaged over pixels, (case,); ``ranks_4`` and ``ranks_16``, how many
        blocks of so many rows and columns have 0, 1, ..., p samples below the truth, (case, p + 1).

    Example:
        >>> truth, drawn = torch.ones(1, 16, 16), torch.ones(1, 2, 16, 16)
        >>> drawn[:, 1] = 3  # the mean is 2
        >>> found = pixel_summary(drawn, truth - 0.5)
        >>> [found[name].item() for name in ("error", "error_of_one", "variance")]
        [2.25, 0.25, 2.0]
        >>> found["ranks_4"].tolist()  # all 16 blocks are below both samples
        [[16, 0, 0]]
    """
    found = {
        "error": (drawn.mean(1) - truth).square().mean((1, 2)),
        "error_of_one": (drawn[:, 0] - truth).square().mean((1, 2)),
        "variance": drawn.var(1).mean((1, 2)),
    }
    everyone = torch.cat([truth[:, None], drawn], dim=1)
    for block in BLOCKS:
        pooled = F.avg_pool2d(everyone, block)
        middle = pooled.mean(1)
        inside = middle > FOREGROUND * middle.amax((1, 2), keepdim=True)
        rank = (pooled[:, 1:] < pooled[:, :1]).sum(1)
        counts = F.one_hot(rank, everyone.shape[1]) * inside[..., None]
        found[f"ranks_{block}"] = counts.sum((1, 2))
    return found


class _Drawing:
    """One sampler, and what was read off its samples so far."""

    def __init__(
        self, name: str, recover: Any, tasks: dict[str, Any], config: SamplersConfig, rounds: int
    ) -> None:
        self.name, self.recover, self.tasks, self.config = name, recover, tasks, config
        self.outputs: list[dict[str, list[Tensor]]] = [{} for _ in range(rounds)]
        self.pixels: list[dict[str, list[Tensor]]] = [{} for _ in range(rounds)]
        self.seconds: list[list[float]] = [[] for _ in range(rounds)]
        self.rejected = [0] * rounds
        self.device = ""
        self.failed = ""

    @torch.no_grad()
    def draw(self, k: int, scans: list[Any], seeds: list[int], truth: Tensor, count: int) -> None:
        """Draw for a batch in one round, and keep the first ``count`` cases."""
        if self.failed:
            return
        before = self._rejected()
        begin = _now(truth)
        try:
            drawn = self._samples(scans, seeds)
        except InputError as error:
            self.failed = first_line(error)
            return
        self.seconds[k].append((_now(truth) - begin) / len(scans))
        self.rejected[k] += self._rejected() - before
        if tuple(drawn.shape[:2]) != (len(scans), self.config.samples):
            self.failed = f"it gives {drawn.shape[1]} samples where {self.config.samples} are due"
            return
        drawn = drawn.to(truth.device, torch.float32)
        self.device = torch.cuda.get_device_name() if truth.is_cuda else str(truth.device)
        for name, task in self.tasks.items():
            read = _read(task, drawn.flatten(0, 1), name).view(len(scans), -1)
            self.outputs[k].setdefault(name, []).append(read[:count])
        for name, value in pixel_summary(drawn, truth).items():
            self.pixels[k].setdefault(name, []).append(value[:count])

    def _samples(self, scans: list[Scan], seeds: list[int]) -> Tensor:
        p = self.config.samples
        if isinstance(self.recover, BatchRecover):
            return torch.as_tensor(self.recover.batch(scans, samples=p, seeds=seeds))
        drawn = [
            torch.as_tensor(self.recover(scan, samples=p, seed=seed))
            for scan, seed in zip(scans, seeds, strict=True)
        ]
        return torch.stack(drawn)

    def _rejected(self) -> int:
        return self.recover.rejected if isinstance(self.recover, PosteriorRecover) else 0

    def store(
        self,
        folder: Path,
        about: dict[str, list[Any]],
        targets: dict[str, Any],
        peak: Tensor,
        tell: Callable[[str], None],
    ) -> Path:
        """Write tables, pixels and cost."""
        target = folder / self.name
        target.mkdir(parents=True, exist_ok=True)
        rates = self.config.measure.accelerations
        method = to_table(self.config)["recover"][self.name]
        if self.failed:
            tell(f"{self.name} was given up: {self.failed}")
        else:
            for name, task in self.tasks.items():
                outputs = torch.stack([torch.cat(of[name]) for of in self.outputs])
                remove_table(target / name)
                TaskOutputs(
                    outputs.cpu().numpy(),
                    targets[name],
                    rates,
                    task_names=task.names if isinstance(task, NamedTask) else None,
                    task_range=task.range if isinstance(task, RangedTask) else None,
                    provenance=provenance(
                        to_table(self.config) | {"sampler": self.name}, self.config.seed
                    ),
                    case=about["case"],
                    group=about["group"],
                    label=about["label"],
                ).save(target / name)
            pixels: dict[str, Any] = {
                name: torch.stack([torch.cat(of[name]) for of in self.pixels]).cpu().numpy()
                for name in self.pixels[0]
            }
            with whole_file(target / "pixels.npz") as partial, partial.open("wb") as file:
                np.savez_compressed(file, peak=peak.cpu().numpy(), **pixels)
            if cooled := getattr(self.recover, "cooled", 0):
                tell(f"{self.name}: {cooled} samples were drawn at a lower temperature")
        # The first batch of a round pays for what is loaded, compiled and recorded once.
        steady = [[*of[1:]] or of for of in self.seconds]
        cost = {
            "schema": COST,
            "method": method,
            "samples": self.config.samples,
            "seed": self.config.seed,
            "accelerations": list(rates),
            "milliseconds": [1e3 * float(np.median(of)) if of else None for of in steady],
            "rejected": self.rejected,
            "cooled": getattr(self.recover, "cooled", 0),
            "batch": self.config.batch,
            "device": self.device,
            "failed": self.failed,
        }
        write_json(target / "cost.json", cost)
        return target


def _refuse_other_seed(folder: Path, seed: int) -> None:
    """Samples of another seed are no older version of these."""
    cost = folder / "cost.json"
    there = read_json(cost, COST).get("seed", seed) if cost.exists() else seed
    if there != seed:
        raise InputError(
            f"{folder} holds what was drawn with seed {there}; draw with seed {seed} into another "
            "folder"
        )


def _images(config: SamplersConfig) -> Dataset:
    if config.part == "all":
        return open_all(config.data)
    training, validation = open_data(config.data)
    return training if config.part == "training" else validation


def _batches(
    images: Dataset, most: int, device: torch.device
) -> Iterator[tuple[list[Any], Tensor]]:
    """Cases, and coil images of equally many, the last one again where cases run out."""
    count = -(-len(images) // most)
    size = -(-len(images) // count)
    for start in range(0, len(images), size):
        items = [images[k] for k in range(start, min(start + size, len(images)))]
        coils = [as_coils(item.image) for item in items]
        coils += coils[-1:] * (size - len(coils))
        yield items, torch.stack(coils).to(device)


@torch.no_grad()
def _read(task: Any, images: Tensor, name: str) -> Tensor:
    shortened = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False  # as on a CPU: no shortened products
    try:
        found: Tensor = task(images)
    finally:
        torch.backends.cudnn.allow_tf32 = shortened
    if found.ndim != 1:
        raise InputError(
            f"task {name} gives numbers of shape {tuple(found.shape)}; judge samplers by tasks of "
            "one number each"
        )
    return found.float()


def _now(like: Tensor) -> float:
    if like.is_cuda:
        torch.cuda.synchronize(like.device)
    return time.perf_counter()
