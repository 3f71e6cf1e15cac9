"""Variational network: method, training, SSIM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from taskuq.errors import InputError
from taskuq.measure._coils import rss
from taskuq.measure._fourier import broadcast_mask, central_lines, fft2c
from taskuq.recover._cases import (
    CoilAugmentation,
    MaskedDataset,
    RecoveryTraining,
    ScanRandomisation,
    simulate_scan,
)
from taskuq.recover._compiled import CudaGraph, GraphedFunction, inference_varnet
from taskuq.recover._methods import RECOVERIES, MeasurementLike, rescale_pow2, stack_measurements
from taskuq.recover._varnet import VarNet, VarNetConfig
from taskuq.training._config import Batch, Recipe, TrainingConfig
from taskuq.training._fit import TrainerOptions
from taskuq.training._networks import NetworkKind
from taskuq.training._weights import load_weights, locate, read_card, read_pickled

WINDOW, K1, K2 = 7, 0.01, 0.03


def _ssim(images: Tensor, targets: Tensor, data_range: Tensor) -> Tensor:
    """Return the mean structural similarity of each image to its target, (case,); 1 where equal."""
    x, y = images[:, None], targets[:, None]
    scale = WINDOW**2 / (WINDOW**2 - 1)
    mean_x, mean_y = F.avg_pool2d(x, WINDOW, 1), F.avg_pool2d(y, WINDOW, 1)
    var_x = scale * (F.avg_pool2d(x * x, WINDOW, 1) - mean_x**2)
    var_y = scale * (F.avg_pool2d(y * y, WINDOW, 1) - mean_y**2)
    cov = scale * (F.avg_pool2d(x * y, WINDOW, 1) - mean_x * mean_y)
    c1, c2 = ((k * data_range.view(-1, 1, 1, 1)) ** 2 for k in (K1, K2))
    ratio = ((2 * mean_x * mean_y + c1) * (2 * cov + c2)) / (
        (mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2)
    )
    return torch.mean(ratio, dim=(1, 2, 3))


PRESETS = {
    "paper": VarNetConfig(),
    "demo": VarNetConfig(cascades=6, width=16, pools=3, sensitivity_width=6, sensitivity_pools=3),
    "tiny": VarNetConfig(cascades=3, width=6, pools=2, sensitivity_width=4, sensitivity_pools=2),
}
PAPER = TrainingConfig(
    epochs=50, batch=16, learning_rate=1e-4, schedule="step", decay=0.1, decay_epochs=40
)


class VarNetRecovery:
    """A point estimate by a variational network.

    Arguments:
        net: The network, on the device where it shall run; on a GPU it is folded
            (:mod:`taskuq.recover._compiled`).
        dtype: The precision of the convolutions on a GPU. Half precision moves the image by a
            hundredth of its error (docs/performance.md).

    Example:
        >>> from taskuq.measure._mri import MRIMeasurement
        >>> net = VarNet(VarNetConfig(cascades=1, width=4, pools=2, sensitivity_pools=2))
        >>> scan = MRIMeasurement(torch.ones(4, 16, 16) + 0j, torch.ones(16, dtype=torch.bool), 1.0)
        >>> VarNetRecovery(net)(scan, samples=1, seed=0).shape
        torch.Size([1, 16, 16])
    """

    def __init__(self, net: VarNet, *, dtype: torch.dtype = torch.float16) -> None:
        self.net, self.dtype = net.eval(), dtype
        self.device = next(net.parameters()).device
        self._recorded: CudaGraph[Tensor] = CudaGraph(inference_varnet(self.net, dtype))

    def __call__(self, measurement: MeasurementLike, *, samples: int, seed: int) -> Tensor:
        """Return the recovered magnitude image, (1, height, width)."""
        return self.batch([measurement], samples=samples, seeds=[seed])[0]

    def batch(
        self, measurements: Sequence[MeasurementLike], *, samples: int, seeds: Sequence[int]
    ) -> Tensor:
        """Return the recovered magnitude images of several cases, (case, 1, height, width)."""
        zero_filled, mask = (part.to(self.device) for part in stack_measurements(measurements))
        images, size = rescale_pow2(zero_filled)
        kspace = fft2c(images)
        kspace = torch.where(broadcast_mask(mask, kspace), kspace, 0)
        recovered = self._recorded(kspace, mask, central_lines(mask))
        return (recovered * size.view(-1, 1, 1))[:, None]

    def __reduce__(self) -> tuple[Any, tuple[VarNet]]:
        # Recorded GPU work cannot travel to another process; it is recorded there again.
        return partial(VarNetRecovery, dtype=self.dtype), (self.net,)


@dataclass(frozen=True)
class VarNetMethod:
    """The table ``[recover]`` of a variational network."""

    weights: Path | None = None
    precision: Literal["auto", "float32"] = "auto"

    def open(self, device: torch.device | str) -> VarNetRecovery:
        """Load the network on a device."""
        dtype = torch.float32 if self.precision == "float32" else torch.float16
        net = RECOVERIES.trained("varnet", self.weights)[1]
        return VarNetRecovery(net.to(device), dtype=dtype)


@dataclass(frozen=True)
class VarNetTraining(RecoveryTraining):
    """One TOML file for a variational network; the defaults are the paper's."""

    network: VarNetConfig = field(default_factory=VarNetConfig)
    training: TrainingConfig = PAPER
    data_range: Literal["volume", "slice"] = "volume"
    views: CoilAugmentation | None = None
    scans: ScanRandomisation | None = None
    start: Path | None = None

    def prepare(
        self, machine: TrainerOptions, data: Any = None
    ) -> tuple[MaskedDataset, MaskedDataset]:
        """Measure the cases."""
        return self.measured(machine, data, by_volume=self.data_range == "volume")

    def recipe(self, cases: Any, machine: TrainerOptions) -> Recipe:
        """The network, to be trained by structural similarity."""
        replayed = machine.may_be_one_gpu and self.training.replay
        recipe = _varnet_recipe(self.network, replayed=replayed, views=self.views, scans=self.scans)
        if self.start is not None:
            path = locate(self.start)
            read_card(path, ("varnet",))
            load_weights(recipe.network, path)
        return recipe


