"""Folder of a training run: settings, checkpoints, resume state and logs."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.plugins.io import CheckpointIO
from torch import Tensor

from taskuq._config import flatten, read_toml, toml_text
from taskuq._io import atomic_write, make_folder, reading
from taskuq.errors import InputError
from taskuq.training._config import Recipe
from taskuq.training._module import TrainingModule
from taskuq.training._weights import save_weights

RESUME = "resume.safetensors"
FINISHED, FOLDER_SCHEMA = "finished.json", "taskuq.finished/1"


def prepare_folder(folder: Path, settings: dict[str, Any], *, fresh: bool) -> Path | None:
    """Write the settings; return the checkpoint to resume from, or None."""
    state, path = folder / RESUME, folder / "config.toml"
    stored = read_toml(path) if path.exists() and not fresh else None
    if stored is not None and ("trial" in stored) != ("trial" in settings):
        steps = stored.get("trial", {}).get("steps")
        what = "training" if steps is None else f"trial of {steps} steps"
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
    """Append an epoch to the log, replacing this and later epochs of a killed run."""
    rows = [old for old in _read_log(path) if old["epoch"] < row["epoch"]]
    rows.append({name: float(value) for name, value in row.items()})
    with atomic_write(path) as partial, partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**r, "epoch": int(r["epoch"])} for r in rows)


class _TensorBoardLog:
    def __init__(self, folder: Path, epoch: int) -> None:
        self.records: Any = None
        try:
            from tensorboardX.proto import event_pb2
            from tensorboardX.record_writer import RecordWriter
        except ImportError:
            return
        make_folder(folder)
        # The time has whole seconds only: a number makes the name unique.
        number = len(list(folder.iterdir()))
        self.event = event_pb2.Event
        self.records = RecordWriter(str(folder / f"events.out.tfevents.{time.time():.0f}.{number}"))
        self._write(file_version="brain.Event:2")
        if epoch:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(step=epoch, session_log=start)

    def add(self, row: Mapping[str, float]) -> None:
        values = [{"tag": k, "simple_value": v} for k, v in row.items() if k != "epoch"]
        self._write(step=int(row["epoch"]), summary={"value": values})

    def close(self) -> None:
        if self.records is not None:
            self.records.close()

    def _write(self, **content: Any) -> None:
        # tensorboardX's writer is a thread that loses entries when killed.
        if self.records is not None:
            self.records.write(self.event(wall_time=time.time(), **content).SerializeToString())
            self.records.flush()


STATE_SCHEMA = "taskuq.state/2"


def _save_state(state: Any, path: Path | str) -> Path:
    """Write nested dictionaries, lists and tuples of tensors and JSON values."""
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
    """Return JSON values, with {"kind": [...]} for types that JSON lacks."""
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
    """Lightning CheckpointIO without pickle."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        _save_state(checkpoint, path)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        state: dict[str, Any] = _load_state(path)
        return state

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


class Checkpoint(Callback):
    def __init__(
        self, recipe: Recipe, folder: Path, every: int, notes: dict[str, Any], patience: int = 0
    ) -> None:
        self.recipe, self.folder, self.every, self.notes = recipe, folder, every, notes
        self.patience, self.since_best = patience, 0
        self.best: float | None = None
        self.events: _TensorBoardLog | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.should_stop |= 0 < self.patience <= self.since_best
        if not trainer.is_global_zero:
            return
        if trainer.current_epoch and trainer.progress_bar_callback is not None:
            sys.stderr.write(f"{self.folder}: resuming after {trainer.current_epoch} epochs\n")
        self.events = _TensorBoardLog(self.folder / "tensorboard", trainer.current_epoch)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.events is not None:
            self.events.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.on_train_end(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.epoch_start = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking:
            return
        epoch = trainer.current_epoch
        value = float(trainer.callback_metrics[f"validation_{self.recipe.monitor}"])
        sign = -1 if self.recipe.mode == "min" else 1
        is_best = self.best is None or sign * value > sign * self.best
        self.best = value if is_best else self.best
        self.since_best = 0 if is_best else self.since_best + 1
        trainer.should_stop |= 0 < self.patience <= self.since_best
        assert isinstance(pl_module, TrainingModule)
        is_last = epoch + 1 == trainer.max_epochs or trainer.should_stop
        is_due = is_last or (epoch + 1) % self.every == 0
        mean_loss = pl_module.mean_loss()
        if trainer.is_global_zero:
            metrics = trainer.callback_metrics.items()
            rate = trainer.optimizers[0].param_groups[0]["lr"]
            row = {
                "epoch": epoch,
                "step": trainer.global_step,
                "training_loss": mean_loss,
                **{k: float(v) for k, v in metrics if k.startswith("valid")},
                "learning_rate": rate * pl_module.warmup_factor(trainer.global_step),
                "seconds": round(time.monotonic() - self.epoch_start, 3),
            }
            _log_epoch(self.folder / "metrics.csv", row)
            if self.events is not None:
                self.events.add(row)
            reached = {"epoch": epoch, self.recipe.monitor: value}
            with pl_module.averaged():
                for name in ["best"] * is_best + ["last"] * is_due:
                    save_weights(
                        self.recipe.network, self.folder / f"{name}.safetensors",
                        kind=self.recipe.kind, config=self.recipe.config,
                        notes={**self.notes, "reached": reached},
                    )  # fmt: skip
        if is_due:
            trainer.save_checkpoint(self.folder / RESUME)

    def interrupted(self) -> str:
        # Ctrl-C may come between the state's file and the next statement: only the file counts.
        if (self.folder / RESUME).exists():
            epochs = _load_state(self.folder / RESUME)["epoch"] + 1
            state = f"{self.folder} holds the state after {epochs} epochs"
            return f"interrupted; {state}; rerun the same command to resume"
        state = f"which is written every {self.every} epochs (training.checkpoint_every)"
        return f"interrupted; {self.folder} has no state yet, {state}; rerun to start again"

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "since_best": self.since_best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        has_best = (self.folder / "best.safetensors").exists()
        self.best = state_dict["best"] if has_best else None
        self.since_best = state_dict["since_best"]
