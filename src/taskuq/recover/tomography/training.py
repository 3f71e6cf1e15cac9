"""The unrolled network as a recovery, and how it is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from taskuq.measure.sinograms import Sinogram, stacked
from taskuq.recover.methods import RECOVERIES
from taskuq.recover.tomography.cases import Scanning, ViewsTraining
from taskuq.recover.tomography.network import UnrolledConfig, UnrolledNet
from taskuq.training.config import TrainingConfig
from taskuq.training.fit import Machine
from taskuq.training.networks import Network
from taskuq.training.recipe import Batch, Recipe
from taskuq.weights import locate
from taskuq.weights.files import load_weights, read_card

PRESETS = {
    "paper": UnrolledConfig(),
    # 128×128.
    "demo": UnrolledConfig(cascades=4, width=16, pools=3),
    # For teaching and tests.
    "tiny": UnrolledConfig(cascades=2, width=6, pools=2),
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


class UnrolledRecovery:
    """A point estimate by an unrolled network.

    Arguments:
        net: The network, on the device where it shall run.

    Example:
        >>> from taskuq.measure.tomography import ParallelBeamCT
        >>> scan = ParallelBeamCT(32, 64, accelerations=(8,))(torch.ones(32, 32), acceleration=8)
        >>> net = UnrolledNet(UnrolledConfig(cascades=1, width=4, pools=2))
        >>> UnrolledRecovery(net)(scan, samples=1, seed=0).shape
        torch.Size([1, 32, 32])
    """

    def __init__(self, net: UnrolledNet) -> None:
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
        recovered: Tensor = self.net(stacked(measurements, self.device))
        return recovered[:, None]


@dataclass(frozen=True)
class UnrolledMethod:
    """The table ``[recover]`` of an unrolled network.

    Arguments:
        weights: The trained network: a .safetensors file, or a name of the package's own.
    """

    weights: Path | None = None

    def open(self, device: torch.device | str) -> UnrolledRecovery:
        """Load the network on a device."""
        return UnrolledRecovery(RECOVERIES.trained("unrolled", self.weights)[1].to(device))


@dataclass(frozen=True)
class UnrolledTraining(ViewsTraining):
    """One TOML file for an unrolled network.

    Arguments:
        start: Weights of a network of the same size to start from: a file, or a name of the
            package's own.

    Example:
        >>> UnrolledTraining().measure.views
        192
    """

    network: UnrolledConfig = field(default_factory=UnrolledConfig)
    training: TrainingConfig = HOW
    start: Path | None = None

    def recipe(self, cases: Any, machine: Machine) -> Recipe:
        """The network, to be trained by the root of the mean squared error of each image."""
        recipe = unrolled_recipe(self.network, self.scanning())
        if self.start is not None:
            path = locate(self.start)
            read_card(path, ("unrolled",))
            load_weights(recipe.network, path)
        return recipe


def unrolled_recipe(config: UnrolledConfig, scan: Scanning) -> Recipe:
    """Train an unrolled network by the root of the mean squared error of each image.

    Late rounds leave small errors; their roots count for more than their squares would.

    Arguments:
        config: The size of the network.
        scan: How a batch is measured.

    Example:
        >>> from taskuq.measure.tomography import TomographyConfig
        >>> unrolled_recipe(UnrolledConfig(1, 2, 1), Scanning(TomographyConfig())).kind
        'unrolled'
    """
    return Recipe(
        kind="unrolled",
        network=UnrolledNet(config),
        config=config,
        loss=partial(_loss, scan=scan),
        validate=partial(_validate, scan=scan),
        summary=partial(_summary, scan.measure.accelerations),
    )


def _loss(net: nn.Module, batch: Batch, generator: torch.Generator, *, scan: Scanning) -> Tensor:
    views, truth = scan(batch, generator)
    return _roots(net(views), truth).mean()


def _validate(
    net: nn.Module, batch: Batch, generator: torch.Generator, *, scan: Scanning
) -> dict[str, Tensor]:
    views, truth = scan(batch, generator)
    return {
        "loss": _roots(cast(UnrolledNet, net)(views), truth),
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


NETWORK = Network(UnrolledConfig, UnrolledNet, UnrolledTraining, UnrolledMethod, PRESETS)
