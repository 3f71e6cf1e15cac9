"""Recoveries from views: back-projection, unrolled, sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from taskuq._config import read_toml
from taskuq._seeds import per_case_random
from taskuq.data._dataset import Dataset, Subset, load_all_images
from taskuq.data._readers import READERS, Data, open_data
from taskuq.errors import InputError
from taskuq.measure._tomography import (
    Radon,
    Sinogram,
    SinogramBatch,
    TomographyConfig,
    Window,
    filtered_back_projection,
    landweber_update,
    stack_sinograms,
    view_angles,
)
from taskuq.recover._cases import CoilAugmentation
from taskuq.recover._compiled import accelerate
from taskuq.recover._estimate import CrossFitDataset, assign_folds, collate
from taskuq.recover._methods import RECOVERIES
from taskuq.recover._varnet import UNet
from taskuq.recover.sampler._network import SamplerConfig, SamplerNet
from taskuq.recover.sampler._sample import SamplerRecovery
from taskuq.recover.sampler._train import (
    PAPER,
    ImageLossConfig,
    SamplerLoss,
    TaskLossConfig,
    load_task_network,
    sampler_recipe,
)
from taskuq.training._config import Batch, Recipe, TrainingConfig
from taskuq.training._determinism import DeviceDataset
from taskuq.training._fit import TrainerOptions, train
from taskuq.training._networks import NetworkKind
from taskuq.training._weights import load_weights, locate, read_card


@dataclass(frozen=True)
class _UnrolledConfig:
    """The size of an unrolled network; the default is for 256×256."""

    cascades: int = 6
    width: int = 32
    pools: int = 4

    def __post_init__(self) -> None:
        if min(self.cascades, self.width, self.pools) < 1:
            raise InputError(
                f"the network has {self.cascades} cascades, width {self.width} and {self.pools} "
                "pools; give numbers above 0"
            )


class _UnrolledNet(nn.Module):
    """Refinements, before each of which the image is brought towards the measured views."""

    def __init__(self, config: _UnrolledConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or _UnrolledConfig()
        self.refinements = nn.ModuleList(_refinement(c) for _ in range(c.cascades))

    def forward(self, views: SinogramBatch) -> Tensor:
        """Recover images (case, height, width)."""
        smooth = filtered_back_projection(views, "hann")
        share = torch.log(views.share.clamp_min(1e-3)).view(-1, 1, 1).expand(smooth.shape)
        image = landweber_update(torch.zeros_like(smooth), views)
        for refinement in self.refinements:
            image = landweber_update(image, views, steps=1)
            image = image + refinement(torch.stack([image, smooth, share], dim=1))[:, 0].float()
        return image


def _refinement(config: _UnrolledConfig) -> UNet:
    """A U-Net that says almost nothing before it is trained: the start is least squares."""
    net = UNet(3, 1, width=config.width, pools=config.pools)
    last = net.output
    assert isinstance(last, nn.Conv2d)
    assert last.bias is not None
    nn.init.normal_(last.weight, std=1e-3)
    nn.init.zeros_(last.bias)
    return net


@dataclass(frozen=True, eq=False)
class _SinogramDataset:
    """Training data set with a view set per case and epoch."""

    source: Dataset
    rounds: int
    seed: int | None

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, place: tuple[int, int]) -> dict[str, Tensor]:
        epoch, index = place
        item = self.source[index]
        if item.image.ndim != 2 or item.image.is_complex() or len(set(item.image.shape)) > 1:
            raise InputError(
                f"case {item.case} has shape {tuple(item.image.shape)} and type "
                f"{item.image.dtype}; tomography takes real square images (coils = 0 in data)"
            )
        return {"image": item.image.float(), "round": torch.tensor(self._round(epoch, index))}

    def stock(self, device: torch.device, most: float) -> DeviceDataset | None:
        """All images on a device."""
        self[0, 0]  # images in memory are of one shape, or no stock
        images = load_all_images(self.source, torch.Tensor.float, device, most)
        if images is None:
            return None
        rounds = torch.arange(self.rounds, device=device)
        return DeviceDataset({"image": images}, {"round": rounds}, self._round)

    def _round(self, epoch: int, index: int) -> int:
        if self.seed is None:
            return index % self.rounds
        return int(np.random.default_rng([self.seed, epoch, index]).integers(self.rounds))


@dataclass(frozen=True)
class _CTTraining:
    """Settings shared by CT trainings."""

    network: Any = None
    training: TrainingConfig = field(default_factory=TrainingConfig)
    data: Data = field(default_factory=lambda: READERS["chest"]())
    measure: TomographyConfig = field(default_factory=TomographyConfig)
    views: CoilAugmentation | None = None
    anywhere: float = 0.0

    def scanning(self) -> _SinogramSimulator:
        return _SinogramSimulator(self.measure, self.views, self.anywhere)

    def prepare(self, machine: TrainerOptions, data: Any = None) -> tuple[Any, ...]:
        """The cases to train on and to validate by."""
        training, validation = data or open_data(self.data)
        rounds = len(self.measure.accelerations)
        return (
            _SinogramDataset(training, rounds, self.training.seed),
            _SinogramDataset(validation, rounds, None),
        )


class _SinogramSimulator:
    """Simulate sinograms of a batch."""

    def __init__(
        self,
        measure: TomographyConfig,
        views: CoilAugmentation | None = None,
        anywhere: float = 0.0,
    ) -> None:
        if not 0 <= anywhere <= 1:
            raise InputError(f"anywhere is {anywhere}; give a share of cases between 0 and 1")
        self.measure, self.views, self.anywhere = measure, views, anywhere
        masks = measure.masks(0)
        # Rounds are nested: without random views no other one is ever looked at.
        kept = np.arange(measure.views) if anywhere else np.flatnonzero(masks[-1])
        self.masks, self.angles = torch.as_tensor(masks[:, kept]), view_angles(kept, measure.views)
        self.shares = 1 / torch.tensor(measure.accelerations)

    def __call__(self, batch: Batch, generator: torch.Generator) -> tuple[SinogramBatch, Tensor]:
        """Measured views, and the images that were measured, (case, height, width)."""
        images = batch["image"]
        if self.views is not None and "progress" in batch:
            images = self.views(images[:, None] + 0j, generator)[:, 0].abs()
        which = batch["round"]
        mask = self.masks.to(images.device)[which]
        share = self.shares.to(images.device)[which]
        if self.anywhere and "progress" in batch:
            mask, share = self._anywhere(mask, share, generator)
        radon = Radon(images.shape[-1], self.angles)
        exact = radon(images)
        counts, size = self.measure.counts, radon.size
        read = exact
        if counts.photons:
            rate = counts.rate(exact, size)
            shape = tuple(rate.shape)
            noise = per_case_random(torch.randn, shape, generator, device=images.device)
            read = counts.read(rate + rate.sqrt() * noise, size)
        read = read * mask[:, :, None]
        variance = counts.variance(read, size) * mask[:, :, None]
        mean = variance.sum((1, 2)) / (mask.sum(1) * radon.detectors)
        return SinogramBatch(read, mask, radon, share, mean), images

    def _anywhere(
        self, mask: Tensor, share: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Masks (case, view) in which some cases have views of their own, and measured shares."""
        cases, total = mask.shape

        def uniform(*shape: int) -> Tensor:
            return per_case_random(torch.rand, shape, generator, device=mask.device)

        few, many = 1 / max(self.measure.accelerations), 1 / min(self.measure.accelerations)
        counts = torch.round(total * few * (many / few) ** uniform(cases)).clamp(1, total)
        rank = uniform(cases, total).argsort(dim=1).argsort(dim=1)
        own = uniform(cases) < self.anywhere
        drawn = torch.where(own[:, None], rank < counts[:, None], mask)
        return drawn, torch.where(own, counts / total, share)


