"""The sampler around estimates of a variational network: as a recovery, and how it is trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from taskuq.errors import InputError
from taskuq.recover.cases import RecoveryTraining
from taskuq.recover.estimate import Estimate, estimate
from taskuq.recover.folded_varnet import quick_varnet
from taskuq.recover.folds import (
    Estimating,
    FoldedCases,
    HonestEstimates,
    collate,
    estimate_in,
    fold_of,
)
from taskuq.recover.methods import RECOVERIES
from taskuq.recover.quick_steps import quick_steps
from taskuq.recover.sampler import SamplerConfig, SamplerNet
from taskuq.recover.sampler.learning import Scored, TaskTerms, Watched, sampler_recipe
from taskuq.recover.sampler.losses import ImageScore
from taskuq.recover.sampler.recovery import SamplerRecovery
from taskuq.recover.sampler.widening import loudness_of
from taskuq.recover.scan import Scan, stacked, unit_sized
from taskuq.recover.scans import AnyScan
from taskuq.recover.varnet import VarNet
from taskuq.recover.varnet_training import VarNetTraining, estimating_network
from taskuq.recover.views import CoilViews
from taskuq.settings import read_toml
from taskuq.training.config import TrainingConfig
from taskuq.training.fit import Machine
from taskuq.training.networks import NETWORKS, Network
from taskuq.training.recipe import Recipe
from taskuq.weights import locate
from taskuq.weights.files import load_weights, read_card

PRESETS = {
    # 320×320: 14.4 million parameters, of which 0.6 million run for each sample.
    "paper": SamplerConfig(),
    # 128×128: 3.3 million parameters, 6.6 MB in float16.
    "demo": SamplerConfig(width=24, drawn=(32, 64, 96, 128)),
    # For teaching and tests: 0.2 million parameters.
    "tiny": SamplerConfig(width=8, drawn=(8, 16, 16)),
}
# Validation cases that say how loud noise has to be, at most, and how many are drawn together.
ASKED, TOGETHER = 400, 8
PAPER = TrainingConfig(
    epochs=40,
    batch=16,
    learning_rate=6e-4,
    betas=(0.9, 0.99),
    weight_decay=1e-2,
    decoupled=True,
    warmup=300,
    average=0.999,
    schedule="cosine",
    decay=0.02,
    clip=20.0,
    precision="bf16-mixed",
)


@dataclass(frozen=True, eq=False)
class Resized:
    """Estimates of measurements that were made unit-sized, which changes no digit of them.

    Arguments:
        found: Estimates of the unit-sized measurements.
        size: Powers of two to get back, (case,).
    """

    found: Estimate
    size: Tensor

    @property
    def scale(self) -> Tensor:
        """The unit of each case's images, (case,)."""
        return self.found.scale * self.size

    def inputs(self) -> Tensor:
        """What the network is told, (case, 6, height, width)."""
        return self.found.inputs()

    def share(self) -> Tensor:
        """The share of lines that was measured, (case,)."""
        return self.found.share()

    def images(self, residuals: Tensor) -> Tensor:
        """Consistent magnitude images (case, sample, height, width)."""
        return self.found.images(residuals) * self.size.view(-1, 1, 1, 1)

    def coils(self, residuals: Tensor) -> Tensor:
        """Consistent coil images (case, sample, coil, height, width)."""
        return self.found.coils(residuals) * self.size.view(-1, 1, 1, 1, 1)


class VarNetEstimates:
    """Measurements to estimates of a variational network.

    Arguments:
        net: The network, on the device where it shall run.
        dtype: The precision of its convolutions on a GPU.

    Example:
        >>> from taskuq.measure.mri import Measurement
        >>> scan = Measurement(torch.ones(4, 16, 16) + 0j, torch.ones(16, dtype=torch.bool), 1.0)
        >>> found = VarNetEstimates(RECOVERIES.build("varnet", preset="tiny"))([scan])
        >>> found.inputs().shape, found.share()
        (torch.Size([1, 6, 16, 16]), tensor([1.]))
    """

    def __init__(self, net: VarNet, *, dtype: torch.dtype = torch.float16) -> None:
        self.net = quick_varnet(net.eval(), dtype)
        self.device = next(net.parameters()).device

    def __call__(self, measurements: Sequence[Scan]) -> Resized:
        """Estimate several cases."""
        return self.of(*self.tensors(measurements))

    def tensors(self, measurements: Sequence[Scan]) -> tuple[Tensor, Tensor]:
        """Zero-filled images (case, coil, height, width), and masks (case, width)."""
        zero_filled, mask = (part.to(self.device) for part in stacked(measurements))
        return zero_filled, mask

    def of(self, *tensors: Tensor) -> Resized:
        """Estimate the cases of :meth:`tensors`."""
        zero_filled, mask = tensors
        images, size = unit_sized(zero_filled)
        return Resized(estimate(self.net, images, mask), size)


