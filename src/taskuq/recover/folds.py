"""Honest estimates: each training patient is estimated by a network that has not seen it.

A network errs less on the patients that it learned from than on others. A sampler that learned from
such errors would draw too little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import default_collate

from taskuq.data.dataset import Subset
from taskuq.errors import InputError
from taskuq.measure.coils import rss
from taskuq.measure.fourier import ifft2c
from taskuq.recover.cases import MeasuredCases
from taskuq.recover.estimate import Estimate, estimate
from taskuq.recover.folded_varnet import quick_varnet
from taskuq.recover.recorded import Recorded
from taskuq.recover.scans import AnyScan, measured
from taskuq.recover.varnet import VarNet, VarNetConfig
from taskuq.recover.varnet_training import PAPER, VarNetTraining
from taskuq.recover.views import CoilViews
from taskuq.settings import read_toml, to_table
from taskuq.training.config import TrainingConfig
from taskuq.training.feed import Stock
from taskuq.training.fit import Machine, train
from taskuq.training.recipe import Batch
from taskuq.weights import locate

# Estimates of a network are made for a multiple of this many cases; sizes of batches, in cases and
# coils, that are recorded for each.
FILLED, SHAPES = 4, 16


@dataclass(frozen=True)
class Estimating:
    """Whose estimates a sampler draws around, the table ``[estimate]``.

    Arguments:
        weights: A trained variational network: a file, or a name of the package's own. Without it
            one is trained first, on all training patients, in the folder ``estimate``.
        folds: Into how many parts training patients are split. Each part is estimated by a network
            that was trained first, on the patients of the other parts, in a folder of its own. 0
            is for patients that ``weights`` has not seen.
        folder: The folder of a sampler's training whose networks, of all patients and of each fold,
            are taken as they are; none is trained. ``folds`` and ``training.seed`` have to be those
            of that training, and so have data and masks.
        network: The size of networks that are trained first.
        training: How they are trained.
        start: Weights that they start from: a file, or a name of the package's own.
        data_range: The range of their structural similarity.

    Example:
        >>> Estimating(folds=1)
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: estimate.folds is 1; give 0, or at least 2
    """

    weights: Path | None = None
    folds: int = 0
    folder: Path | None = None
    network: VarNetConfig = field(default_factory=VarNetConfig)
    training: TrainingConfig = PAPER
    start: Path | None = None
    data_range: Literal["volume", "slice"] = "volume"

    def __post_init__(self) -> None:
        if self.folds < 0 or self.folds == 1:
            raise InputError(f"estimate.folds is {self.folds}; give 0, or at least 2")

    def trained(
        self,
        cases: tuple[MeasuredCases, MeasuredCases],
        settings: VarNetTraining,
        folder: Path,
        *,
        machine: Machine,
        fresh: bool,
        steps: int | None,
    ) -> list[Path]:
        """The network of all patients, then that of each fold; those that are missing are trained.

        Arguments:
            cases: To train on, and to validate by; the second are seen by no network.
            settings: How images are moved and scanned.
            folder: Where networks go.
            machine: On what to train.
            fresh: Whether to begin again.
            steps: After how many steps a trial of each stops.
        """
        settings = replace(
            settings,
            network=self.network,
            training=self.training,
            data_range=self.data_range,
            start=self.start,
        )

        def trained(name: str, how: VarNetTraining, part: MeasuredCases) -> Path:
            both = (part, cases[1])
            where = folder / name
            return train(how, where, machine=machine, fresh=fresh, cases=both, steps=steps)

        if self.folder is not None:
            return self._there(self.folder, settings)
        of_all = self.weights and locate(self.weights)
        paths = [of_all or trained("estimate", settings, cases[0])]
        if self.folds == 0:
            return paths
        parts = fold_of(cases[0].source.groups, self.folds, seed=self.training.seed)
        # As many steps as the network of all patients takes: its errors are to be like theirs.
        epochs = round(self.training.epochs * self.folds / (self.folds - 1))
        longer = replace(settings, training=replace(self.training, epochs=epochs))
        for part in range(self.folds):
            others = replace(cases[0], source=Subset.where(cases[0].source, parts != part))
            paths.append(trained(f"fold-{part + 1}-of-{self.folds}", longer, others))
        return paths

    def _there(self, folder: Path, settings: VarNetTraining) -> list[Path]:
        """The networks of a training that has come as far as its sampler.

        A patient would be estimated by a network that has seen it, were patients, folds or their
        order others there.
        """
        written = folder / "config.toml"
        if not written.exists():
            raise InputError(
                f"estimate.folder is {folder}, where no training has come as far as its sampler; "
                "train that first, or leave estimate.folder out"
            )
        there, here = read_toml(written), to_table(settings)
        said = there["estimate"]
        both = {
            "folds": (said["folds"], self.folds),
            "training.seed": (said["training"]["seed"], self.training.seed),
            "data": (there["data"], here["data"]),
            "measure": (there["measure"], here["measure"]),
        }
        changed = [f"{key}: {a} there, {b} here" for key, (a, b) in both.items() if a != b]
        if changed or "trial" in there:
            why = ", ".join(changed) or "a trial"
            raise InputError(
                f"estimate.folder {folder} holds another training ({why}); name one of the same "
                "patients, masks and folds, or leave estimate.folder out"
            )
        of_all = self.weights or said.get("weights") or estimate_in(folder)
        folds = [f"fold-{k + 1}-of-{self.folds}" for k in range(self.folds)]
        return [locate(of_all), *(folder / name / "best.safetensors" for name in folds)]


def estimate_in(folder: Path) -> Path:
    """Where a sampler's training leaves the variational network of all patients.

    Arguments:
        folder: That of the training.

    Example:
        >>> estimate_in(Path("runs/sampler")).as_posix()
        'runs/sampler/estimate/best.safetensors'
    """
    return folder / "estimate" / "best.safetensors"


def fold_of(groups: NDArray[np.str_], folds: int, *, seed: int) -> NDArray[np.int64]:
    """In which fold each case is, (case,); a group is never split.

    Arguments:
        groups: The group of each case.
        folds: How many folds; 0 puts all cases into one.
        seed: Where the order of groups comes from.

    Example:
        >>> fold_of(np.array(["a", "a", "b", "c"]), 2, seed=0)
        array([1, 1, 0, 0])
    """
    names, of_case = np.unique(groups, return_inverse=True)
    if len(names) < folds:
        raise InputError(f"{len(names)} groups are too few for {folds} folds; give more, or fewer")
    order = np.random.default_rng(seed).permutation(len(names))
    place = np.empty(len(names), dtype=np.int64)
    place[order] = np.arange(len(names)) % max(folds, 1)
    return np.asarray(place[of_case])


@dataclass(frozen=True, eq=False)
class FoldedCases:
    """Measured cases that know by which network they are estimated, by (epoch, index).

    Arguments:
        cases: The cases, with their masks.
        networks: The network of each case, (case,).
    """

    cases: MeasuredCases
    networks: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, place: tuple[int, int]) -> dict[str, Any]:
        return {**self.cases[place], "network": int(self.networks[place[1]])}

    def stock(self, device: torch.device, most: float) -> Stock | None:
        """All cases on a device; the numbers of their networks stay here."""
        cases = self.cases.stock(device, most)
        return cases and replace(cases, known={"network": self.networks})


def collate(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Make a batch; the number of each case's network stays a number, known without the GPU.

    Arguments:
        cases: What :class:`FoldedCases` gives.
    """
    rest = [{key: value for key, value in case.items() if key != "network"} for case in cases]
    return {**default_collate(rest), "network": tuple(case["network"] for case in cases)}


