"""Folder of a training run: settings, checkpoints, resume state and logs."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning_fabric.loggers.tensorboard import TensorBoardLogger
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_lightning.plugins.io import CheckpointIO
from torch import Tensor

from taskuq._config import flatten, read_toml, toml_text
from taskuq._io import atomic_write, reading
from taskuq.errors import InputError
from taskuq.training._config import Recipe, TrainingConfig
from taskuq.training._module import TrainingModule
from taskuq.training._weights import save_tensors

RESUME = "resume.safetensors"
FINISHED, FOLDER_SCHEMA = "finished.json", "taskuq.finished/1"


def prepare_folder(folder: Path, settings: dict[str, Any], *, fresh: bool) -> Path | None:
    """Write the settings; return the checkpoint to resume from, or None."""
    state, path = folder / RESUME, folder / "config.toml"
    stored = read_toml(path) if path.exists() and not fresh else None
    if stored is not None and ("trial" in stored) != ("trial" in settings):
        steps = stored.get("trial", {}).get("steps")
        what = "full training run" if steps is None else f"trial of {steps} steps"
        message = f"{folder} holds a {what}; use another folder, or --overwrite"
        raise InputError(message, code="file.exists")
    if fresh or "trial" in settings:
        for old in (state, path, folder / FINISHED):
            old.unlink(missing_ok=True)
    elif stored is not None and settings and stored != settings:
        before, after = flatten(stored), flatten(settings)
        changed = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
        shown = ", ".join(f"{k}: {before.get(k)} there, {after.get(k)} here" for k in changed[:3])
        text = f"{folder} has another configuration ({shown}); use another folder, or --overwrite"
        raise InputError(text, code="resume.mismatch")
    with atomic_write(path) as partial:
        partial.write_text(toml_text(settings), encoding="utf-8")
    return state if state.exists() else None


def _read_log(path: Path) -> list[dict[str, float]]:
    if not path.exists():
        return []
    with reading(path, "a learning curve", "remove it"), path.open(newline="") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


def _log_epoch(path: Path, row: Mapping[str, float]) -> None:
    """Append an epoch to the log; drop rows of this and later epochs, left by a killed run."""
    rows = [old for old in _read_log(path) if old["epoch"] < row["epoch"]]
    rows.append({name: float(value) for name, value in row.items()})
    with atomic_write(path) as partial, partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**r, "epoch": int(r["epoch"])} for r in rows)


STATE_SCHEMA = "taskuq.state/2"


def _save_state(state: Any, path: Path | str) -> Path:
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps(_to_json(state, tensors, "state"))
    with atomic_write(path) as partial:
        save_file(tensors, partial, metadata={"schema": STATE_SCHEMA, "skeleton": skeleton})
    return Path(path)


def _load_state(path: Path | str) -> Any:
    from safetensors import safe_open

    with reading(path, "a training state", "train with --overwrite"):
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if header.get("schema") != STATE_SCHEMA:
            raise InputError(f"{path} is not {STATE_SCHEMA}; train again", code="file.schema")
        return _from_json(json.loads(header["skeleton"]), tensors)


def _to_json(value: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """Return a JSON value; other types become {"type": ...}, and tensors go into ``tensors``."""
    if isinstance(value, Tensor):
        # safetensors refuses two names of one storage.
        tensors[name] = value.detach().cpu().clone().contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        keys = [_to_json(k, tensors, f"{name}.key") for k in value]
        values = [_to_json(v, tensors, f"{name}.{k}") for k, v in value.items()]
        return {"dict": [list(pair) for pair in zip(keys, values, strict=True)]}
    if isinstance(value, list | tuple):
        parts = [_to_json(v, tensors, f"{name}.{i}") for i, v in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": parts}
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}  # exact, also for infinity and NaN
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{name} is of type {type(value).__name__}, which is not plain data")


def _from_json(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "float":
        return float.fromhex(content)
    if kind == "dict":
        return {_from_json(k, tensors): _from_json(v, tensors) for k, v in content}
    parts = [_from_json(v, tensors) for v in content]
    return parts if kind == "list" else tuple(parts)


class SafetensorsIO(CheckpointIO):
    """Lightning CheckpointIO that stores checkpoints and weights as safetensors, not pickle."""

    def __init__(self, recipe: Recipe | None = None, notes: dict[str, Any] | None = None) -> None:
        self.recipe, self.notes = recipe, notes or {}

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        path = Path(path)
        assert self.recipe is not None
        state = checkpoint["state_dict"].items()  # the average, where weights are averaged
        save_tensors(
            {name.removeprefix("network."): x for name, x in state if name.startswith("network.")},
            path.with_stem("last") if path.name == RESUME else path,
            kind=self.recipe.kind, config=self.recipe.config,
            notes={**self.notes, "reached": checkpoint["reached"]},
        )  # fmt: skip
        if path.name == RESUME:
            _save_state(checkpoint, path)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        state: dict[str, Any] = _load_state(path)
        return state

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


class _Checkpoint(ModelCheckpoint):
    FILE_EXTENSION = ".safetensors"

    def __init__(self, folder: Path, name: str, **options: Any) -> None:
        super().__init__(
            folder, name, enable_version_counter=False, save_on_train_epoch_end=True, **options
        )
        self.path = folder / f"{name}{self.FILE_EXTENSION}"

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        is_last = trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs
        if is_last and self.monitor is None and self._last_global_step_saved != trainer.global_step:
            trainer.save_checkpoint(self.path)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.path.exists():
            super().load_state_dict({**state_dict, "dirpath": self.dirpath})


def folder_callbacks(recipe: Recipe, config: TrainingConfig, folder: Path) -> list[Callback]:
    """Return the callbacks that log a run and write its weights and resume states to a folder."""
    monitor = f"validation_{recipe.monitor}"
    stops = EarlyStopping(
        monitor, patience=config.patience, mode=recipe.mode, check_finite=False,
        check_on_train_epoch_end=True,
    )  # fmt: skip
    return [
        *([stops] if config.patience else []),
        _EpochLog(folder),
        _Checkpoint(folder, "best", monitor=monitor, mode=recipe.mode),
        _Checkpoint(folder, Path(RESUME).stem, every_n_epochs=config.checkpoint_every),
    ]


class _EpochLog(Callback):
    """Log with one row per epoch; unlike with CSVLogger, a resumed training appends to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.board: TensorBoardLogger | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epoch = trainer.current_epoch
        # Killed between its last state and its end.
        stops = [stop for stop in trainer.early_stopping_callbacks if stop is not None]
        trainer.should_stop |= any(stop.stopped_epoch for stop in stops)
        if not trainer.is_global_zero:
            return
        if epoch and trainer.progress_bar_callback is not None:
            sys.stderr.write(f"{self.folder}: resuming after {epoch} epochs\n")
        with suppress(ModuleNotFoundError):
            self.board = TensorBoardLogger(
                self.folder, "tensorboard", "", purge_step=epoch or None, flush_secs=5,
                filename_suffix=f".{epoch}",
            )  # fmt: skip

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.epoch_start = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        mean_loss = pl_module.mean_loss()
        if not trainer.is_global_zero:
            return
        metrics = trainer.callback_metrics.items()
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        row = {
            "step": trainer.global_step,
            "training_loss": mean_loss,
            **{k: float(v) for k, v in metrics if k.startswith("valid")},
            "learning_rate": rate * pl_module.warmup_factor(trainer.global_step),
            "seconds": round(time.monotonic() - self.epoch_start, 3),
        }
        _log_epoch(self.folder / "metrics.csv", {"epoch": trainer.current_epoch, **row})
        if self.board is not None:
            self.board.log_metrics(row, trainer.current_epoch)
            self.board.save()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.board is not None:
            self.board.finalize("success")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.on_train_end(trainer, pl_module)


def interrupted(folder: Path, every: int) -> str:
    # Ctrl-C may come between the state's file and the next statement: only the file counts.
    if (folder / RESUME).exists():
        state = f"{folder} holds the state after {_load_state(folder / RESUME)['epoch'] + 1} epochs"
        return f"interrupted; {state}; rerun the same command to resume"
    state = f"which is written every {every} epochs (training.checkpoint_every)"
    return f"interrupted; {folder} has no state yet, {state}; rerun to start again"