def estimates_beside(
    weights: Path,
    named: Path | None,
    device: torch.device | str,
    precision: Literal["auto", "float32"] = "auto",
) -> VarNetEstimates:
    """Open the network around whose estimates a trained network draws.

    Arguments:
        weights: The file of the network that draws.
        named: Weights of the other one, where neither the TOML beside the file nor the folder
            ``estimate`` there, or where its networks came from, names it.
        device: Where to run.
        precision: 'auto' estimates in float16 on a GPU, 'float32' as a CPU does.
    """
    card = read_toml(weights.with_suffix(".toml")).get("estimate", {})
    beside = estimate_in(Path(card.get("folder", weights.parent)))
    found = named or card.get("weights") or (beside if beside.exists() else None)
    if found is None:
        raise InputError(
            f"{weights.name} draws around estimates and does not say whose; name the variational "
            "network it was trained with as 'estimate'"
        )
    dtype = torch.float32 if precision == "float32" else torch.float16
    return VarNetEstimates(estimating_network(found).to(device), dtype=dtype)


@dataclass(frozen=True)
class SamplerMethod:
    """The table ``[recover]`` of a sampler.

    Arguments:
        weights: The trained sampler: a .safetensors file, or a name of the package's own.
        estimate: Its variational network, where neither the TOML beside the sampler's weights nor
            the folder ``estimate`` there names it.
        precision: 'auto' draws in bfloat16 on a GPU, 'float32' as a CPU does.
        widened: Whether noise is as loud as the validation patients of the training ask for.
    """

    weights: Path | None = None
    estimate: Path | None = None
    precision: Literal["auto", "float32"] = "auto"
    widened: bool = False

    def open(self, device: torch.device | str) -> SamplerRecovery:
        """Load the sampler, and the network around whose estimates it draws, on a device."""
        path, net = RECOVERIES.trained("sampler", self.weights)
        estimates = estimates_beside(path, self.estimate, device, self.precision)
        dtype = torch.float32 if self.precision == "float32" else None
        loudness = read_toml(path.with_suffix(".toml")).get("loudness") if self.widened else None
        if self.widened and loudness is None:
            raise InputError(
                f"the TOML beside {path.name} does not say how loud noise has to be; train it "
                "again, or leave widened"
            )
        return SamplerRecovery(net.to(device), estimates, dtype=dtype, loudness=loudness)


