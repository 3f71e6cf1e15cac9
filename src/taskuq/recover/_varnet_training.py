"""Recovery by a variational network and training of the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from taskuq.errors import InputError
from taskuq.measure._coils import rss, ssim
from taskuq.measure._fourier import broadcast_mask, central_lines, fft2c
from taskuq.recover._cases import (
    CoilAugmentation,
    RecoveryTraining,
    ScanRandomisation,
    simulate_scan,
)
from taskuq.recover._compiled import CudaGraph, GraphedFunction, inference_varnet
from taskuq.recover._methods import (
    RECOVERIES,
    BatchRecovery,
    MeasurementLike,
    init_weights,
    rescale_pow2,
    set_float32,
    stack_measurements,
)
from taskuq.recover._varnet import VarNet, VarNetConfig
from taskuq.training._config import Batch, Recipe, TrainingConfig
from taskuq.training._fit import TrainerOptions
from taskuq.training._networks import NetworkKind
from taskuq.training._weights import read_pickled

PRESETS = {
    "paper": VarNetConfig(),
    "demo": VarNetConfig(cascades=6, width=16, pools=3, sensitivity_width=6, sensitivity_pools=3),
    "tiny": VarNetConfig(cascades=3, width=6, pools=2, sensitivity_width=4, sensitivity_pools=2),
}
PAPER = TrainingConfig(
    epochs=50, batch=16, learning_rate=1e-4, schedule="step", lr_decay=0.1, lr_decay_epochs=40
)


class VarNetRecovery(BatchRecovery):
    """Point estimate by a variational network.

    Args:
        net: Network, on the device to use.
        dtype: Precision of the convolutions on a GPU.

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
        self._graph: CudaGraph[Tensor] = CudaGraph(inference_varnet(self.net, dtype))

    def batch(
        self, measurements: Sequence[MeasurementLike], *, samples: int, seeds: Sequence[int]
    ) -> Tensor:
        zero_filled, mask = (part.to(self.device) for part in stack_measurements(measurements))
        images, size = rescale_pow2(zero_filled)
        kspace = fft2c(images)
        kspace = torch.where(broadcast_mask(mask, kspace), kspace, 0)
        recovered = self._graph(kspace, mask, central_lines(mask))
        return (recovered * size.view(-1, 1, 1))[:, None]

    def __reduce__(self) -> tuple[Any, tuple[VarNet]]:
        # CUDA graphs cannot be pickled; they are captured again in another process.
        return partial(VarNetRecovery, dtype=self.dtype), (self.net,)


@dataclass(frozen=True)
class VarNetMethod:
    """Settings of [recover] for a variational network."""

    weights: Path | None = None  #: Trained VarNet: weights file or bundled name.
    precision: Literal["auto", "float32"] = "auto"  #: Precision; "auto" uses float16 on a GPU.

    def open(self, device: torch.device | str) -> VarNetRecovery:
        dtype = torch.float32 if set_float32(self.precision) else torch.float16
        return VarNetRecovery(RECOVERIES.trained("varnet", self.weights)[1].to(device), dtype=dtype)


@dataclass(frozen=True)
class VarNetTraining(RecoveryTraining):
    """Settings for training a VarNet; the defaults are the paper's."""

    network: VarNetConfig = field(default_factory=VarNetConfig)
    training: TrainingConfig = PAPER
    #: Data range of SSIM: maximum of the "volume" or of the "slice".
    data_range: Literal["volume", "slice"] = "volume"
    augment: CoilAugmentation | None = None  #: Augmentation of coil images.
    randomise: ScanRandomisation | None = None  #: Random masks, coils, noise and contrast.
    init_from: Path | None = None  #: Initial weights: file or bundled name.

    def prepare(self, machine: TrainerOptions, data: Any = None) -> tuple[Any, ...]:
        return self.measured(machine, data, by_volume=self.data_range == "volume")

    def recipe(self, cases: Any, machine: TrainerOptions) -> Recipe:
        net = VarNet(self.network)
        init_weights(net, self.init_from, "varnet")
        names = ("kspace", "mask", "low_frequencies")

        def loss(
            kspace: Tensor, mask: Tensor, lines: Tensor, truth: Tensor, limit: Tensor
        ) -> Tensor:
            return 1 - ssim(net(kspace, mask, lines), truth, limit)

        graphs = machine.may_be_one_gpu and self.training.cuda_graphs
        step = GraphedFunction(net, loss) if graphs else loss

        def inputs(
            batch: Batch, generator: torch.Generator, augment: CoilAugmentation | None = None
        ) -> tuple[Tensor, ...]:
            scan = simulate_scan(batch, generator, augment=augment, randomise=self.randomise)
            return (*(scan[name] for name in names), rss(scan["image"]), scan["data_range"])

        return Recipe(
            kind="varnet",
            network=net,
            config=self.network,
            loss=lambda _, batch, generator: step(*inputs(batch, generator, self.augment)).mean(),
            validate=lambda _, batch, generator: {"loss": loss(*inputs(batch, generator))},
        )


def load_public_varnet(path: Path | str) -> VarNet:
    """Read the public fastMRI weights of the paper's variational network from a .pt file.

    Args:
        path: File with the state dict.

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
        missing = net.load_state_dict(state, strict=False).missing_keys
    except RuntimeError:
        text = f"{path} holds other weights; use those of the public VarNet"
        raise InputError(text, code="weights.mismatch") from None
    if missing:
        text = f"{path} lacks {len(missing)} weights, such as {missing[0]}"
        raise InputError(text, code="weights.mismatch")
    return net.eval()


NETWORK = NetworkKind(
    VarNetConfig, VarNet, VarNetTraining, VarNetMethod, PRESETS, large=True, flexible_input=True
)
