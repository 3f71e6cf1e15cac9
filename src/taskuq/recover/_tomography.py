"""CT recovery: filtered back-projection, unrolled network and one-step sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from taskuq._config import Channels, Depth, Unit
from taskuq._seeds import per_case_random
from taskuq.data._dataset import Dataset, load_all_images
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
from taskuq.recover._cases import CoilAugmentation, random_round
from taskuq.recover._estimate import CrossFitConfig, by_network, load_estimator
from taskuq.recover._methods import (
    RECOVERIES,
    BatchRecovery,
    init_weights,
    load_network,
    set_float32,
)
from taskuq.recover._varnet import UNet
from taskuq.recover.sampler._network import SamplerConfig, SamplerNet
from taskuq.recover.sampler._sample import SamplerRecovery
from taskuq.recover.sampler._train import (
    PAPER,
    ImageLossConfig,
    SampleCount,
    SamplerTrainingMixin,
    TaskLossConfig,
)
from taskuq.training._config import Batch, Recipe, TrainingConfig
from taskuq.training._determinism import DeviceDataset
from taskuq.training._fit import TrainerOptions
from taskuq.training._networks import NetworkKind


@dataclass(frozen=True)
class _UnrolledConfig:
    """Size of an unrolled network; the defaults are for 256×256 images."""

    cascades: Depth = 6  #: Number of refinement steps.
    width: Channels = 32  #: Channels at the first level of each U-Net.
    pools: Depth = 4  #: Number of times a U-Net halves the image.


class _UnrolledNet(nn.Module):
    def __init__(self, config: _UnrolledConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or _UnrolledConfig()
        self.refinements = nn.ModuleList()
        for _ in range(c.cascades):
            self.refinements.append(UNet(3, 1, width=c.width, pools=c.pools))
            last = cast(UNet, self.refinements[-1]).output
            # Small outputs at first: the network starts at least squares.
            nn.init.normal_(last.weight, std=1e-3)
            nn.init.zeros_(cast(Tensor, last.bias))

    def forward(self, views: SinogramBatch) -> Tensor:
        smooth = filtered_back_projection(views, "hann")
        fraction = torch.log(views.share.clamp_min(1e-3)).view(-1, 1, 1).expand(smooth.shape)
        image = landweber_update(torch.zeros_like(smooth), views)
        for refinement in self.refinements:
            image = landweber_update(image, views, steps=1)
            image = image + refinement(torch.stack([image, smooth, fraction], dim=1))[:, 0].float()
        return image


@dataclass(frozen=True, eq=False)
class _SinogramDataset:
    source: Dataset
    rounds: int
    seed: int | None

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, place: tuple[int, int]) -> dict[str, Tensor]:
        epoch, index = place
        item = self.source[index]
        if item.image.ndim != 2 or item.image.is_complex() or len(set(item.image.shape)) > 1:
            text = f"case {item.case} is not a real square image; set data.coils to 0"
            raise InputError(text, code="shape.axes")
        return {"image": item.image.float(), "round": torch.tensor(self._round(epoch, index))}

    def stock(self, device: torch.device, most: float) -> DeviceDataset | None:
        self[0, 0]  # images in memory are of one shape, or no stock
        images = load_all_images(self.source, torch.Tensor.float, device, most)
        if images is None:
            return None
        rounds = torch.arange(self.rounds, device=device)
        return DeviceDataset({"image": images}, {"round": rounds}, self._round)

    def _round(self, epoch: int, index: int) -> int:
        return random_round(self.seed, epoch, index, self.rounds)


@dataclass(frozen=True)
class _CTTraining:
    """Settings shared by all CT training runs."""

    network: Any = None  #: Size of the network.
    training: TrainingConfig = field(default_factory=TrainingConfig)  #: Optimiser and schedule.
    data: Data = field(default_factory=lambda: READERS["chest"]())  #: Training data.
    #: Views of the rounds; one round is drawn per case and epoch.
    measure: TomographyConfig = field(default_factory=TomographyConfig)
    augment: CoilAugmentation | None = None  #: Augmentation of images.
    random_views_fraction: Unit = 0.0  #: Fraction of training cases measured with random views.

    def prepare(self, machine: TrainerOptions, data: Any = None) -> tuple[Any, ...]:
        training, validation = data or open_data(self.data)
        rounds = len(self.measure.accelerations)
        return (
            _SinogramDataset(training, rounds, self.training.seed),
            _SinogramDataset(validation, rounds, None),
        )

    @cached_property
    def _views(self) -> tuple[Tensor, tuple[float, ...]]:
        masks = self.measure.masks(0)
        # Rounds are nested: without random views no others are used.
        every = self.random_views_fraction > 0
        kept = np.arange(self.measure.views) if every else np.flatnonzero(masks[-1])
        return torch.as_tensor(masks[:, kept]), view_angles(kept, self.measure.views)

    def simulate(self, batch: Batch, generator: torch.Generator) -> tuple[SinogramBatch, Tensor]:
        """Return the measured views and the true images (case, height, width)."""
        images = batch["image"]
        if self.augment is not None and "progress" in batch:
            images = self.augment(images[:, None] + 0j, generator)[:, 0].abs()
        rounds, (masks, angles) = batch["round"], self._views
        mask = masks.to(images.device)[rounds]
        fraction = (1 / torch.tensor(self.measure.accelerations)).to(images.device)[rounds]
        if self.random_views_fraction and "progress" in batch:
            mask, fraction = self._random_views(mask, fraction, generator)
        radon = Radon(images.shape[-1], angles)
        exact = radon(images)
        counts, size = self.measure.counts, radon.size
        read = exact
        if counts.photons:
            rate = counts.rate(exact, size)
            noise = per_case_random(torch.randn, (*rate.shape,), generator, device=images.device)
            read = counts.read(rate + rate.sqrt() * noise, size)
        read = read * mask[:, :, None]
        variance = counts.variance(read, size) * mask[:, :, None]
        mean = variance.sum((1, 2)) / (mask.sum(1) * radon.detectors)
        return SinogramBatch(read, mask, radon, fraction, mean), images

    def _random_views(
        self, mask: Tensor, fraction: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        cases, total = mask.shape

        def uniform(*shape: int) -> Tensor:
            return per_case_random(torch.rand, shape, generator, device=mask.device)

        few, many = 1 / max(self.measure.accelerations), 1 / min(self.measure.accelerations)
        counts = torch.round(total * few * (many / few) ** uniform(cases)).clamp(1, total)
        rank = uniform(cases, total).argsort(dim=1).argsort(dim=1)
        own = uniform(cases) < self.random_views_fraction
        mask = torch.where(own[:, None], rank < counts[:, None], mask)
        return mask, torch.where(own, counts / total, fraction)


@dataclass(frozen=True)
class FilteredBackProjection(BatchRecovery):
    """Filtered back-projection baseline."""

    window: Window = "ram-lak"  #: Window of the ramp filter.

    def batch(self, measurements: Sequence[Any], *, samples: int, seeds: Sequence[int]) -> Tensor:
        views = stack_sinograms(measurements, measurements[0].projections.device)
        return filtered_back_projection(views, self.window)[:, None]

    def open(self, device: torch.device | str) -> FilteredBackProjection:
        return self


@dataclass(frozen=True, eq=False)
class _CTEstimate:
    image: Tensor
    first: Tensor
    back_projection: Tensor
    views: SinogramBatch

    @property
    def scale(self) -> Tensor:
        return torch.ones_like(self.views.share)

    def inputs(self) -> Tensor:
        return torch.stack([self.image, self.first, self.back_projection], dim=1)

    def sampled_fraction(self) -> Tensor:
        return self.views.share

    def images(self, residuals: Tensor) -> Tensor:
        return landweber_update(self.image[:, None] + residuals[:, :, 0], self.views)


@torch.no_grad()
def _unrolled_estimate(net: _UnrolledNet, views: SinogramBatch) -> _CTEstimate:
    first = net(views)
    back = filtered_back_projection(views, "hann")
    return _CTEstimate(landweber_update(first, views), first, back, views)


PRESETS = {
    "paper": _UnrolledConfig(),
    "demo": _UnrolledConfig(cascades=4, width=16, pools=3),  # 128×128
    "tiny": _UnrolledConfig(cascades=2, width=6, pools=2),  # for teaching and tests
}
UNROLLED_TRAINING = TrainingConfig(
    epochs=60,
    batch=16,
    learning_rate=1e-3,
    warmup_steps=100,
    schedule="cosine",
    lr_decay=0.02,
    clip_norm=1.0,
)


@dataclass(frozen=True)
class _UnrolledRecovery(BatchRecovery):
    net: _UnrolledNet
    device: torch.device | str

    @torch.no_grad()
    def batch(self, measurements: Sequence[Any], *, samples: int, seeds: Sequence[int]) -> Tensor:
        recovered: Tensor = self.net(stack_sinograms(measurements, self.device))
        return recovered[:, None]


@dataclass(frozen=True)
class UnrolledMethod:
    """Settings of [recover] for an unrolled network."""

    weights: Path | None = None  #: Trained unrolled network: weights file or bundled name.

    def open(self, device: torch.device | str) -> _UnrolledRecovery:
        net = RECOVERIES.trained("ct-unrolled", self.weights)[1]
        return _UnrolledRecovery(net.to(device), device)


@dataclass(frozen=True)
class _UnrolledTraining(_CTTraining):
    network: _UnrolledConfig = field(default_factory=_UnrolledConfig)
    training: TrainingConfig = UNROLLED_TRAINING
    init_from: Path | None = None  #: Initial weights: file or bundled name.

    def recipe(self, cases: Any, machine: TrainerOptions) -> Recipe:
        recipe = Recipe(
            kind="ct-unrolled",
            network=_UnrolledNet(self.network),
            config=self.network,
            loss=lambda *inputs: self._validate(*inputs)["loss"].mean(),
            validate=self._validate,
            summary=partial(_summary, self.measure.accelerations),
        )
        init_weights(recipe.network, self.init_from, "ct-unrolled")
        return recipe

    def _validate(
        self, net: nn.Module, batch: Batch, generator: torch.Generator
    ) -> dict[str, Tensor]:
        views, truth = self.simulate(batch, generator)
        error = (net(views) - truth).square().mean((1, 2)).clamp_min(1e-12).sqrt()
        return {"loss": error, "peak": truth.amax((1, 2)), "round": batch["round"].float()}


def _summary(accelerations: Sequence[float], values: Mapping[str, Tensor]) -> dict[str, float]:
    summary = {"loss": float(values["loss"].double().mean())}
    for k, acceleration in enumerate(accelerations):
        here = values["round"] == k
        if bool(here.any()):
            ratio = values["peak"][here].double() / values["loss"][here].double()
            summary[f"psnr_{acceleration:g}"] = float((20 * torch.log10(ratio)).mean())
    return summary


NETWORK = NetworkKind(_UnrolledConfig, _UnrolledNet, _UnrolledTraining, UnrolledMethod, PRESETS)

# Condition channels of an estimate, and the one channel of an image.
INPUTS, OUTPUTS = 3, 1
SAMPLER_PRESETS = {
    "paper": SamplerConfig(INPUTS, OUTPUTS),  # 256×256
    "demo": SamplerConfig(INPUTS, OUTPUTS, width=32, decoder_channels=(32, 64, 96, 128)),  # 128×128
    "tiny": SamplerConfig(INPUTS, OUTPUTS, width=8, decoder_channels=(8, 16, 16)),  # for tests
}


def _estimate_scans(net: _UnrolledNet, scans: Sequence[Sinogram]) -> _CTEstimate:
    return _unrolled_estimate(net, stack_sinograms(scans, next(net.parameters()).device))


@dataclass(frozen=True)
class CTSamplerMethod:
    """Settings of [recover] for the CT sampler."""

    weights: Path | None = None  #: Trained CT sampler: weights file or bundled name.
    estimate: Path | None = None  #: Unrolled-network weights; default: those used in training.
    precision: Literal["auto", "float32"] = "auto"  #: "auto" uses bfloat16 on a GPU.

    def open(self, device: torch.device | str) -> SamplerRecovery:
        path, net = RECOVERIES.trained("ct-sampler", self.weights)
        unrolled = load_estimator(path, self.estimate, _UnrolledNet).to(device)
        dtype = torch.float32 if set_float32(self.precision) else None
        return SamplerRecovery(net.to(device), partial(_estimate_scans, unrolled), dtype=dtype)


@dataclass(frozen=True)
class _CTEstimateConfig(CrossFitConfig):
    """Settings of [estimate] for the CT sampler."""

    weights: Path | None = None  #: Trained unrolled network; by default, one is trained first.
    #: Size of the point-estimate networks, which are trained first.
    network: _UnrolledConfig = field(default_factory=_UnrolledConfig)
    training: TrainingConfig = UNROLLED_TRAINING  #: Training of the point-estimate networks.


@dataclass(frozen=True)
class _CTSamplerTraining(SamplerTrainingMixin, _CTTraining):
    network: SamplerConfig = field(default_factory=lambda: SAMPLER_PRESETS["paper"])
    training: TrainingConfig = PAPER
    #: Point-estimate network and its cross-fitting.
    estimate: _CTEstimateConfig = field(default_factory=_CTEstimateConfig)
    loss: ImageLossConfig = field(default_factory=ImageLossConfig)
    task_loss: TaskLossConfig | None = None
    samples: SampleCount = 4
    init_from: Path | None = None

    def __post_init__(self) -> None:
        self.check((INPUTS, OUTPUTS))

    def stages(self, cases: tuple[Any, ...], folder: Path, **options: Any) -> tuple[Any, ...]:
        names = ("data", "measure", "augment", "random_views_fraction")
        settings = _UnrolledTraining(**{name: getattr(self, name) for name in names})
        return self.estimate.train(cases, settings, folder, **options)

    def recipe(self, cases: tuple[Any, ...], machine: TrainerOptions) -> Recipe:
        nets = [load_network(path, _UnrolledNet).requires_grad_(False) for path in cases[2]]

        @torch.no_grad()
        def estimates(batch: Batch, generator: torch.Generator) -> tuple[_CTEstimate, Tensor]:
            device = batch["image"].device

            def estimate(index: int, rows: Tensor) -> tuple[Tensor, ...]:
                part = _unrolled_estimate(nets[index].to(device), views.take(rows))
                return part.image, part.first, part.back_projection

            with torch.autocast(device.type, enabled=False):
                views, truth = self.simulate(batch, generator)
                image, first, back = by_network(batch["network"], estimate, device)
                return _CTEstimate(image, first, back, views), truth

        return self.sampler_recipe("ct-sampler", estimates, machine)


SAMPLER_NETWORK = NetworkKind(
    SamplerConfig, SamplerNet, _CTSamplerTraining, CTSamplerMethod, SAMPLER_PRESETS, large=True
)