@dataclass(frozen=True)
class FilteredBackProjection:
    """Filtered back-projection baseline."""

    window: Window = "ram-lak"

    def __call__(self, measurement: Sinogram, *, samples: int, seed: int) -> Tensor:
        """Return the recovered image, (1, height, width)."""
        return self.batch([measurement], samples=samples, seeds=[seed])[0]

    def batch(
        self, measurements: Sequence[Sinogram], *, samples: int, seeds: Sequence[int]
    ) -> Tensor:
        """Return the recovered images of several cases, (case, 1, height, width)."""
        views = stack_sinograms(measurements, measurements[0].projections.device)
        return filtered_back_projection(views, self.window)[:, None]

    def open(self, device: torch.device | str) -> FilteredBackProjection:
        """Return itself: it runs where its measurements are."""
        return self


@dataclass(frozen=True, eq=False)
class _UnrolledEstimate:
    """Unrolled-network estimate of a batch."""

    image: Tensor
    first: Tensor
    back: Tensor
    views: SinogramBatch

    @property
    def scale(self) -> Tensor:
        """The unit of each case's images, (case,): 1."""
        return torch.ones_like(self.views.share)

    def inputs(self) -> Tensor:
        return torch.stack([self.image, self.first, self.back], dim=1)

    def share(self) -> Tensor:
        """The share of views that was measured, (case,)."""
        return self.views.share

    def images(self, residuals: Tensor) -> Tensor:
        """Images with these errors, brought towards the views, (case, sample, height, width)."""
        return landweber_update(self.image[:, None] + residuals[:, :, 0], self.views)


