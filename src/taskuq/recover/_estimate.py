"""Point estimates by a variational network, and their cross-fitting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import default_collate

from taskuq._config import Natural, check_ranges, read_toml, to_toml_table
from taskuq._io import complete_record
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
from taskuq.recover._compiled import CudaGraph, inference_varnet
from taskuq.recover._methods import load_network
from taskuq.recover._varnet import VarNet, VarNetConfig
from taskuq.recover._varnet_training import PAPER, VarNetTraining
from taskuq.training._config import Batch, TrainingConfig
from taskuq.training._determinism import DeviceDataset
from taskuq.training._fit import train
from taskuq.training._weights import locate

# The phase of an image is smooth: lines up to about this share of the width show it.
PHASE_LINES = 1 / 16
# Data-consistency steps on the network's image before residuals are sampled.
STEPS = 3
# The largest noise scale of latents, at R = 2 and below.
MAX_NOISE_SCALE = math.sqrt(2)
# Cases that are estimated together: a GPU wants many, a CPU's cache holds one.
BATCH = {"cuda": 8, "cpu": 1}
# Estimates of a network are made for a multiple of this many cases; shapes of batches, in cases
# and coils, that are captured for each.
MULTIPLE, SHAPES = 4, 16


def case_scale(y: Tensor) -> Tensor:
    """Return each case's 95 % quantile of magnitudes, or 1 % of their maximum if that is larger."""
    magnitudes = y.abs().flatten(1)
    rank = max(1, math.ceil(0.95 * magnitudes.shape[1]))
    if y.is_cuda:
        # Selection would use one multiprocessor for a case; sorting uses all of them.
        quantile = magnitudes.sort(dim=1).values[:, rank - 1]
    else:
        quantile = magnitudes.kthvalue(rank, dim=1).values
    tiny = torch.finfo(torch.float32).tiny
    return torch.maximum(quantile, magnitudes.amax(1) / 100).clamp_min(tiny)


N = TypeVar("N", bound=nn.Module)


class VarNetEstimate(NamedTuple):
    """Point estimates of a batch, with the quantities on which samples are conditioned."""

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
        return to_channels(images * self._unit()[:, None])

    def error(self, truth: Tensor) -> Tensor:
        """Return the scaled error of the image as real channels (case, 2, height, width)."""
        error = _combine(self.maps, truth) - self.image
        return to_channels((error * self._unit())[:, None])

    def sampled_fraction(self) -> Tensor:
        return self.mask.to(self.scale.dtype).mean(1)

    def images(self, residuals: Tensor) -> Tensor:
        """Return data-consistent magnitude images (case, sample, height, width) from residuals."""
        return rss(self.coil_images(torch.complex(*residuals.unbind(2))))

    def coil_images(self, errors: Tensor) -> Tensor:
        """Return data-consistent images (case, sample, coil, height, width) from sampled errors."""
        images = self.image[:, None] + errors * (self.phase * self.scale.view(-1, 1, 1))[:, None]
        return data_consistency_1d(
            self.maps[:, None] * images[:, :, None],
            self.measured[:, None],
            self.mask[:, None, None, None],
        )

    def of(self, cases: slice) -> VarNetEstimate:
        return VarNetEstimate(*(part[cases] for part in self))

    def _unit(self) -> Tensor:
        return self.phase.conj() / self.scale.view(-1, 1, 1)


def noise_scale_of(mask: Tensor) -> float:
    r"""Return the noise scale :math:`\min((1 - m)^{-1/2}, \sqrt 2)` for a sampled fraction m."""
    unmeasured = 1 - mask.float().mean().item()
    return min(unmeasured**-0.5, MAX_NOISE_SCALE) if unmeasured else 1.0


def _combine(maps: Tensor, images: Tensor) -> Tensor:
    return (maps.conj() * images).sum(1)


