"""Estimates to sample around; cross-fitting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import default_collate

from taskuq._config import read_toml, to_toml_table
from taskuq.data._dataset import Subset
from taskuq.errors import InputError
from taskuq.measure._coils import rss, to_channels
from taskuq.measure._fourier import (
    broadcast_mask,
    central_lines,
    data_consistency_1d,
    fft2c,
    ifft2c,
    project_measured,
)
from taskuq.pipeline._progress import Progress
from taskuq.recover._cases import CoilAugmentation, MaskedDataset, ScanRandomisation, simulate_scan
from taskuq.recover._compiled import CudaGraph, FusedVarNet, inference_varnet
from taskuq.recover._varnet import VarNet, VarNetConfig
from taskuq.recover._varnet_training import PAPER, VarNetTraining
from taskuq.recover.flow._sample import case_scale
from taskuq.training._config import Batch, TrainingConfig
from taskuq.training._determinism import DeviceDataset
from taskuq.training._fit import TrainerOptions, train
from taskuq.training._weights import locate

# The phase of an image is smooth: lines up to about this share of the width show it.
PHASE_LINES = 1 / 16
# How often the measured lines are put back into the network's image before errors are drawn.
ROUNDS = 3
# The most that latents are widened, at R = 2 and below.
WIDEST = math.sqrt(2)


class VarNetEstimate(NamedTuple):
    """Estimate of a batch with its condition channels."""

    image: Tensor
    first: Tensor
    maps: Tensor
    measured: Tensor
    mask: Tensor
    phase: Tensor
    scale: Tensor

    def inputs(self) -> Tensor:
        zero_filled = _combine(self.maps, self.measured)
        images = torch.stack([self.image, self.first, zero_filled], dim=1)
        return to_channels(images * self._turn()[:, None])

    def error(self, truth: Tensor) -> Tensor:
        """The error of the combined image, (case, 2, height, width)."""
        error = _combine(self.maps, truth) - self.image
        return to_channels((error * self._turn())[:, None])

    def coil_images(self, case: int, errors: Tensor) -> Tensor:
        """Return a case's coil images (sample, coil, height, width) with these errors, consistent."""
        images = self.image[case] + errors * (self.phase[case] * self.scale[case])
        return data_consistency_1d(self.maps[case] * images, self.measured[case], self.mask[case])

    def share(self) -> Tensor:
        """The share of lines that was measured, (case,)."""
        return self.mask.to(self.scale.dtype).mean(1)

    def images(self, residuals: Tensor) -> Tensor:
        """Magnitude images with these errors, consistent, (case, sample, height, width)."""
        return rss(self.coils(residuals))

    def coils(self, residuals: Tensor) -> Tensor:
        """Coil images with these errors, consistent, (case, sample, coil, height, width)."""
        turn = (self.phase * self.scale.view(-1, 1, 1))[:, None]
        images = self.image[:, None] + torch.complex(*residuals.unbind(2)) * turn
        return data_consistency_1d(
            self.maps[:, None] * images[:, :, None],
            self.measured[:, None],
            self.mask[:, None, None, None],
        )

    def widening(self, case: int) -> float:
        r"""By how much a case's latents are widened, :math:`\min((1 - m)^{-1/2}, \sqrt 2)`."""
        unmeasured = 1 - self.mask[case].float().mean().item()
        return min(unmeasured**-0.5, WIDEST) if unmeasured else 1.0

    def _turn(self) -> Tensor:
        return self.phase.conj() / self.scale.view(-1, 1, 1)


def _combine(maps: Tensor, images: Tensor) -> Tensor:
    return (maps.conj() * images).sum(1)


@torch.no_grad()
def varnet_estimate(net: VarNet | FusedVarNet, zero_filled: Tensor, mask: Tensor) -> VarNetEstimate:
    """Run a VarNet and enforce data consistency."""
    lines = central_lines(mask)
    kspace = fft2c(zero_filled)
    kspace = torch.where(broadcast_mask(mask, kspace), kspace, 0)
    zero_filled = ifft2c(kspace)  # nothing but what was measured, for network and samples alike
    maps, coils = net.maps_and_images(kspace, mask, lines)
    first = image = _combine(maps, coils)
    for _ in range(ROUNDS):
        coils = data_consistency_1d(maps * image[:, None], zero_filled, mask[:, None, None])
        image = _combine(maps, coils)
    return VarNetEstimate(
        image=image,
        first=first,
        maps=maps,
        measured=zero_filled,
        mask=mask,
        phase=_smooth_phase(image),
        scale=case_scale(zero_filled),
    )