def _varnet_recipe(
    config: VarNetConfig,
    *,
    replayed: bool = False,
    views: CoilAugmentation | None = None,
    scans: ScanRandomisation | None = None,
) -> Recipe:
    """Train a variational network to the structural similarity of magnitude images."""
    net = VarNet(config)
    dissimilarity = partial(_dissimilarity, net)
    step = GraphedFunction(net, dissimilarity) if replayed else dissimilarity  # of this network
    return Recipe(
        kind="varnet",
        network=net,
        config=config,
        loss=lambda net, batch, generator: step(
            *_seen(simulate_scan(batch, generator, views=views, scans=scans))
        ).mean(),
        validate=lambda net, batch, generator: {
            "loss": _dissimilarity(
                cast(VarNet, net), *_seen(simulate_scan(batch, generator, scans=scans))
            )
        },
    )


def _dissimilarity(
    net: VarNet, kspace: Tensor, mask: Tensor, lines: Tensor, truth: Tensor, data_range: Tensor
) -> Tensor:
    return 1 - _ssim(net(kspace, mask, lines), truth, data_range)


def _seen(batch: Batch) -> tuple[Tensor, ...]:
    names = ("kspace", "mask", "low_frequencies")
    return (*(batch[name] for name in names), rss(batch["image"]), batch["data_range"])


def estimating_network(weights: Path | str) -> VarNet:
    """Load the variational network around whose estimates samples are drawn."""
    net = RECOVERIES.load(locate(weights))
    if not isinstance(net, VarNet):
        raise InputError(f"estimate names {weights}, which is no variational network; name one")
    return net


def load_public_varnet(path: Path | str) -> VarNet:
    """Read the public fastMRI weights of the paper's variational network (a state dict in .pt).

    Arguments:
        path: The .pt file.

    Example:
        >>> load_public_varnet("absent.pt")
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: absent.pt cannot be read ...
    """
    state = read_pickled(path, "one")
    state = state.get("state_dict", state) if isinstance(state, dict) else {}
    state = {k.removeprefix("varnet."): v for k, v in state.items()}
    net = VarNet()
    try:
        found = net.load_state_dict(state, strict=False)
    except RuntimeError:
        raise InputError(f"{path} holds weights of another shape; give the leaderboard's") from None
    if found.missing_keys:
        raise InputError(
            f"{path} lacks {len(found.missing_keys)} weights, first {found.missing_keys[0]}; give "
            "weights of the end-to-end variational network"
        )
    return net.eval()


NETWORK = NetworkKind(
    VarNetConfig, VarNet, VarNetTraining, VarNetMethod, PRESETS, large=True, flexible_input=True
)
