"""Train a recipe: on one process or many, from the start or from where it was killed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from taskuq.errors import InputError, MachineError, first_line, is_out_of_memory
from taskuq.protocols import HasPrecision
from taskuq.settings import read_toml, to_table
from taskuq.training.config import TrainingConfig
from taskuq.training.feed import Feed, stock_of
from taskuq.training.folder import RESUME, begin, finish, is_finished
from taskuq.training.lightning import quiet, trainer_of
from taskuq.training.order import EpochOrder
from taskuq.training.recipe import Recipe
from taskuq.training.seeds import own_randomness
from taskuq.training.stages import Staged
from taskuq.training.telling import late_rate, telling_what_is_kept
from taskuq.weights.files import load_weights, save_weights

if TYPE_CHECKING:
    from taskuq.training.keep import Keep

# How many steps tell what a training takes.
PROBES = 5


@dataclass(frozen=True)
class Machine:
    """On what to train.

    Arguments:
        accelerator: ``"auto"``, ``"cpu"``, ``"gpu"`` or ``"mps"``.
        devices: Processes on each node, one for each device.
        nodes: How many nodes.
        progress: Whether to draw a progress bar on stderr.

    Example:
        >>> Machine(accelerator="cpu", devices=2).nodes
        1
    """

    accelerator: str = "auto"
    devices: int = 1
    nodes: int = 1
    progress: bool = True

    @property
    def processes(self) -> int:
        """Number of processes that share every batch."""
        return self.devices * self.nodes

    @property
    def may_be_one_gpu(self) -> bool:
        """True if one GPU may train in a single process."""
        may_be_gpu = self.accelerator in ("auto", "gpu", "cuda")
        return may_be_gpu and self.processes == 1


class Settings(Protocol):
    """Settings of a training, read from its TOML file."""

    @property
    def training(self) -> TrainingConfig:
        """Settings of the training engine."""

    def prepare(self, machine: Machine, data: Any = None) -> tuple[Any, ...]:
        """Cases to train on and to validate by, by (epoch, index); others may follow."""

    def recipe(self, cases: tuple[Any, ...], machine: Machine) -> Recipe:
        """Return the recipe for the cases of :meth:`prepare`."""


def train(
    settings: Settings,
    folder: Path | str,
    *,
    machine: Machine | None = None,
    fresh: bool = False,
    data: Any = None,
    cases: tuple[Any, ...] | None = None,
    steps: int | None = None,
) -> Path:
    """Train the network that settings describe and return its best weights."""
    machine = machine or Machine()
    if cases is None:
        cases = settings.prepare(machine, data)
    seen = _precision(cases[0])
    if isinstance(settings, Staged):
        where = Path(folder)
        cases = settings.stages(cases, where, machine=machine, fresh=fresh, steps=steps)
    with own_randomness(settings.training.seed):
        recipe = settings.recipe(cases, machine)
    return fit(
        recipe,
        cases[0],
        cases[1],
        settings.training,
        folder,
        settings={**to_table(settings), **seen},
        machine=machine,
        fresh=fresh,
        steps=steps,
    )


def _precision(cases: Any) -> dict[str, Any]:
    """A table for the precision of images, where they were stored: a training keeps to one."""
    precision = cases.precision if isinstance(cases, HasPrecision) else None
    return {} if precision is None else {"images": {"precision": precision}}


def fit(
    recipe: Recipe,
    training: TorchDataset[Any],
    validation: TorchDataset[Any],
    config: TrainingConfig,
    folder: Path | str,
    *,
    settings: dict[str, Any] | None = None,
    machine: Machine | None = None,
    fresh: bool = False,
    steps: int | None = None,
) -> Path:
    """Train a recipe, leave its weights in a folder and return the best.

    The folder receives ``best`` and ``last`` as .safetensors with a .toml each, ``metrics.csv``,
    ``timing.json``, the configuration, a state, and in the end ``finished.json``. Called again
    after it was killed, the training resumes after its last whole epoch and ends with the same
    bits as if nothing had happened; called again after it has ended, it does nothing. A
    part that is trained before has all of this in the folder ``pretrain``.

    A trial stops after a few steps, validates by as many batches, and leaves the same files, which
    say that it was one. It always begins anew, and no training resumes from it.
    """
    from taskuq.training.keep import Keep
    from taskuq.training.timing import read_timing

    machine, folder = machine or Machine(), Path(folder)
    _refuse_impossible(config, machine, training, steps)
    settings, earlier = settings or {}, None
    if recipe.before is not None and (fresh or steps or not (folder / RESUME).exists()):
        first, how = recipe.before
        part = folder / "pretrain"
        with _unfrozen(first.network):
            best = fit(
                first, training, validation, how, part,
                settings=settings, machine=machine, fresh=fresh, steps=steps,
            )  # fmt: skip
            load_weights(first.network, best)
        # The first process writes it, and the others may be here before.
        earlier = read_timing(part) if is_first_process() else None
    settings = settings if steps is None else {**settings, "trial": {"steps": steps}}
    resume = begin(folder, settings, fresh=fresh)
    best = folder / "best.safetensors"
    if best.exists() and is_finished(folder, config.epochs):
        _tell(f"{folder} is trained already; --fresh trains it again", machine)
        return best
    if steps is None and (said := late_rate(config, len(training))) is not None:  # type: ignore[arg-type]
        _tell(said, machine)
    notes = {key: settings[key] for key in settings if key != "network"}
    keep = Keep(recipe, folder, config.keep_every, notes, config.patience, config.minutes)
    _loop(
        recipe, training, validation, config, machine,
        steps=steps, before=earlier, keep=keep, resume=resume,
    )  # fmt: skip
    if recipe.after is not None and is_first_process():
        load_weights(recipe.network, best)
        noted = recipe.after() or {}
        card = read_toml(best.with_suffix(".toml"))
        notes = {key: card[key] for key in card if key not in ("kind", "network")} | dict(noted)
        save_weights(recipe.network, best, kind=recipe.kind, config=recipe.config, notes=notes)
    if is_first_process():
        finish(folder, config.epochs)
    return best


def foresee(
    recipe: Recipe,
    training: TorchDataset[Any],
    validation: TorchDataset[Any],
    config: TrainingConfig,
    *,
    machine: Machine | None = None,
    steps: int = PROBES,
    earlier: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Take a few steps as :func:`fit` does and project the cost of all; nothing is kept."""
    machine = machine or Machine()
    _refuse_impossible(config, machine, training, steps)
    if recipe.before is not None:
        first, how = recipe.before
        with _unfrozen(first.network):
            earlier = foresee(first, training, validation, how, machine=machine, steps=steps)
    return _loop(recipe, training, validation, config, machine, steps=steps, before=earlier)