class HonestEstimates:
    """Estimates of a batch, each case by its own network.

    Arguments:
        networks: The networks; they are not trained.
        views: How images are moved before they are measured, in training alone.
        scans: How they are scanned, in training and in validation.
        replayed: Whether to record estimates on the GPU and replay them.
    """

    def __init__(
        self,
        networks: Sequence[VarNet],
        views: CoilViews | None,
        scans: AnyScan | None = None,
        *,
        replayed: bool = False,
    ) -> None:
        self.networks = [net.eval().requires_grad_(False) for net in networks]
        self.views, self.scans, self.replayed = views, scans, replayed
        self._quick: dict[int, Callable[[Tensor, Tensor], Estimate]] = {}

    def __call__(self, batch: Batch, generator: torch.Generator) -> tuple[Estimate, Tensor]:
        """Estimated cases, and their true images (case, height, width)."""
        found, images = self._estimated(batch, generator)
        return found, rss(images)

    def residuals(self, batch: Batch, generator: torch.Generator) -> tuple[Estimate, Tensor]:
        """Estimated cases, and their errors (case, 2, height, width)."""
        found, images = self._estimated(batch, generator)
        return found, found.error(images)

    def _estimated(self, batch: Batch, generator: torch.Generator) -> tuple[Estimate, Tensor]:
        """Estimated cases, and the coil images that were measured."""
        device = batch["image"].device
        views = self.views if "progress" in batch else None
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            seen = measured(batch, generator, views=views, scans=self.scans)
            zero_filled, mask = ifft2c(seen["kspace"]), seen["mask"]
            of_case = np.array(batch["network"])
            numbers = np.unique(of_case)
            if len(numbers) == 1:
                return self._by(numbers[0], device)(zero_filled, mask), seen["image"]
            order, parts = [], []
            for number in numbers:
                rows = np.flatnonzero(of_case == number)
                # Some rows twice: few sizes are recorded, and what is estimated twice is left out.
                filled = np.resize(rows, len(rows) + -len(rows) % FILLED)
                here = _without_waiting(filled, device)
                part = self._by(number, device)(zero_filled[here], mask[here])
                parts.append([values[: len(rows)] for values in part])
                order.append(rows)
            # Back to the order of the batch.
            back = _without_waiting(np.argsort(np.concatenate(order)), device)
            found = Estimate(*(torch.cat(values)[back] for values in zip(*parts, strict=True)))
            return found, seen["image"]

    def _by(self, number: int, device: torch.device) -> Callable[[Tensor, Tensor], Estimate]:
        """What estimates by one of the networks."""
        if number not in self._quick:
            quick = partial(estimate, quick_varnet(self.networks[number].to(device)))
            self._quick[number] = Recorded(quick, most=SHAPES) if self.replayed else quick
        return self._quick[number]


def _without_waiting(numbers: NDArray[np.int64], device: torch.device) -> Tensor:
    """The numbers on a device; a GPU goes on with what it was told before."""
    there = torch.as_tensor(numbers)
    if device.type != "cuda":
        return there.to(device)
    return there.pin_memory().to(device, non_blocking=True)