@torch.no_grad()
def _unrolled_estimate(net: _UnrolledNet, views: SinogramBatch) -> _UnrolledEstimate:
    """Run the unrolled network with data consistency."""
    first = net(views)
    back = filtered_back_projection(views, "hann")
    return _UnrolledEstimate(landweber_update(first, views), first, back, views)


PRESETS = {
    "paper": _UnrolledConfig(),
    # 128×128.
    "demo": _UnrolledConfig(cascades=4, width=16, pools=3),
    # For teaching and tests.
    "tiny": _UnrolledConfig(cascades=2, width=6, pools=2),
}
HOW = TrainingConfig(
    epochs=60,
    batch=16,
    learning_rate=1e-3,
    warmup=100,
    schedule="cosine",
    decay=0.02,
    clip=1.0,
)


class _UnrolledRecovery:
    """A point estimate by an unrolled network."""

    def __init__(self, net: _UnrolledNet) -> None:
        self.net = net.eval()
        self.device = next(net.parameters()).device

    def __call__(self, measurement: Sinogram, *, samples: int, seed: int) -> Tensor:
        """Return the recovered image, (1, height, width)."""
        return self.batch([measurement], samples=samples, seeds=[seed])[0]

    @torch.no_grad()
    def batch(
        self, measurements: Sequence[Sinogram], *, samples: int, seeds: Sequence[int]
    ) -> Tensor:
        """Return the recovered images of several cases, (case, 1, height, width)."""
        recovered: Tensor = self.net(stack_sinograms(measurements, self.device))
        return recovered[:, None]


@dataclass(frozen=True)
class UnrolledMethod:
    """The table ``[recover]`` of an unrolled network."""

    weights: Path | None = None

    def open(self, device: torch.device | str) -> _UnrolledRecovery:
        """Load the network on a device."""
        return _UnrolledRecovery(RECOVERIES.trained("unrolled", self.weights)[1].to(device))


@dataclass(frozen=True)
class _UnrolledTraining(_CTTraining):
    """One TOML file for an unrolled network."""

    network: _UnrolledConfig = field(default_factory=_UnrolledConfig)
    training: TrainingConfig = HOW
    start: Path | None = None

    def recipe(self, cases: Any, machine: TrainerOptions) -> Recipe:
        """The network, to be trained by the root of the mean squared error of each image."""
        recipe = _unrolled_recipe(self.network, self.scanning())
        if self.start is not None:
            path = locate(self.start)
            read_card(path, ("unrolled",))
            load_weights(recipe.network, path)
        return recipe


def _unrolled_recipe(config: _UnrolledConfig, scan: _SinogramSimulator) -> Recipe:
    """Train an unrolled network by the root of the mean squared error of each image."""
    return Recipe(
        kind="unrolled",
        network=_UnrolledNet(config),
        config=config,
        loss=partial(_loss, scan=scan),
        validate=partial(_validate, scan=scan),
        summary=partial(_summary, scan.measure.accelerations),
    )


def _loss(
    net: nn.Module, batch: Batch, generator: torch.Generator, *, scan: _SinogramSimulator
) -> Tensor:
    views, truth = scan(batch, generator)
    return _roots(net(views), truth).mean()


def _validate(
    net: nn.Module, batch: Batch, generator: torch.Generator, *, scan: _SinogramSimulator
) -> dict[str, Tensor]:
    views, truth = scan(batch, generator)
    return {
        "loss": _roots(cast(_UnrolledNet, net)(views), truth),
        "peak": truth.amax((1, 2)),
        "round": batch["round"].float(),
    }


