"""Train a recovery network from its configuration file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from taskuq.data.dataset import Dataset
from taskuq.data.memory import InMemory
from taskuq.data.readers import Data, open_data, paper_data
from taskuq.errors import InputError
from taskuq.measure.masks import MaskConfig
from taskuq.recover.around import check_temperature
from taskuq.recover.cases import MeasuredCases, as_coils, group_ranges
from taskuq.recover.catalog import load
from taskuq.recover.estimate import EstimatedCases
from taskuq.recover.flow import FlowConfig
from taskuq.recover.recipes import around_recipe, flow_recipe, varnet_recipe
from taskuq.recover.varnet import VarNet, VarNetConfig
from taskuq.settings import read_settings, to_table
from taskuq.training.config import TrainingConfig
from taskuq.training.fit import Machine, fit
from taskuq.training.recipe import Recipe
from taskuq.training.seeds import own_randomness
from taskuq.weights import locate


@dataclass(frozen=True)
class FlowTraining:
    """One TOML file for a flow; the defaults are the paper's.

    Arguments:
        network: The size of the flow.
        training: Optimiser, epochs, batch.
        data: Where cases come from.
        measure: The masks, one of which is drawn for each case and epoch.
        estimate: Weights of a variational network around whose estimates the flow is trained: a
            file, or a name of the package's own. Without them the flow learns whole images, as
            the paper's does.
        temperatures: At what temperature a flow around estimates draws, as pairs of an acceleration
            and a temperature; the TOML beside the weights keeps them. 1 where there are none.

    Example:
        >>> FlowTraining().training.epochs, FlowTraining().training.clip
        (150, 1.0)
    """

    network: FlowConfig = field(default_factory=FlowConfig)
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            epochs=150, batch=8, learning_rate=1e-4, weight_decay=1e-7, clip=1.0
        )
    )
    data: Data = field(default_factory=paper_data)
    measure: MaskConfig = field(default_factory=lambda: MaskConfig(published=True))
    estimate: Path | None = None
    temperatures: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        if self.temperatures and self.estimate is None:
            raise InputError(
                f"temperatures are {self.temperatures}, for a flow around estimates; name its "
                "'estimate', or leave them out"
            )
        if self.temperatures:
            check_temperature(self.temperatures)


@dataclass(frozen=True)
class VarNetTraining:
    """One TOML file for a variational network; the defaults are the paper's.

    Arguments:
        network: The size of the network.
        training: Optimiser, epochs, batch.
        data: Where cases come from.
        measure: The masks, one of which is drawn for each case and epoch.
        data_range: The range :math:`L` of the structural similarity: ``"volume"`` takes the
            largest value of a volume, for which every case is read once; ``"slice"`` that of each
            slice, as the authors do.

    Example:
        >>> VarNetTraining().training.epochs, VarNetTraining().training.batch
        (50, 16)
    """

    network: VarNetConfig = field(default_factory=VarNetConfig)
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            epochs=50, batch=16, learning_rate=1e-4, schedule="step", decay=0.1, decay_epochs=40
        )
    )
    data: Data = field(default_factory=paper_data)
    measure: MaskConfig = field(default_factory=lambda: MaskConfig(published=True))
    data_range: Literal["volume", "slice"] = "volume"


def train_from(
    kind: Literal["flow", "varnet"],
    config: Path | str,
    folder: Path | str,
    *,
    machine: Machine | None = None,
    fresh: bool = False,
) -> Path:
    """Train the network that a TOML file describes.

    Arguments:
        kind: ``"flow"`` or ``"varnet"``.
        config: The TOML file.
        folder: Where weights, logs and the state go.
        machine: On what to train.
        fresh: Whether to begin again and overwrite what is there.

    Returns:
        The best weights.

    Example:
        >>> train_from("flow", "absent.toml", "runs/flow")
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: cannot read absent.toml: No such file or directory
    """
    layout: Any = FlowTraining if kind == "flow" else VarNetTraining
    return train(read_settings(layout, config), folder, machine=machine, fresh=fresh)


def train(
    settings: FlowTraining | VarNetTraining,
    folder: Path | str,
    *,
    machine: Machine | None = None,
    fresh: bool = False,
    data: tuple[Dataset, Dataset] | None = None,
    prepared: tuple[Any, Any] | None = None,
) -> Path:
    """Train a recovery network.

    Arguments:
        settings: Everything that a configuration file says.
        folder: Where weights, logs and the state go.
        machine: On what to train.
        fresh: Whether to begin again and overwrite what is there.
        data: Training and validation cases; by default those the settings name.
        prepared: What :func:`prepare` made of the cases; ``data`` is not needed then.

    Returns:
        The best weights.
    """
    cases = prepared or prepare(settings, machine=machine, data=data)
    with own_randomness(settings.training.seed):
        recipe = _recipe(settings, _is_one(machine) and settings.training.replay)
    return fit(
        recipe,
        cases[0],
        cases[1],
        settings.training,
        folder,
        settings=to_table(settings),
        machine=machine,
        fresh=fresh,
    )


def prepare(
    settings: FlowTraining | VarNetTraining,
    *,
    machine: Machine | None = None,
    data: tuple[Dataset, Dataset] | None = None,
) -> tuple[Any, Any]:
    """Measure the cases of a training, and estimate them where the flow is to be around that.

    Arguments:
        settings: Everything that a configuration file says.
        machine: On what to train; estimates are made and kept there.
        data: Training and validation cases; by default those the settings name.

    Returns:
        Training and validation cases by (epoch, index).
    """
    training, validation = (
        _resident(part, machine, settings.training.workers)
        for part in data or open_data(settings.data)
    )
    masks = settings.measure.masks(as_coils(training[0].image).shape[-1])
    by_volume = isinstance(settings, VarNetTraining) and settings.data_range == "volume"
    ranges = [group_ranges(part) if by_volume else {} for part in (training, validation)]
    measured = (
        MeasuredCases(training, masks, settings.training.seed, ranges[0]),
        MeasuredCases(validation, masks, None, ranges[1]),
    )
    if isinstance(settings, FlowTraining) and settings.estimate is not None:
        return _around_estimates(settings.estimate, measured, machine)
    return measured


def _recipe(settings: FlowTraining | VarNetTraining, replayed: bool) -> Recipe:
    if isinstance(settings, VarNetTraining):
        return varnet_recipe(settings.network, replayed=replayed)
    if settings.estimate is not None:
        return around_recipe(settings.network, replayed=replayed)
    return flow_recipe(settings.network, compiled=settings.training.compile)


def _around_estimates(
    weights: Path, cases: tuple[MeasuredCases, MeasuredCases], machine: Machine | None
) -> tuple[EstimatedCases, EstimatedCases]:
    import torch

    net = load(locate(weights))
    if not isinstance(net, VarNet):
        raise InputError(f"estimate names {weights}, which is no variational network; name one")
    on_gpu = (machine or Machine()).accelerator != "cpu" and torch.cuda.is_available()
    quiet = machine is not None and not machine.progress
    net = net.to("cuda" if on_gpu else "cpu")
    training, validation = (EstimatedCases.of(part, net, quiet=quiet) for part in cases)
    return training, validation


def _is_one(machine: Machine | None) -> bool:
    """Whether one GPU may train, and no other process beside it."""
    machine = machine or Machine()
    may_be_gpu = machine.accelerator in ("auto", "gpu", "cuda")
    return may_be_gpu and machine.devices * machine.nodes == 1


def _resident(cases: Dataset, machine: Machine | None, workers: int) -> Dataset:
    """Cases in memory go to the one GPU that trains, where they fit and nobody loads for it."""
    import torch

    if not (isinstance(cases, InMemory) and _is_one(machine) and workers == 0):
        return cases
    if not torch.cuda.is_available():
        return cases
    size = sum(item.image.nbytes for item in cases.items)
    return cases.to("cuda") if size < torch.cuda.mem_get_info()[0] / 4 else cases