def _smooth_phase(image: Tensor) -> Tensor:
    kspace = fft2c(image)
    for axis in (-1, -2):
        size = image.shape[axis]
        lines = torch.arange(size, device=image.device) - size // 2
        window = torch.exp(-((lines / (PHASE_LINES * size)) ** 2) / 2)
        kspace = kspace * (window if axis == -1 else window[:, None])
    angle = ifft2c(kspace).angle()
    return torch.polar(torch.ones_like(angle), angle)


# Cases that are estimated together: a GPU wants many, a CPU's cache holds one.
TOGETHER = {"cuda": 8, "cpu": 1}


@dataclass(frozen=True, eq=False)
class EstimateDataset:
    """Training pairs (condition, residual)."""

    cases: MaskedDataset
    inputs: Tensor
    errors: Tensor

    @classmethod
    def of(cls, cases: MaskedDataset, net: VarNet, *, quiet: bool = False) -> EstimateDataset:
        """Run a variational network on every case at every acceleration."""
        device = next(net.parameters()).device
        masks = torch.as_tensor(cases.masks, device=device)
        inputs, errors = torch.empty(0), torch.empty(0)
        together = TOGETHER.get(device.type, 1)
        with Progress(len(cases), quiet=quiet) as progress:
            for start in range(0, len(cases), together):
                indices = range(start, min(start + together, len(cases)))
                images = torch.stack([cases[0, index]["image"].to(device) for index in indices])
                truth = images.repeat_interleave(len(masks), dim=0)
                mask = masks.repeat(len(images), 1)
                found = varnet_estimate(net, project_measured(truth, mask), mask)
                told, error = found.inputs(), found.error(truth)
                if start == 0:
                    # One piece of memory from the start: it may be gigabytes.
                    rows = len(cases), len(masks)
                    inputs, errors = (x.new_empty(*rows, *x.shape[1:]) for x in (told, error))
                for whole, part in ((inputs, told), (errors, error)):
                    whole[start : indices.stop] = part.view(-1, len(masks), *part.shape[1:])
                for _ in indices:
                    progress.step()
        return cls(cases, inputs, errors)

    @property
    def precision(self) -> str | None:
        return self.cases.precision

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, place: tuple[int, int]) -> dict[str, Tensor]:
        epoch, index = place
        which = self.cases.round(epoch, index)
        return {"inputs": self.inputs[index, which], "error": self.errors[index, which]}

    def stock(self, device: torch.device, most: float) -> DeviceDataset:
        """Inputs and errors of all cases and rounds, which are tensors already."""
        rounds = self.inputs.shape[1]
        return DeviceDataset(
            by_case={},
            by_draw={
                "inputs": self.inputs.to(device).flatten(0, 1),
                "error": self.errors.to(device).flatten(0, 1),
            },
            drawn=lambda epoch, index: index * rounds + self.cases.round(epoch, index),
        )


# Estimates of a network are made for a multiple of this many cases; sizes of batches, in cases and
# coils, that are recorded for each.
FILLED, SHAPES = 4, 16


@dataclass(frozen=True)
class EstimateConfig:
    """Settings [estimate]: point-estimate network and its cross-fitting."""

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
        cases: tuple[MaskedDataset, MaskedDataset],
        settings: VarNetTraining,
        folder: Path,
        *,
        machine: TrainerOptions,
        fresh: bool,
        steps: int | None,
    ) -> list[Path]:
        """The network of all patients, then that of each fold; those that are missing are trained."""
        settings = replace(
            settings,
            network=self.network,
            training=self.training,
            data_range=self.data_range,
            start=self.start,
        )

        def trained(name: str, how: VarNetTraining, part: MaskedDataset) -> Path:
            both = (part, cases[1])
            where = folder / name
            return train(how, where, machine=machine, fresh=fresh, cases=both, steps=steps)

        if self.folder is not None:
            return self._there(self.folder, settings)
        of_all = self.weights and locate(self.weights)
        paths = [of_all or trained("estimate", settings, cases[0])]
        if self.folds == 0:
            return paths
        parts = assign_folds(cases[0].source.groups, self.folds, seed=self.training.seed)
        # As many steps as the network of all patients takes: its errors are to be like theirs.
        epochs = round(self.training.epochs * self.folds / (self.folds - 1))
        longer = replace(settings, training=replace(self.training, epochs=epochs))
        for part in range(self.folds):
            others = replace(cases[0], source=Subset.where(cases[0].source, parts != part))
            paths.append(trained(f"fold-{part + 1}-of-{self.folds}", longer, others))
        return paths

    def _there(self, folder: Path, settings: VarNetTraining) -> list[Path]:
        """The networks of a training that has come as far as its sampler."""
        written = folder / "config.toml"
        if not written.exists():
            raise InputError(
                f"estimate.folder is {folder}, where no training has come as far as its sampler; "
                "train that first, or leave estimate.folder out"
            )
        there, here = read_toml(written), to_toml_table(settings)
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
        of_all = self.weights or said.get("weights") or estimate_weights(folder)
        folds = [f"fold-{k + 1}-of-{self.folds}" for k in range(self.folds)]
        return [locate(of_all), *(folder / name / "best.safetensors" for name in folds)]