def _roots(images: Tensor, truth: Tensor) -> Tensor:
    return (images - truth).square().mean((1, 2)).clamp_min(1e-12).sqrt()


def _summary(rates: Sequence[float], values: Mapping[str, Tensor]) -> dict[str, float]:
    """The mean root error, and the PSNR of each round in dB."""
    found = {"loss": float(values["loss"].double().mean())}
    for k, rate in enumerate(rates):
        here = values["round"] == k
        if bool(here.any()):
            ratio = values["peak"][here].double() / values["loss"][here].double()
            found[f"psnr_{rate:g}"] = float((20 * torch.log10(ratio)).mean())
    return found


NETWORK = NetworkKind(_UnrolledConfig, _UnrolledNet, _UnrolledTraining, UnrolledMethod, PRESETS)

# What an estimate tells, and the one channel of an image.
INPUTS, OUTPUTS = 3, 1
SAMPLER_PRESETS = {
    # 256×256.
    "paper": SamplerConfig(INPUTS, OUTPUTS),
    # 128×128.
    "demo": SamplerConfig(INPUTS, OUTPUTS, width=32, drawn=(32, 64, 96, 128)),
    # For teaching and tests: 0.2 million parameters.
    "tiny": SamplerConfig(INPUTS, OUTPUTS, width=8, drawn=(8, 16, 16)),
}


class _UnrolledEstimator:
    """Sinograms to unrolled-network estimates."""

    def __init__(self, net: _UnrolledNet) -> None:
        self.net = net.eval()
        self.device = next(net.parameters()).device

    def __call__(self, measurements: Sequence[Sinogram]) -> _UnrolledEstimate:
        """Estimate several cases."""
        return _unrolled_estimate(self.net, stack_sinograms(measurements, self.device))


@dataclass(frozen=True)
class CTSamplerMethod:
    """Settings [recover] of the CT sampler."""

    weights: Path | None = None
    estimate: Path | None = None
    precision: Literal["auto", "float32"] = "auto"

    def open(self, device: torch.device | str) -> SamplerRecovery:
        """Load the sampler, and the network around whose estimates it draws, on a device."""
        path, net = RECOVERIES.trained("views-sampler", self.weights)
        beside = path.parent / "estimate" / "best.safetensors"
        card = read_toml(path.with_suffix(".toml")).get("estimate", {})
        found = self.estimate or card.get("weights") or (beside if beside.exists() else None)
        if found is None:
            raise InputError(
                f"{path.name} draws around estimates and does not say whose; name the unrolled "
                "network it was trained with as 'estimate'"
            )
        estimates = _UnrolledEstimator(_unrolled(found).to(device))
        dtype = torch.float32 if self.precision == "float32" else None
        return SamplerRecovery(net.to(device), estimates, dtype=dtype)


def _unrolled(weights: Path | str) -> _UnrolledNet:
    net = RECOVERIES.load(locate(weights))
    if not isinstance(net, _UnrolledNet):
        raise InputError(f"estimate names {weights}, which is no unrolled network; name one")
    return net


@dataclass(frozen=True)
class _CTEstimateConfig:
    """Settings [estimate] of the CT sampler."""

    weights: Path | None = None
    folds: int = 0
    network: _UnrolledConfig = field(default_factory=_UnrolledConfig)
    training: TrainingConfig = HOW
    start: Path | None = None

    def __post_init__(self) -> None:
        if self.folds < 0 or self.folds == 1:
            raise InputError(f"estimate.folds is {self.folds}; give 0, or at least 2")


