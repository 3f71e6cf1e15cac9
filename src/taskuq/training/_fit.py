"""Training from a configuration."""

from __future__ import annotations

import logging
import re
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
from typing import Any, Protocol

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.utilities import rank_zero_only
from torch import distributed, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from taskuq._config import read_config, read_toml, to_toml_table
from taskuq._io import LOCK, file_lock, read_json, write_json
from taskuq.errors import InputError, MachineError, first_line, is_out_of_memory
from taskuq.training._checkpoints import (
    FINISHED,
    FOLDER_SCHEMA,
    RESUME,
    SafetensorsIO,
    folder_callbacks,
    interrupted,
    prepare_folder,
)
from taskuq.training._config import Recipe, TrainingConfig
from taskuq.training._determinism import DeviceLoader, EpochSampler, preload, seeded
from taskuq.training._module import (
    Averaging,
    StepTimer,
    TrainingModule,
    format_timing,
    projected_hours,
    read_timing,
)
from taskuq.training._networks import NETWORKS
from taskuq.training._weights import load_weights, save_weights


def _make_trainer(
    config: TrainingConfig, machine: TrainerOptions, callbacks: list[Any], files: SafetensorsIO
) -> Any:
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
            # EpochSampler shards batches itself, and resumes in the same order.
            use_distributed_sampler=False,
            callbacks=callbacks,
            logger=False,
            plugins=[files],
            enable_checkpointing=bool(callbacks),
            enable_progress_bar=machine.progress,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
    except MisconfigurationException as error:
        wanted = f"{machine.devices} × {machine.accelerator}"
        message = f"{wanted} is not available ({first_line(error):.160}); use --accelerator cpu"
        raise InputError(message, code="dependency.missing") from None


@contextmanager
def _silence_lightning() -> Iterator[None]:
    log = logging.getLogger("pytorch_lightning")
    level = log.level
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="pytorch_lightning")
        warnings.filterwarnings("ignore", message="The `srun` command", category=UserWarning)
        # Lightning 2.6 with torch 2.13: a name that moved.
        warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
        log.setLevel(logging.WARNING)
        try:
            yield
        finally:
            log.setLevel(level)


# Steps of a dry run.
PROBES = 5
BEST = "best.safetensors"


@dataclass(frozen=True)
class TrainerOptions:
    accelerator: str = "auto"
    devices: int = 1
    nodes: int = 1
    progress: bool = True

    @property
    def processes(self) -> int:
        return self.devices * self.nodes

    @property
    def may_be_one_gpu(self) -> bool:
        return self.accelerator in ("auto", "gpu", "cuda") and self.processes == 1


class _TrainingSettings(Protocol):
    @property
    def training(self) -> TrainingConfig: ...

    def prepare(self, machine: TrainerOptions, data: Any = None) -> tuple[Any, ...]:
        """Return training cases, validation cases and any other arguments of :meth:`recipe`."""

    def recipe(self, cases: tuple[Any, ...], machine: TrainerOptions) -> Recipe:
        """Return network and loss for training on the cases that :meth:`prepare` returned."""


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
    """Train the configured network and return the path of its best weights.

    Args:
        settings: Network, data and optimiser.
        folder: Folder for weights, logs and the resume state.
        machine: Accelerator, devices and nodes.
        fresh: If True, overwrite the training run in the folder instead of resuming it.
        data: Data to use instead of the configured data.
        cases: Results of ``settings.prepare``, if it has run already.
        steps: Number of steps of a trial run; None trains for all epochs.
    """
    machine = machine or TrainerOptions()
    if cases is None:
        cases = settings.prepare(machine, data)
    # A training keeps to one precision of stored images.
    precision = getattr(cases[0], "precision", None)
    images = {} if precision is None else {"images": {"precision": precision}}
    # It may need other networks first, trained in subfolders.
    if (stages := getattr(settings, "stages", None)) is not None:
        cases = stages(cases, Path(folder), machine=machine, fresh=fresh, steps=steps)
        assert cases is not None
    with seeded(settings.training.seed):
        recipe = settings.recipe(cases, machine)
    _fit(
        recipe, cases[0], cases[1], settings.training, Path(folder),
        settings={**to_toml_table(settings), **images}, machine=machine, fresh=fresh, steps=steps,
    )  # fmt: skip
    return Path(folder) / BEST


