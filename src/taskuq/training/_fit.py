"""Training from a configuration."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from taskuq._config import read_config, read_toml, to_toml_table
from taskuq._io import write_json
from taskuq.errors import InputError, MachineError, first_line, is_out_of_memory
from taskuq.training._checkpoints import RESUME, is_finished, mark_finished, prepare_folder
from taskuq.training._config import Recipe, TrainingConfig
from taskuq.training._determinism import DeviceLoader, EpochSampler, preload, seeded
from taskuq.training._networks import NETWORKS
from taskuq.training._weights import load_weights, save_weights

if TYPE_CHECKING:
    from taskuq.training._checkpoints import Checkpoint


def _make_trainer(config: TrainingConfig, machine: TrainerOptions, callbacks: list[Any]) -> Any:
    """Build the Lightning Trainer."""
    import pytorch_lightning as pl
    from lightning_fabric.utilities.exceptions import MisconfigurationException

    from taskuq.training._checkpoints import SafetensorsIO

    try:
        return pl.Trainer(
            accelerator=machine.accelerator,
            devices=machine.devices,
            num_nodes=machine.nodes,
            strategy="ddp" if machine.processes > 1 else "auto",
            max_epochs=config.epochs,
            precision=config.precision,
            accumulate_grad_batches=config.accumulate,
            deterministic=config.deterministic,
            # Our order knows the processes itself, and stays the same when a training is resumed.
            use_distributed_sampler=False,
            callbacks=callbacks,
            logger=False,
            plugins=[SafetensorsIO()],
            enable_checkpointing=False,
            enable_progress_bar=machine.progress,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
    except MisconfigurationException as error:
        raise InputError(
            f"{machine.devices} × {machine.accelerator} cannot be used here "
            f"({' '.join(str(error).split()):.160}); give another --accelerator or fewer --devices",
            code="dependency.missing",
        ) from None


@contextmanager
def _silence_lightning() -> Iterator[None]:
    """Silence irrelevant Lightning messages."""
    log = logging.getLogger("pytorch_lightning")
    level = log.level
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="pytorch_lightning")
        # A machine that has SLURM may still train without it.
        warnings.filterwarnings("ignore", message="The `srun` command", category=UserWarning)
        # Lightning 2.6 with torch 2.13: a name that moved.
        warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
        log.setLevel(logging.WARNING)
        try:
            yield
        finally:
            log.setLevel(level)


@runtime_checkable
class _MultiStage(Protocol):
    """Settings of a training that needs other networks first."""

    def stages(
        self,
        cases: tuple[Any, ...],
        folder: Path,
        *,
        machine: TrainerOptions,
        fresh: bool,
        steps: int | None,
    ) -> tuple[Any, ...]:
        """Train them, in folders of their own, and return the cases that they leave."""


@runtime_checkable
class _SplitWriter(Protocol):
    """Settings whose data leave a shared split file."""

    def open_unstored(self) -> Any:
        """Open the data for ``prepare`` and leave nothing; what is stored is still agreed with."""


@contextmanager
def _explain_interrupt(keep: Checkpoint | None) -> Iterator[None]:
    """Add the resume command to an interruption."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stopped:
        # Lightning turns Ctrl-C into an exit and ignores a second one.
        is_pressed = isinstance(stopped.__context__, KeyboardInterrupt)
        if is_pressed and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)
        ended = KeyboardInterrupt() if is_pressed else stopped
        if keep is not None:
            ended.add_note(keep.left())
        raise ended from None