@torch.no_grad()
def varnet_estimate(net: VarNet, zero_filled: Tensor, mask: Tensor) -> VarNetEstimate:
    lines = central_lines(mask)
    kspace = fft2c(zero_filled)
    kspace = torch.where(broadcast_mask(mask, kspace), kspace, 0)
    zero_filled = ifft2c(kspace)  # of the measured lines only
    maps, coils = net.maps_and_images(kspace, mask, lines)
    first = image = _combine(maps, coils)
    for _ in range(STEPS):
        coils = data_consistency_1d(maps * image[:, None], zero_filled, mask[:, None, None])
        image = _combine(maps, coils)
    phase, scale = _smooth_phase(image), case_scale(zero_filled)
    return VarNetEstimate(image, first, maps, zero_filled, mask, phase, scale)


def _smooth_phase(image: Tensor) -> Tensor:
    kspace = fft2c(image)
    for axis in (-1, -2):
        size = image.shape[axis]
        lines = torch.arange(size, device=image.device) - size // 2
        window = torch.exp(-((lines / (PHASE_LINES * size)) ** 2) / 2)
        kspace = kspace * (window if axis == -1 else window[:, None])
    angle = ifft2c(kspace).angle()
    return torch.polar(torch.ones_like(angle), angle)


@dataclass(frozen=True, eq=False)
class EstimateDataset:
    cases: MaskedDataset
    inputs: Tensor
    errors: Tensor

    @classmethod
    def of(cls, cases: MaskedDataset, net: VarNet, *, quiet: bool = False) -> EstimateDataset:
        """Run a variational network on every case at every acceleration."""
        device = next(net.parameters()).device
        masks = torch.as_tensor(cases.masks, device=device)
        inputs, errors = torch.empty(0), torch.empty(0)
        size = BATCH.get(device.type, 1)
        with Progress(len(cases), quiet=quiet) as progress:
            for start in range(0, len(cases), size):
                indices = range(start, min(start + size, len(cases)))
                images = torch.stack([cases[0, index]["image"].to(device) for index in indices])
                truth = images.repeat_interleave(len(masks), dim=0)
                mask = masks.repeat(len(images), 1)
                estimate = varnet_estimate(net, project_measured(truth, mask), mask)
                parts = estimate.inputs(), estimate.error(truth)
                if start == 0:
                    # One piece of memory from the start: it may be gigabytes.
                    rows = len(cases), len(masks)
                    inputs, errors = (x.new_empty(*rows, *x.shape[1:]) for x in parts)
                for whole, part in zip((inputs, errors), parts, strict=True):
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
        rounds = self.inputs.shape[1]
        inputs, errors = (x.to(device).flatten(0, 1) for x in (self.inputs, self.errors))
        return DeviceDataset(
            by_case={},
            by_draw={"inputs": inputs, "error": errors},
            drawn=lambda epoch, index: index * rounds + self.cases.round(epoch, index),
        )


@dataclass(frozen=True)
class CrossFitConfig:
    """Settings of a point-estimate network and of its cross-fitting."""

    weights: Path | None = None  #: Trained network; by default, one is trained first.
    folds: Natural = 0  #: Number of cross-fitting folds; 0 for weights trained on other patients.
    network: Any = None  #: Size of the point-estimate networks, which are trained first.
    training: TrainingConfig = PAPER  #: Training of the point-estimate networks.
    init_from: Path | None = None  #: Initial weights of the point-estimate networks.

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.folds == 1:
            raise InputError("estimate.folds must be 0 or at least 2, got 1", code="value.invalid")

    def train(
        self, cases: Sequence[Any], settings: Any, folder: Path, **options: Any
    ) -> tuple[CrossFitDataset, CrossFitDataset, list[Path]]:
        """Train the networks; return training cases, validation cases and paths of the weights."""
        groups, seed = cases[0].source.groups, self.training.seed
        networks, validation = (np.zeros(len(part), dtype=np.int64) for part in cases)
        if self.folds:
            networks = 1 + assign_folds(groups, self.folds, seed=seed)
        same = {name: getattr(self, name) for name in ("network", "training", "init_from")}
        settings = replace(settings, **same)

        def run(name: str, how: Any, part: Any) -> Path:
            return train(how, folder / name, cases=(part, cases[1]), **options)

        if not (paths := self._reused(settings)):
            paths = [locate(self.weights) if self.weights else run("estimate", settings, cases[0])]
            # As many steps as the network of all groups takes: its errors are to be like theirs.
            epochs = round(self.training.epochs * self.folds / max(1, self.folds - 1))
            for fold in range(self.folds):
                longer = replace(settings, training=replace(self.training, epochs=epochs))
                source = Subset.where(cases[0].source, networks != 1 + fold)
                paths.append(run(self._fold(fold), longer, replace(cases[0], source=source)))
        datasets = CrossFitDataset(cases[0], networks), CrossFitDataset(cases[1], validation)
        return *datasets, paths

    def _reused(self, settings: Any) -> list[Path]:
        return []

    def _fold(self, fold: int) -> str:
        return f"fold-{fold + 1}-of-{self.folds}"