def _fit(
    recipe: Recipe,
    training: TorchDataset[Any],
    validation: TorchDataset[Any],
    config: TrainingConfig,
    folder: Path | None,
    *,
    machine: TrainerOptions,
    settings: dict[str, Any] | None = None,
    fresh: bool = False,
    steps: int | None = None,
    earlier: dict[str, Any] | None = None,
) -> dict[str, Any]:
    _refuse_impossible(config, machine, training, steps)
    settings = settings or {}
    is_new = folder is None or fresh or bool(steps) or not (folder / RESUME).exists()
    if recipe.pretraining is not None and is_new:
        first, first_config = recipe.pretraining
        stage = None if folder is None else folder / "pretrain"
        with _unfrozen(first.network):
            earlier = _fit(
                first, training, validation, first_config, stage,
                settings=settings, machine=machine, fresh=fresh, steps=steps,
            )  # fmt: skip
            if stage is not None:
                load_weights(first.network, stage / BEST)
    if folder is None:
        return _loop(recipe, training, validation, config, machine, steps=steps, before=earlier)
    settings = settings if steps is None else {**settings, "trial": {"steps": steps}}
    resume = prepare_folder(folder, settings, fresh=fresh)
    best, finished = folder / BEST, folder / FINISHED
    is_finished = best.exists() and finished.exists()
    if is_finished and read_json(finished, FOLDER_SCHEMA).get("epochs") == config.epochs:
        _print(f"{folder} holds a finished training run; use --overwrite to train again", machine)
        # The first process writes it, and the others may be here before.
        return read_timing(folder) if is_first_process() else {}
    planned = config.epochs * max(1, len(training) // config.batch // config.accumulate)  # type: ignore[arg-type]
    if steps is None and config.warmup_steps > planned:
        text = f"training.warmup_steps is {config.warmup_steps}, above {planned} steps; lower it"
        _print(text, machine)
    notes = {key: settings[key] for key in settings if key != "network"}
    timing = _loop(
        recipe, training, validation, config, machine,
        steps=steps, before=earlier, folder=folder, notes=notes, resume=resume,
    )  # fmt: skip
    if not is_first_process():
        return timing
    if recipe.on_end is not None:
        load_weights(recipe.network, best)
        card = {**read_toml(best.with_suffix(".toml")), **(recipe.on_end() or {})}
        notes = {key: card[key] for key in card if key not in ("kind", "network")}
        save_weights(recipe.network, best, kind=recipe.kind, config=recipe.config, notes=notes)
    write_json(finished, {"schema": FOLDER_SCHEMA, "epochs": config.epochs})
    return timing


def _loop(
    recipe: Recipe,
    training: TorchDataset[Any],
    validation: TorchDataset[Any],
    config: TrainingConfig,
    machine: TrainerOptions,
    *,
    steps: int | None,
    before: dict[str, Any] | None,
    folder: Path | None = None,
    notes: dict[str, Any] | None = None,
    resume: Path | None = None,
) -> dict[str, Any]:
    batch = _batch_per_process(config, machine, len(training))  # type: ignore[arg-type]

    def loader(cases: Any, seed: int | None, most: int | None) -> DataLoader[Any] | DeviceLoader:
        if len(cases) == 0:
            raise InputError("training or validation has no cases; use more data", code="units.few")
        order = EpochSampler(len(cases), seed, batch=config.batch, most=most)
        on_gpu = machine.may_be_one_gpu and torch.cuda.is_available()
        stock = preload(cases, config.dataloader, on_gpu=on_gpu, is_alone=machine.processes == 1)
        if stock is not None:
            return DeviceLoader(stock, order, batch)
        return DataLoader(
            cases,
            batch_size=batch,
            sampler=order,
            num_workers=config.workers,
            persistent_workers=config.workers > 0,
            # Copies to the GPU overlap with its computation; 10 to 20 ms a batch otherwise.
            pin_memory=config.workers > 0 and torch.cuda.is_available(),
            collate_fn=recipe.collate,
        )

    most = None if steps is None else steps * config.batch
    loaders = loader(training, config.seed, None), loader(validation, None, most)
    validation_steps = -(-len(validation) // config.batch)  # type: ignore[arg-type]
    timing = StepTimer(recipe.kind, config, validation_steps, folder, steps, before)
    module = TrainingModule(recipe, config)
    shared = module.layers.of(recipe.network) if machine.processes > 1 else nullcontext()
    with _silence_lightning(), seeded(config.seed), shared:
        callbacks: list[Any] = [Averaging(config)] if config.ema or config.average_from else []
        callbacks += [] if folder is None else folder_callbacks(recipe, config, folder)
        files = SafetensorsIO(recipe, notes)
        trainer = _make_trainer(config, machine, [*callbacks, timing], files)
        if trainer.world_size != machine.processes:
            # Lightning starts as many processes as a SLURM step has tasks.
            message = f"{trainer.world_size} processes started, not {machine.processes}; use srun"
            raise InputError(message, code="option.conflict")
        on_interrupt = signal.getsignal(signal.SIGINT)
        try:
            trainer.fit(module, *loaders, ckpt_path=None if resume is None else str(resume))
        except (KeyboardInterrupt, SystemExit) as stopped:
            # Lightning turns Ctrl-C into an exit and ignores a second one.
            is_pressed = isinstance(stopped.__context__, KeyboardInterrupt)
            ended = KeyboardInterrupt() if is_pressed else stopped
            if folder is not None:
                ended.add_note(interrupted(folder, config.checkpoint_every))
            if is_pressed and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, on_interrupt)
            raise ended from None
        except Exception as error:
            if not is_out_of_memory(error):
                raise _worker_error(error) from error.__cause__
            message = f"out of memory ({first_line(error):.120}); reduce training.batch"
            raise MachineError(message) from error
    return timing.record


def _worker_error(error: Exception) -> Exception:
    """Return the error of a data-loading process, rebuilt from the text that torch forwards."""
    found = re.match("Caught (InputError|MachineError) ", str(error))
    if found is None:
        return error
    message = str(error).rpartition(f"{found[1]}: ")[2].strip()
    is_input = found[1] == "InputError"
    return InputError(message, code="file.damaged") if is_input else MachineError(message)


def _print(message: str, machine: TrainerOptions) -> None:
    if machine.progress and is_first_process():
        sys.stderr.write(f"{message}\n")


def is_first_process() -> bool:
    return int(getattr(rank_zero_only, "rank", 0)) == 0


@contextmanager
def _unfrozen(network: nn.Module) -> Iterator[None]:
    frozen = [weight for weight in network.parameters() if not weight.requires_grad]
    network.requires_grad_(True)
    try:
        yield
    finally:
        for weight in frozen:
            weight.requires_grad_(False)


def _refuse_impossible(
    config: TrainingConfig, machine: TrainerOptions, cases: TorchDataset[Any], steps: int | None
) -> None:
    if steps is not None and steps < 1:
        raise InputError(f"steps must be at least 1, got {steps}", code="value.invalid")
    _batch_per_process(config, machine, len(cases))  # type: ignore[arg-type]
    if machine.accelerator != "cpu":
        with _silence_lightning():
            _make_trainer(config, machine, [], SafetensorsIO())


def _batch_per_process(config: TrainingConfig, machine: TrainerOptions, cases: int) -> int:
    processes = machine.processes
    if config.batch % processes:
        message = f"training.batch must be a multiple of {processes}, got {config.batch}"
        raise InputError(message, code="option.conflict")
    if processes > 1 and cases < config.batch:
        text = f"{cases} training cases are fewer than training.batch = {config.batch}; reduce it"
        raise InputError(text, code="units.few")
    return config.batch // processes


def train_config(
    kind: str,
    config: Path | str,
    folder: Path | str,
    *,
    machine: TrainerOptions | None = None,
    fresh: bool = False,
    steps: int | None = None,
    log: Callable[[str], None] = lambda line: None,
    on_record: Callable[[dict[str, Any], Path], None] | None = None,
) -> Path:
    """Train and evaluate the network that a TOML file configures; return the weights file."""
    network, machine = NETWORKS[kind], machine or TrainerOptions()
    settings = read_config(network.training, config)
    only = file_lock(Path(folder) / LOCK, what=str(folder)) if is_first_process() else nullcontext()
    with only:
        cases = settings.prepare(machine)
        path = train(settings, folder, machine=machine, fresh=fresh, cases=cases, steps=steps)
        if steps is not None and is_first_process():
            log(format_timing(read_timing(path.parent)))
        if network.evaluate is not None and is_first_process():
            record = network.evaluate(settings, path, cases)
            write_json(path.parent / "quality.json", record)
            if on_record is not None:
                on_record(record, path.parent)
            for line in [] if network.table is None else network.table(record):
                log(line)
        return path


def estimate_training(
    kind: str, config: Path | str, *, machine: TrainerOptions | None = None, steps: int = PROBES
) -> dict[str, Any]:
    """Time a few training steps of a configuration without saving anything."""
    machine = machine or TrainerOptions()
    settings = read_config(NETWORKS[kind].training, config)
    start = time.perf_counter()
    data = settings.open_parts(is_stored=False) if hasattr(settings, "open_parts") else None
    cases = settings.prepare(machine, data)
    prepared = time.perf_counter() - start
    with TemporaryDirectory() as name:
        folder = Path(name)
        if hasattr(settings, "stages"):
            cases = settings.stages(cases, folder, machine=machine, fresh=False, steps=steps)
            _broadcast_files(folder)
        earlier: dict[str, Any] | None = None
        for part in sorted(path for path in folder.iterdir() if path.is_dir()):
            record = {**read_timing(part), "before": earlier}
            earlier = {**record, "projected_hours": projected_hours(record)}
        with seeded(settings.training.seed):
            recipe = settings.recipe(cases, machine)
    record = _fit(
        recipe, cases[0], cases[1], settings.training, None,
        machine=machine, steps=steps, earlier=earlier,
    )  # fmt: skip
    return {**record, "prepare_s": prepared}


def _broadcast_files(folder: Path) -> None:
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    files = {}
    if is_first_process():
        parts = (path for path in folder.rglob("*") if path.is_file())
        files = {str(path.relative_to(folder)): path.read_bytes() for path in parts}
    received = [files]
    distributed.broadcast_object_list(received)
    for name, content in received[0].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