@dataclass(frozen=True)
class _CTSamplerTraining(_CTTraining):
    """Settings of a CT sampler training."""

    network: SamplerConfig = field(default_factory=lambda: SAMPLER_PRESETS["paper"])
    training: TrainingConfig = PAPER
    estimate: _CTEstimateConfig = field(default_factory=_CTEstimateConfig)
    score: ImageLossConfig = field(default_factory=ImageLossConfig)
    task: TaskLossConfig | None = None
    draws: int = 4
    start: Path | None = None

    def __post_init__(self) -> None:
        if self.draws < 2:
            raise InputError(f"draws is {self.draws}; a score needs at least 2 samples of a case")
        if (self.network.inputs, self.network.outputs) != (INPUTS, OUTPUTS):
            raise InputError(
                f"the network has {self.network.inputs} inputs and {self.network.outputs} outputs; "
                "around an estimate from views it has 3 and 1"
            )
        if self.task is not None and self.task.weights is None:
            raise InputError("task.weights is missing; name the trained task network")

    def stages(
        self,
        cases: tuple[Any, ...],
        folder: Path,
        *,
        machine: TrainerOptions,
        fresh: bool,
        steps: int | None,
    ) -> tuple[Any, ...]:
        """Train the networks that estimate, and say which of them estimates which case."""
        how = _UnrolledTraining(
            self.estimate.network,
            self.estimate.training,
            self.data,
            self.measure,
            self.views,
            self.anywhere,
            self.estimate.start,
        )

        def trained(name: str, how: _UnrolledTraining, part: Any) -> Path:
            return train(
                how, folder / name, machine=machine, fresh=fresh, cases=(part, cases[1]),
                steps=steps,
            )  # fmt: skip

        weights, folds = self.estimate.weights, self.estimate.folds
        paths = [locate(weights) if weights else trained("estimate", how, cases[0])]
        of_case = np.zeros(len(cases[0]), dtype=np.int64)
        if folds:
            parts = assign_folds(cases[0].source.groups, folds, seed=how.training.seed)
            # As many steps as the network of all groups takes: its errors are to be like theirs.
            epochs = round(how.training.epochs * folds / (folds - 1))
            longer = replace(how, training=replace(how.training, epochs=epochs))
            for part in range(folds):
                others = replace(cases[0], source=Subset.where(cases[0].source, parts != part))
                paths.append(trained(f"fold-{part + 1}-of-{folds}", longer, others))
            of_case = 1 + parts
        validated = np.zeros(len(cases[1]), dtype=np.int64)
        return CrossFitDataset(cases[0], of_case), CrossFitDataset(cases[1], validated), paths

    def recipe(self, cases: tuple[Any, ...], machine: TrainerOptions) -> Recipe:
        """The sampler, to be trained by proper scores of its images."""
        networks = [_unrolled(path) for path in cases[2]]
        honest = _CrossFitCTEstimates(networks, self.scanning())
        task = None if self.task is None else load_task_network(self.task)
        scored = SamplerLoss(self.score, self.draws, self.task, task)
        replayed = machine.may_be_one_gpu and self.training.replay
        quick = partial(accelerate, is_replayed=replayed, is_compiled=self.training.compile)
        recipe = sampler_recipe(self.network, scored, honest, quick)
        if self.start is not None:
            path = locate(self.start)
            read_card(path, ("views-sampler",))
            load_weights(recipe.network, path)
        return replace(recipe, kind="views-sampler", collate=collate)


class _CrossFitCTEstimates:
    """Out-of-fold CT estimates of a batch."""

    def __init__(self, networks: Sequence[_UnrolledNet], scan: _SinogramSimulator) -> None:
        self.networks = [net.eval().requires_grad_(False) for net in networks]
        self.scan = scan

    @torch.no_grad()
    def __call__(
        self, batch: Batch, generator: torch.Generator
    ) -> tuple[_UnrolledEstimate, Tensor]:
        """Estimated cases, and their true images (case, height, width)."""
        device = batch["image"].device
        with torch.autocast(device.type, enabled=False):
            views, truth = self.scan(batch, generator)
            of_case = np.array(batch["network"])
            parts, order = [], []
            for number in np.unique(of_case):
                rows = np.flatnonzero(of_case == number)
                here = torch.as_tensor(rows, device=device)
                net = self.networks[number].to(device)
                parts.append(_unrolled_estimate(net, views.take(here)))
                order.append(rows)
            # Back to the order of the batch.
            back = torch.as_tensor(np.argsort(np.concatenate(order)), device=device)

            def whole(name: str) -> Tensor:
                return torch.cat([getattr(part, name) for part in parts])[back]

            return _UnrolledEstimate(whole("image"), whole("first"), whole("back"), views), truth


SAMPLER_NETWORK = NetworkKind(
    SamplerConfig, SamplerNet, _CTSamplerTraining, CTSamplerMethod, SAMPLER_PRESETS, large=True
)