def estimate_weights(folder: Path) -> Path:
    """Return the path of the point-estimate network."""
    return folder / "estimate" / "best.safetensors"


def assign_folds(groups: NDArray[np.str_], folds: int, *, seed: int) -> NDArray[np.int64]:
    """Return the fold of each case; groups are never split."""
    names, of_case = np.unique(groups, return_inverse=True)
    if len(names) < folds:
        raise InputError(f"{len(names)} groups are too few for {folds} folds; give more, or fewer")
    order = np.random.default_rng(seed).permutation(len(names))
    place = np.empty(len(names), dtype=np.int64)
    place[order] = np.arange(len(names)) % max(folds, 1)
    return np.asarray(place[of_case])


@dataclass(frozen=True, eq=False)
class CrossFitDataset:
    """Cases with the index of their out-of-fold network."""

    cases: MaskedDataset
    networks: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, place: tuple[int, int]) -> dict[str, Any]:
        return {**self.cases[place], "network": int(self.networks[place[1]])}

    def stock(self, device: torch.device, most: float) -> DeviceDataset | None:
        """All cases on a device; the numbers of their networks stay here."""
        cases = self.cases.stock(device, most)
        return cases and replace(cases, known={"network": self.networks})


def collate(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Make a batch; the number of each case's network stays a number, known without the GPU."""
    rest = [{key: value for key, value in case.items() if key != "network"} for case in cases]
    return {**default_collate(rest), "network": tuple(case["network"] for case in cases)}


class CrossFitEstimates:
    """Out-of-fold estimates of a batch."""

    def __init__(
        self,
        networks: Sequence[VarNet],
        views: CoilAugmentation | None,
        scans: ScanRandomisation | None = None,
        *,
        replayed: bool = False,
    ) -> None:
        self.networks = [net.eval().requires_grad_(False) for net in networks]
        self.views, self.scans, self.replayed = views, scans, replayed
        self._quick: dict[int, Callable[[Tensor, Tensor], VarNetEstimate]] = {}

    def __call__(self, batch: Batch, generator: torch.Generator) -> tuple[VarNetEstimate, Tensor]:
        """Estimated cases, and their true images (case, height, width)."""
        found, images = self._estimated(batch, generator)
        return found, rss(images)

    def residuals(self, batch: Batch, generator: torch.Generator) -> tuple[VarNetEstimate, Tensor]:
        """Estimated cases, and their errors (case, 2, height, width)."""
        found, images = self._estimated(batch, generator)
        return found, found.error(images)

    def _estimated(self, batch: Batch, generator: torch.Generator) -> tuple[VarNetEstimate, Tensor]:
        """Estimated cases, and the coil images that were measured."""
        device = batch["image"].device
        views = self.views if "progress" in batch else None
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            seen = simulate_scan(batch, generator, views=views, scans=self.scans)
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
            found = VarNetEstimate(
                *(torch.cat(values)[back] for values in zip(*parts, strict=True))
            )
            return found, seen["image"]

    def _by(self, number: int, device: torch.device) -> Callable[[Tensor, Tensor], VarNetEstimate]:
        if number not in self._quick:
            quick = partial(varnet_estimate, inference_varnet(self.networks[number].to(device)))
            self._quick[number] = CudaGraph(quick, most=SHAPES) if self.replayed else quick
        return self._quick[number]


def _without_waiting(numbers: NDArray[np.int64], device: torch.device) -> Tensor:
    """The numbers on a device; a GPU goes on with what it was told before."""
    there = torch.as_tensor(numbers)
    if device.type != "cuda":
        return there.to(device)
    return there.pin_memory().to(device, non_blocking=True)