@dataclass(frozen=True)
class SamplerTraining(RecoveryTraining):
    """One TOML file for a sampler and for the networks that it draws around.

    Arguments:
        estimate: Whose estimates are drawn around, and how training patients get honest ones.
        views: How images are moved before they are measured, in all trainings.
        scans: How masks, coils, noise and contrast differ from case to case, in all trainings and
            in validation; by default every case is seen through a mask of ``[measure]``.
        score: How images are scored.
        task: How a task network's view of them is scored.
        draws: Samples of each case in a step.
        start: Weights of a sampler of the same size to start from: a file, or a name of the
            package's own.

    Example:
        >>> SamplerTraining().training.average, SamplerTraining().draws
        (0.999, 4)
    """

    network: SamplerConfig = field(default_factory=SamplerConfig)
    training: TrainingConfig = PAPER
    estimate: Estimating = field(default_factory=Estimating)
    views: CoilViews | None = None
    scans: AnyScan | None = None
    score: ImageScore = field(default_factory=ImageScore)
    task: TaskTerms | None = None
    draws: int = 4
    start: Path | None = None

    def __post_init__(self) -> None:
        if self.draws < 2:
            raise InputError(f"draws is {self.draws}; a score needs at least 2 samples of a case")
        if self.network.inputs != 6 or self.network.outputs != 2:
            raise InputError(
                f"the network has {self.network.inputs} inputs and {self.network.outputs} outputs; "
                "around a variational network it has 6 and 2"
            )
        if self.task is not None and self.task.weights is None:
            raise InputError("task.weights is missing; name the trained task network")

    def prepare(self, machine: Machine, data: Any = None) -> tuple[Any, ...]:
        """Measure the cases."""
        by_volume = self.estimate.data_range == "volume"
        return self.measured(machine, data, by_volume=by_volume)

    def stages(
        self,
        cases: tuple[Any, ...],
        folder: Path,
        *,
        machine: Machine,
        fresh: bool,
        steps: int | None,
    ) -> tuple[Any, ...]:
        """Train the networks that estimate, and say which of them estimates which case."""
        seen = VarNetTraining(
            data=self.data, measure=self.measure, views=self.views, scans=self.scans
        )
        paths = self.estimate.trained(
            (cases[0], cases[1]), seen, folder, machine=machine, fresh=fresh, steps=steps
        )
        of_case = np.zeros(len(cases[0]), dtype=np.int64)
        if self.estimate.folds:
            groups, seed = cases[0].source.groups, self.estimate.training.seed
            of_case = 1 + fold_of(groups, self.estimate.folds, seed=seed)
        validated = np.zeros(len(cases[1]), dtype=np.int64)
        return FoldedCases(cases[0], of_case), FoldedCases(cases[1], validated), paths

    def recipe(self, cases: tuple[Any, ...], machine: Machine) -> Recipe:
        """The sampler, to be trained by proper scores of its images."""
        replayed = machine.may_be_one_gpu and self.training.replay
        nets = [estimating_network(path) for path in cases[2]]
        honest = HonestEstimates(nets, self.views, self.scans, replayed=replayed)
        task = None if self.task is None else watched(self.task)
        scored = Scored(self.score, self.draws, self.task, task)
        quick = partial(quick_steps, is_replayed=replayed, is_compiled=self.training.compile)
        recipe = sampler_recipe(self.network, scored, honest, quick)
        net = cast(SamplerNet, recipe.network)
        on_gpu = machine.accelerator != "cpu" and torch.cuda.is_available()
        judge = partial(_judge_loudness, net, cases[1], honest, "cuda" if on_gpu else "cpu")
        recipe = replace(recipe, collate=collate, after=judge)
        if self.start is not None:
            path = locate(self.start)
            read_card(path, ("sampler",))
            load_weights(recipe.network, path)
        return recipe


def _judge_loudness(
    net: SamplerNet, cases: FoldedCases, honest: HonestEstimates, device: str
) -> dict[str, Any]:
    """Let the validation patients say how loud noise has to be."""
    generator = torch.Generator(device).manual_seed(0)

    def batches() -> Iterator[tuple[Estimate, Tensor]]:
        asked = np.linspace(0, len(cases) - 1, min(ASKED, len(cases))).astype(int)
        for start in range(0, len(asked), TOGETHER):
            batch = collate([cases[0, int(row)] for row in asked[start : start + TOGETHER]])
            yield honest(_there(batch, device), generator)

    loudness = loudness_of(net.to(device).eval(), batches())
    net.cpu()
    return {"loudness": list(loudness)}


def _there(batch: dict[str, Any], device: str) -> dict[str, Any]:
    return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in batch.items()}


def watched(terms: TaskTerms) -> Watched:
    """Load the task network that a table ``[task]`` names; it is not trained.

    Arguments:
        terms: The table.
    """
    assert terms.weights is not None
    path = locate(terms.weights)
    card = read_card(path, list(NETWORKS))
    net = NETWORKS[card["kind"]].load(path, card["network"])
    if not isinstance(net, Watched):
        raise InputError(
            f"{path} holds a {card['kind']}, which cannot be looked into; name another"
        )
    net.requires_grad_(False)
    return net


NETWORK = Network(
    SamplerConfig, SamplerNet, SamplerTraining, SamplerMethod, PRESETS, large=True, any_input=True
)
