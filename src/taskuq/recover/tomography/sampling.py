"""The sampler around estimates from views: as a recovery, and how it is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from taskuq.data.dataset import Subset
from taskuq.errors import InputError
from taskuq.measure.sinograms import Sinogram, stacked
from taskuq.recover.folds import FoldedCases, collate, fold_of
from taskuq.recover.methods import RECOVERIES
from taskuq.recover.quick_steps import quick_steps
from taskuq.recover.sampler import SamplerConfig, SamplerNet
from taskuq.recover.sampler.learning import Scored, TaskTerms, sampler_recipe
from taskuq.recover.sampler.losses import ImageScore
from taskuq.recover.sampler.recovery import SamplerRecovery
from taskuq.recover.sampler_training import PAPER, watched
from taskuq.recover.tomography.cases import Scanning, ViewsTraining
from taskuq.recover.tomography.estimate import ViewsEstimate, estimated
from taskuq.recover.tomography.network import UnrolledConfig, UnrolledNet
from taskuq.recover.tomography.training import HOW, UnrolledTraining
from taskuq.settings import read_toml
from taskuq.training.config import TrainingConfig
from taskuq.training.fit import Machine, train
from taskuq.training.networks import Network
from taskuq.training.recipe import Batch, Recipe
from taskuq.weights import locate
from taskuq.weights.files import load_weights, read_card

# What an estimate tells, and the one channel of an image.
INPUTS, OUTPUTS = 3, 1
PRESETS = {
    # 256×256.
    "paper": SamplerConfig(INPUTS, OUTPUTS),
    # 128×128.
    "demo": SamplerConfig(INPUTS, OUTPUTS, width=32, drawn=(32, 64, 96, 128)),
    # For teaching and tests: 0.2 million parameters.
    "tiny": SamplerConfig(INPUTS, OUTPUTS, width=8, drawn=(8, 16, 16)),
}


class UnrolledEstimates:
    """Measurements to estimates of an unrolled network.

    Arguments:
        net: The network, on the device where it shall run.
    """

    def __init__(self, net: UnrolledNet) -> None:
        self.net = net.eval()
        self.device = next(net.parameters()).device

    def __call__(self, measurements: Sequence[Sinogram]) -> ViewsEstimate:
        """Estimate several cases."""
        return estimated(self.net, stacked(measurements, self.device))


@dataclass(frozen=True)
class ViewsSamplerMethod:
    """The table ``[recover]`` of a sampler around estimates from views.

    Arguments:
        weights: The trained sampler: a .safetensors file, or a name of the package's own.
        estimate: Its unrolled network, where neither the TOML beside the sampler's weights nor the
            folder ``estimate`` there names it.
        precision: 'auto' draws in bfloat16 on a GPU, 'float32' as a CPU does.
    """

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
        estimates = UnrolledEstimates(_unrolled(found).to(device))
        dtype = torch.float32 if self.precision == "float32" else None
        return SamplerRecovery(net.to(device), estimates, dtype=dtype)


def _unrolled(weights: Path | str) -> UnrolledNet:
    net = RECOVERIES.load(locate(weights))
    if not isinstance(net, UnrolledNet):
        raise InputError(f"estimate names {weights}, which is no unrolled network; name one")
    return net


@dataclass(frozen=True)
class Estimating:
    """Whose estimates a sampler draws around, the table ``[estimate]``.

    Arguments:
        weights: A trained unrolled network: a file, or a name of the package's own. Without it one
            is trained first, on all training groups, in the folder ``estimate``.
        folds: Into how many parts training groups are split. Each part is estimated by a network
            that was trained first, on the groups of the other parts, in a folder of its own. 0 is
            for groups that ``weights`` has not seen, or for more of them than it can learn by
            heart.
        network: The size of networks that are trained first.
        training: How they are trained.
        start: Weights of an unrolled network of that size that they start from: a file, or a name
            of the package's own.

    Example:
        >>> Estimating(folds=1)
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: estimate.folds is 1; give 0, or at least 2
    """

    weights: Path | None = None
    folds: int = 0
    network: UnrolledConfig = field(default_factory=UnrolledConfig)
    training: TrainingConfig = HOW
    start: Path | None = None

    def __post_init__(self) -> None:
        if self.folds < 0 or self.folds == 1:
            raise InputError(f"estimate.folds is {self.folds}; give 0, or at least 2")


@dataclass(frozen=True)
class ViewsSamplerTraining(ViewsTraining):
    """One TOML file for a sampler from views and for the networks that it draws around.

    Arguments:
        estimate: Whose estimates are drawn around, and how training groups get honest ones.
        score: How images are scored.
        task: How a task network's view of them is scored.
        draws: Samples of each case in a step.
        start: Weights of a sampler of the same size to start from: a file, or a name of the
            package's own.

    Example:
        >>> ViewsSamplerTraining().network.inputs, ViewsSamplerTraining().draws
        (3, 4)
    """

    network: SamplerConfig = field(default_factory=lambda: PRESETS["paper"])
    training: TrainingConfig = PAPER
    estimate: Estimating = field(default_factory=Estimating)
    score: ImageScore = field(default_factory=ImageScore)
    task: TaskTerms | None = None
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
        machine: Machine,
        fresh: bool,
        steps: int | None,
    ) -> tuple[Any, ...]:
        """Train the networks that estimate, and say which of them estimates which case."""
        how = UnrolledTraining(
            self.estimate.network,
            self.estimate.training,
            self.data,
            self.measure,
            self.views,
            self.anywhere,
            self.estimate.start,
        )

        def trained(name: str, how: UnrolledTraining, part: Any) -> Path:
            return train(
                how, folder / name, machine=machine, fresh=fresh, cases=(part, cases[1]),
                steps=steps,
            )  # fmt: skip

        weights, folds = self.estimate.weights, self.estimate.folds
        paths = [locate(weights) if weights else trained("estimate", how, cases[0])]
        of_case = np.zeros(len(cases[0]), dtype=np.int64)
        if folds:
            parts = fold_of(cases[0].source.groups, folds, seed=how.training.seed)
            # As many steps as the network of all groups takes: its errors are to be like theirs.
            epochs = round(how.training.epochs * folds / (folds - 1))
            longer = replace(how, training=replace(how.training, epochs=epochs))
            for part in range(folds):
                others = replace(cases[0], source=Subset.where(cases[0].source, parts != part))
                paths.append(trained(f"fold-{part + 1}-of-{folds}", longer, others))
            of_case = 1 + parts
        validated = np.zeros(len(cases[1]), dtype=np.int64)
        return FoldedCases(cases[0], of_case), FoldedCases(cases[1], validated), paths

    def recipe(self, cases: tuple[Any, ...], machine: Machine) -> Recipe:
        """The sampler, to be trained by proper scores of its images."""
        networks = [_unrolled(path) for path in cases[2]]
        honest = HonestViews(networks, self.scanning())
        task = None if self.task is None else watched(self.task)
        scored = Scored(self.score, self.draws, self.task, task)
        replayed = machine.may_be_one_gpu and self.training.replay
        quick = partial(quick_steps, is_replayed=replayed, is_compiled=self.training.compile)
        recipe = sampler_recipe(self.network, scored, honest, quick)
        if self.start is not None:
            path = locate(self.start)
            read_card(path, ("views-sampler",))
            load_weights(recipe.network, path)
        return replace(recipe, kind="views-sampler", collate=collate)


class HonestViews:
    """Estimates of a batch, each case by a network that has not seen it.

    Arguments:
        networks: The networks; they are not trained.
        scan: How a batch is measured.
    """

    def __init__(self, networks: Sequence[UnrolledNet], scan: Scanning) -> None:
        self.networks = [net.eval().requires_grad_(False) for net in networks]
        self.scan = scan

    @torch.no_grad()
    def __call__(self, batch: Batch, generator: torch.Generator) -> tuple[ViewsEstimate, Tensor]:
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
                parts.append(estimated(net, views.take(here)))
                order.append(rows)
            # Back to the order of the batch.
            back = torch.as_tensor(np.argsort(np.concatenate(order)), device=device)

            def whole(name: str) -> Tensor:
                return torch.cat([getattr(part, name) for part in parts])[back]

            return ViewsEstimate(whole("image"), whole("first"), whole("back"), views), truth


NETWORK = Network(
    SamplerConfig, SamplerNet, ViewsSamplerTraining, ViewsSamplerMethod, PRESETS, large=True
)