@dataclass(frozen=True)
class EstimateConfig(CrossFitConfig):
    """Settings of [estimate]: point-estimate network and its cross-fitting."""

    weights: Path | None = None  #: Trained VarNet; by default, one is trained first.
    #: Size of the point-estimate networks, which are trained first.
    network: VarNetConfig = field(default_factory=VarNetConfig)
    #: Folder of an earlier training run whose point-estimate networks are reused.
    reuse_from: Path | None = None
    #: Data range of SSIM: maximum of the "volume" or of the "slice".
    data_range: Literal["volume", "slice"] = "volume"

    def _reused(self, settings: VarNetTraining) -> list[Path]:
        """Return the paths of the weights to reuse; data, masks, seed and folds must agree."""
        if (folder := self.reuse_from) is None:
            return []
        path = folder / "config.toml"
        if not path.exists():
            text = f"estimate.reuse_from {folder} has no {path.name}; train its estimators first"
            raise InputError(text, code="file.missing")
        there, here = read_toml(path), to_toml_table(settings)
        with complete_record(path, "configuration of its training"):
            estimate = there["estimate"]
            pairs = {
                "folds": (estimate["folds"], self.folds),
                "training.seed": (estimate["training"]["seed"], self.training.seed),
                "data": (there["data"], here["data"]),
                "measure": (there["measure"], here["measure"]),
            }
            weights = self.weights or Path(estimate.get("weights") or estimate_weights(folder))
        changed = [f"{key}: {a} there, {b} here" for key, (a, b) in pairs.items() if a != b]
        if changed or "trial" in there:
            text = f"estimate.reuse_from {folder} holds another run: {changed or 'trial'}; "
            text += "name one of the same data, masks and folds"
            raise InputError(text, code="resume.mismatch")
        folds = [folder / self._fold(k) for k in range(self.folds)]
        return [locate(weights), *(fold / "best.safetensors" for fold in folds)]


def estimate_weights(folder: Path) -> Path:
    return folder / "estimate" / "best.safetensors"


def load_estimator(weights: Path, named: Path | None, kind: type[N]) -> N:
    """Load a sampler's point-estimate network; ``named`` overrides the path in the model card."""
    with complete_record(weights, "network with a model card"):
        card = read_toml(weights.with_suffix(".toml")).get("estimate") or {}
        if isinstance(card, dict):  # of a sampler, whose training holds it
            trained = estimate_weights(Path(card.get("reuse_from", weights.parent)))
            card = card.get("weights") or (trained if trained.exists() else None)
        path = named or (card and Path(card))
    if not path:
        text = f"{weights.name} names no point-estimate network; set 'estimate'"
        raise InputError(text, code="config.missing")
    return load_network(path, kind)