def _loop(
    recipe: Recipe,
    training: TorchDataset[Any],
    validation: TorchDataset[Any],
    config: TrainingConfig,
    machine: Machine,
    *,
    steps: int | None,
    before: dict[str, Any] | None,
    keep: Keep | None = None,
    resume: Path | None = None,
) -> dict[str, Any]:
    """The one loop of training, whether it is kept or only timed; returns what it took."""
    # Lightning takes seconds to import, and sets the level of its log, which quiet lowers.
    from taskuq.training.module import Training
    from taskuq.training.timing import Timing

    looked_at = None if steps is None else steps * config.batch
    batch = own_batch(config, machine, len(training))  # type: ignore[arg-type]
    loaders = (
        _loader(training, config, machine, recipe, batch, seed=config.seed),
        _loader(validation, config, machine, recipe, batch, seed=None, most=looked_at),
    )
    timing = Timing(
        recipe.kind,
        config,
        validation_steps=-(-len(validation) // config.batch),  # type: ignore[arg-type]
        folder=None if keep is None else keep.folder,
        steps=steps,
        before=before,
    )
    module = Training(recipe, config)
    is_shared = machine.processes > 1
    shared = module.layers.of(recipe.network) if is_shared else nullcontext()
    with quiet(), own_randomness(config.seed), shared:
        callbacks = [timing] if keep is None else [keep, timing]
        trainer = trainer_of(config, machine, callbacks)
        if trainer.world_size != machine.processes:
            # Lightning takes the number of a SLURM step's tasks for that of processes.
            raise InputError(
                f"{machine.processes} processes were asked for and the launcher started "
                f"{trainer.world_size}; use --engine slurm, or one task of srun for each process",
                code="option.conflict",
            )
        try:
            with telling_what_is_kept(keep):
                trainer.fit(module, *loaders, ckpt_path=None if resume is None else str(resume))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise MachineError(
                f"memory ran out while batches of {batch} were trained on "
                f"({first_line(error):.120}); give a smaller training.batch, or more devices"
            ) from error
    return timing.record


def _tell(sentence: str, machine: Machine) -> None:
    """Print a sentence where a progress bar is drawn, too."""
    if machine.progress and is_first_process():
        sys.stderr.write(f"{sentence}\n")


def is_first_process() -> bool:
    """Return True in the first process of a distributed training."""
    from pytorch_lightning.utilities import rank_zero_only

    return int(getattr(rank_zero_only, "rank", 0)) == 0


@contextmanager
def _unfrozen(network: nn.Module) -> Iterator[None]:
    """Train all weights of a part for a while, also those that are frozen in the whole."""
    frozen = [weight for weight in network.parameters() if not weight.requires_grad]
    network.requires_grad_(True)
    try:
        yield
    finally:
        for weight in frozen:
            weight.requires_grad_(False)


def _loader(
    cases: TorchDataset[Any],
    config: TrainingConfig,
    machine: Machine,
    recipe: Recipe,
    batch: int,
    *,
    seed: int | None,
    most: int | None = None,
) -> DataLoader[Any] | Feed:
    length = len(cases)  # type: ignore[arg-type]
    if length == 0:
        raise InputError(
            "a part of the data has no cases; give more data or another split", code="units.few"
        )
    order = EpochOrder(length, seed, batch=config.batch, most=most)
    on_gpu = machine.may_be_one_gpu and torch.cuda.is_available()
    stock = stock_of(cases, config.feed, on_gpu=on_gpu, is_alone=machine.processes == 1)
    if stock is not None:
        return Feed(stock, order, batch)
    return DataLoader(
        cases,
        batch_size=batch,
        sampler=order,
        num_workers=config.workers,
        persistent_workers=config.workers > 0,
        # What is read elsewhere goes to a GPU while that computes; without it, in 10 to 20 ms more.
        pin_memory=config.workers > 0 and torch.cuda.is_available(),
        collate_fn=recipe.collate,
    )


def _refuse_impossible(
    config: TrainingConfig, machine: Machine, cases: TorchDataset[Any], steps: int | None
) -> None:
    """Refuse what cannot be trained, before anything is written."""
    if steps is not None and steps < 1:
        raise InputError(f"{steps} steps were asked for; take at least 1", code="value.invalid")
    own_batch(config, machine, len(cases))  # type: ignore[arg-type]
    if machine.accelerator != "cpu":  # which is always there
        with quiet():
            trainer_of(config, machine, [])


def own_batch(config: TrainingConfig, machine: Machine, cases: int) -> int:
    """Return how many cases of a batch each process takes; refuse a batch that cannot be shared."""
    processes = machine.processes
    if config.batch % processes:
        raise InputError(
            f"a batch of {config.batch} cannot be shared by {processes} processes; give a batch "
            "that they divide, or another number of devices",
            code="option.conflict",
        )
    if processes > 1 and cases < config.batch:
        raise InputError(
            f"{cases} training cases are fewer than a batch of {config.batch}; train on one "
            "device, or give a smaller batch",
            code="units.few",
        )
    return config.batch // processes