def _warn_short_warmup(config: TrainingConfig, cases: int) -> str | None:
    """Warn if training ends within the warm-up."""
    steps = config.epochs * max(1, cases // config.batch // config.accumulate)
    if config.warmup <= steps:
        return None
    return (
        f"the rate rises for {config.warmup} steps (training.warmup), and the training has "
        f"{steps}: it hardly learns; lower warmup, or train longer"
    )


# How many steps tell what a training takes.
PROBES = 5


@dataclass(frozen=True)
class TrainerOptions:
    """Accelerator, devices and nodes of a training."""

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


class _TrainingSettings(Protocol):
    """Protocol of the settings of a training."""

    @property
    def training(self) -> TrainingConfig:
        """_TrainingSettings of the training engine."""

    def prepare(self, machine: TrainerOptions, data: Any = None) -> tuple[Any, ...]:
        """Cases to train on and to validate by, by (epoch, index); others may follow."""

    def recipe(self, cases: tuple[Any, ...], machine: TrainerOptions) -> Recipe:
        """Return the recipe for the cases of :meth:`prepare`."""


def train(
    settings: _TrainingSettings,
    folder: Path | str,
    *,
    machine: TrainerOptions | None = None,
    fresh: bool = False,
    data: Any = None,
    cases: tuple[Any, ...] | None = None,
    steps: int | None = None,
) -> Path:
    """Train the network that settings describe and return its best weights."""
    machine = machine or TrainerOptions()
    if cases is None:
        cases = settings.prepare(machine, data)
    seen = _precision(cases[0])
    if isinstance(settings, _MultiStage):
        where = Path(folder)
        cases = settings.stages(cases, where, machine=machine, fresh=fresh, steps=steps)
    with seeded(settings.training.seed):
        recipe = settings.recipe(cases, machine)
    return _fit(
        recipe,
        cases[0],
        cases[1],
        settings.training,
        folder,
        settings={**to_toml_table(settings), **seen},
        machine=machine,
        fresh=fresh,
        steps=steps,
    )


def _precision(cases: Any) -> dict[str, Any]:
    """A table for the precision of images, where they were stored: a training keeps to one."""
    precision = getattr(cases, "precision", None)
    return {} if precision is None else {"images": {"precision": precision}}


def _fit(
    recipe: Recipe,
    training: TorchDataset[Any],
    validation: TorchDataset[Any],
    config: TrainingConfig,
    folder: Path | str,
    *,
    settings: dict[str, Any] | None = None,
    machine: TrainerOptions | None = None,
    fresh: bool = False,
    steps: int | None = None,
) -> Path:
    """Train a recipe, leave its weights in a folder and return the best."""
    from taskuq.training._checkpoints import Checkpoint
    from taskuq.training._module import read_timing

    machine, folder = machine or TrainerOptions(), Path(folder)
    _refuse_impossible(config, machine, training, steps)
    settings, earlier = settings or {}, None
    if recipe.before is not None and (fresh or steps or not (folder / RESUME).exists()):
        first, how = recipe.before
        part = folder / "pretrain"
        with _unfrozen(first.network):
            best = _fit(
                first, training, validation, how, part,
                settings=settings, machine=machine, fresh=fresh, steps=steps,
            )  # fmt: skip
            load_weights(first.network, best)
        # The first process writes it, and the others may be here before.
        earlier = read_timing(part) if is_first_process() else None
    settings = settings if steps is None else {**settings, "trial": {"steps": steps}}
    resume = prepare_folder(folder, settings, fresh=fresh)
    best = folder / "best.safetensors"
    if best.exists() and is_finished(folder, config.epochs):
        _tell(f"{folder} is trained already; --fresh trains it again", machine)
        return best
    if steps is None and (said := _warn_short_warmup(config, len(training))) is not None:  # type: ignore[arg-type]
        _tell(said, machine)
    notes = {key: settings[key] for key in settings if key != "network"}
    keep = Checkpoint(recipe, folder, config.keep_every, notes, config.patience, config.minutes)
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
        mark_finished(folder, config.epochs)
    return best


def _estimate_training_cost(
    recipe: Recipe,
    training: TorchDataset[Any],
    validation: TorchDataset[Any],
    config: TrainingConfig,
    *,
    machine: TrainerOptions | None = None,
    steps: int = PROBES,
    earlier: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Time a few steps and project the full training."""
    machine = machine or TrainerOptions()
    _refuse_impossible(config, machine, training, steps)
    if recipe.before is not None:
        first, how = recipe.before
        with _unfrozen(first.network):
            earlier = _estimate_training_cost(
                first, training, validation, how, machine=machine, steps=steps
            )
    return _loop(recipe, training, validation, config, machine, steps=steps, before=earlier)


def _loop(
    recipe: Recipe,
    training: TorchDataset[Any],
    validation: TorchDataset[Any],
    config: TrainingConfig,
    machine: TrainerOptions,
    *,
    steps: int | None,
    before: dict[str, Any] | None,
    keep: Checkpoint | None = None,
    resume: Path | None = None,
) -> dict[str, Any]:
    """The one loop of training, whether it is kept or only timed; returns what it took."""
    # Lightning takes seconds to import, and sets the level of its log, which quiet lowers.
    from taskuq.training._module import StepTimer, TrainingModule

    looked_at = None if steps is None else steps * config.batch
    batch = _batch_per_process(config, machine, len(training))  # type: ignore[arg-type]
    loaders = (
        _loader(training, config, machine, recipe, batch, seed=config.seed),
        _loader(validation, config, machine, recipe, batch, seed=None, most=looked_at),
    )
    timing = StepTimer(
        recipe.kind,
        config,
        validation_steps=-(-len(validation) // config.batch),  # type: ignore[arg-type]
        folder=None if keep is None else keep.folder,
        steps=steps,
        before=before,
    )
    module = TrainingModule(recipe, config)
    is_shared = machine.processes > 1
    shared = module.layers.of(recipe.network) if is_shared else nullcontext()
    with _silence_lightning(), seeded(config.seed), shared:
        callbacks = [timing] if keep is None else [keep, timing]
        trainer = _make_trainer(config, machine, callbacks)
        if trainer.world_size != machine.processes:
            # Lightning takes the number of a SLURM step's tasks for that of processes.
            raise InputError(
                f"{machine.processes} processes were asked for and the launcher started "
                f"{trainer.world_size}; use --engine slurm, or one task of srun for each process",
                code="option.conflict",
            )
        try:
            with _explain_interrupt(keep):
                trainer.fit(module, *loaders, ckpt_path=None if resume is None else str(resume))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise MachineError(
                f"memory ran out while batches of {batch} were trained on "
                f"({first_line(error):.120}); give a smaller training.batch, or more devices"
            ) from error
    return timing.record


def _tell(sentence: str, machine: TrainerOptions) -> None:
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
    machine: TrainerOptions,
    recipe: Recipe,
    batch: int,
    *,
    seed: int | None,
    most: int | None = None,
) -> DataLoader[Any] | DeviceLoader:
    length = len(cases)  # type: ignore[arg-type]
    if length == 0:
        raise InputError(
            "a part of the data has no cases; give more data or another split", code="units.few"
        )
    order = EpochSampler(length, seed, batch=config.batch, most=most)
    on_gpu = machine.may_be_one_gpu and torch.cuda.is_available()
    stock = preload(cases, config.feed, on_gpu=on_gpu, is_alone=machine.processes == 1)
    if stock is not None:
        return DeviceLoader(stock, order, batch)
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
    config: TrainingConfig, machine: TrainerOptions, cases: TorchDataset[Any], steps: int | None
) -> None:
    """Refuse what cannot be trained, before anything is written."""
    if steps is not None and steps < 1:
        raise InputError(f"{steps} steps were asked for; take at least 1", code="value.invalid")
    _batch_per_process(config, machine, len(cases))  # type: ignore[arg-type]
    if machine.accelerator != "cpu":  # which is always there
        with _silence_lightning():
            _make_trainer(config, machine, [])


def _batch_per_process(config: TrainingConfig, machine: TrainerOptions, cases: int) -> int:
    """Return the batch size of each process."""
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


def train_config(
    kind: str,
    config: Path | str,
    folder: Path | str,
    *,
    machine: TrainerOptions | None = None,
    fresh: bool = False,
    steps: int | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Path:
    """Train the network of a TOML file."""
    network, machine = NETWORKS[kind], machine or TrainerOptions()
    settings = read_config(network.training, config)
    cases = settings.prepare(machine)
    path = train(settings, folder, machine=machine, fresh=fresh, cases=cases, steps=steps)
    if steps is not None and is_first_process():
        from taskuq.training._module import format_timing, read_timing

        tell(format_timing(read_timing(path.parent)))
    if network.judge is not None and is_first_process():
        from taskuq.report.figures import draw_record

        record = network.judge(settings, path, cases)
        write_json(path.parent / "quality.json", record)
        draw_record(record, path.parent, endings=(".svg",))
        for line in [] if network.table is None else network.table(record):
            tell(line)
    return path


def foresee_training(
    kind: str, config: Path | str, *, machine: TrainerOptions | None = None, steps: int = PROBES
) -> dict[str, Any]:
    """Take a few steps of the training that a TOML file describes; nothing is kept."""
    machine = machine or TrainerOptions()
    settings = read_config(NETWORKS[kind].training, config)
    start = time.perf_counter()
    data = settings.open_unstored() if isinstance(settings, _SplitWriter) else None
    cases = settings.prepare(machine, data)
    prepared = time.perf_counter() - start
    with TemporaryDirectory() as folder:
        if isinstance(settings, _MultiStage):
            there = Path(folder)
            cases = settings.stages(cases, there, machine=machine, fresh=False, steps=steps)
            _hand_over(there)
        earlier = _one_after_another(Path(folder))
        with seeded(settings.training.seed):
            recipe = settings.recipe(cases, machine)
    how = settings.training
    record = _estimate_training_cost(
        recipe, cases[0], cases[1], how, machine=machine, steps=steps, earlier=earlier
    )
    return {**record, "prepare_s": prepared}


def _hand_over(folder: Path) -> None:
    """Give all processes the files that the first one, which alone writes, has in its folder."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return
    files = {}
    if is_first_process():
        parts = (path for path in folder.rglob("*") if path.is_file())
        files = {str(path.relative_to(folder)): path.read_bytes() for path in parts}
    handed = [files]
    distributed.broadcast_object_list(handed)
    for name, content in handed[0].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _one_after_another(folder: Path) -> dict[str, Any] | None:
    from taskuq.training._module import projected_hours, read_timing

    earlier: dict[str, Any] | None = None
    for part in sorted(path for path in folder.iterdir() if path.is_dir()):
        record = {**read_timing(part), "before": earlier}
        earlier = {**record, "projected_hours": projected_hours(record)}
    return earlier