def assign_folds(groups: NDArray[np.str_], folds: int, *, seed: int) -> NDArray[np.int64]:
    """Return the fold of each case; groups are never split."""
    names, of_case = np.unique(groups, return_inverse=True)
    if len(names) < folds:
        raise InputError(f"{len(names)} groups are too few for {folds} folds", code="units.few")
    order = np.random.default_rng(seed).permutation(len(names))
    place = np.empty(len(names), dtype=np.int64)
    place[order] = np.arange(len(names)) % max(folds, 1)
    return np.asarray(place[of_case])


@dataclass(frozen=True, eq=False)
class CrossFitDataset:
    cases: MaskedDataset
    networks: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, place: tuple[int, int]) -> dict[str, Any]:
        return {**self.cases[place], "network": int(self.networks[place[1]])}

    def stock(self, device: torch.device, most: float) -> DeviceDataset | None:
        cases = self.cases.stock(device, most)
        return cases and replace(cases, known={"network": self.networks})


def collate(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Collate cases into a batch, in which ``network`` remains a tuple of indices."""
    rest = [{key: value for key, value in case.items() if key != "network"} for case in cases]
    return {**default_collate(rest), "network": tuple(case["network"] for case in cases)}


def by_network(
    networks: Sequence[int],
    estimate: Callable[[int, Tensor], Sequence[Tensor]],
    device: torch.device,
    *,
    multiple: int = 1,
) -> list[Tensor]:
    """Apply each case's network in padded batches; return the estimates in the order of cases."""
    of_case = np.array(networks)
    order, parts = [], []
    for index in np.unique(of_case):
        rows = np.flatnonzero(of_case == index)
        # Some rows twice: few shapes are captured, and what is estimated twice is left out.
        padded = np.resize(rows, len(rows) + -len(rows) % multiple)
        values = estimate(index, _to_device(padded, device))
        parts.append([value[: len(rows)] for value in values])
        order.append(rows)
    back = _to_device(np.argsort(np.concatenate(order)), device)
    return [torch.cat(values)[back] for values in zip(*parts, strict=True)]


Estimator = Callable[[Tensor, Tensor], VarNetEstimate]


class CrossFitEstimates:
    def __init__(
        self,
        networks: Sequence[VarNet],
        augment: CoilAugmentation | None,
        randomise: ScanRandomisation | None = None,
        *,
        cuda_graphs: bool = False,
        compiled: bool = False,
    ) -> None:
        self.networks = [net.eval().requires_grad_(False) for net in networks]
        self.augment, self.randomise = augment, randomise
        self.cuda_graphs, self.compiled = cuda_graphs, compiled
        self._estimators: dict[int, Estimator] = {}

    def __call__(self, batch: Batch, generator: torch.Generator) -> tuple[VarNetEstimate, Tensor]:
        device = batch["image"].device
        augment = self.augment if "progress" in batch else None
        networks = batch["network"]

        def estimate(index: int, rows: Tensor) -> VarNetEstimate:
            return self._estimator(index, device)(zero_filled[rows], mask[rows])

        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            scan = simulate_scan(batch, generator, augment=augment, randomise=self.randomise)
            zero_filled, mask, truth = ifft2c(scan["kspace"]), scan["mask"], rss(scan["image"])
            if len(set(networks)) == 1:
                return self._estimator(networks[0], device)(zero_filled, mask), truth
            values = by_network(networks, estimate, device, multiple=MULTIPLE)
            return VarNetEstimate(*values), truth

    def _estimator(self, index: int, device: torch.device) -> Estimator:
        if index not in self._estimators:
            net = inference_varnet(self.networks[index].to(device), compiled=self.compiled)
            plain = partial(varnet_estimate, net)
            self._estimators[index] = CudaGraph(plain, most=SHAPES) if self.cuda_graphs else plain
        return self._estimators[index]


def _to_device(indices: NDArray[np.int64], device: torch.device) -> Tensor:
    tensor = torch.as_tensor(indices)
    tensor = tensor.pin_memory() if device.type == "cuda" else tensor
    return tensor.to(device, non_blocking=True)
