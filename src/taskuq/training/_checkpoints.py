"""Checkpoints, state, logs, folder."""

from __future__ import annotations

import csv
import json
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.plugins.io import CheckpointIO
from torch import Tensor

from taskuq._config import read_toml, toml_text
from taskuq._io import atomic_write, make_folder, read_json, reading, write_json
from taskuq.errors import InputError
from taskuq.training._config import Recipe
from taskuq.training._module import TrainingModule
from taskuq.training._weights import save_weights

# The state to resume from, and the mark of a training that has ended.
RESUME = "resume.safetensors"
FINISHED, FOLDER_SCHEMA = "finished.json", "taskuq.finished/1"


def prepare_folder(folder: Path, settings: dict[str, Any], *, fresh: bool) -> Path | None:
    """Return the checkpoint to resume from, or None."""
    state, written = folder / RESUME, folder / "config.toml"
    there = read_toml(written) if written.exists() and not fresh else None
    if there is not None and "trial" in there and "trial" not in settings:
        raise InputError(
            f"{folder} holds a trial of {there['trial']['steps']} steps; give another folder, or "
            "--overwrite to train there",
            code="file.exists",
        )
    if there is not None and "trial" in settings and "trial" not in there:
        raise InputError(
            f"{folder} holds a training; give a trial another folder, or --overwrite to overwrite it",
            code="file.exists",
        )
    if fresh or "trial" in settings:
        for old in (state, written, folder / FINISHED):
            old.unlink(missing_ok=True)
    elif there is not None and settings and there != settings:
        raise InputError(
            f"{folder} holds a training of another configuration ({_difference(there, settings)}"
            "); give another folder, or --overwrite to begin again",
            code="resume.mismatch",
        )
    with atomic_write(written) as partial:
        partial.write_text(toml_text(settings), encoding="utf-8")
    return state if state.exists() else None


def mark_finished(folder: Path, epochs: int) -> None:
    """Record that a training has finished."""
    write_json(folder / FINISHED, {"schema": FOLDER_SCHEMA, "epochs": epochs})


def is_finished(folder: Path, epochs: int) -> bool:
    """Return True if a training of so many epochs has ended."""
    path = folder / FINISHED
    return path.exists() and bool(read_json(path, FOLDER_SCHEMA)["epochs"] == epochs)


def _difference(there: dict[str, Any], settings: dict[str, Any]) -> str:
    old, new = (_flat(table) for table in (there, settings))
    changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    return ", ".join(f"{key}: {old.get(key)} there, {new.get(key)} here" for key in changed[:3])


def _flat(table: dict[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{path}{key}.") if isinstance(value, dict) else {path + key: value}
    return flat


def _log_epoch(path: Path, row: Mapping[str, float]) -> None:
    """Add the row of an epoch in place of this and later rows that a killed run left."""
    rows = [old for old in _read_log(path) if old["epoch"] < row["epoch"]]
    rows.append({name: float(value) for name, value in row.items()})
    with atomic_write(path) as partial, partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**r, "epoch": int(r["epoch"])} for r in rows)


class _TensorBoardLog:
    """TensorBoard scalars, if installed."""

    def __init__(self, folder: Path, epoch: int) -> None:
        self.records: Any = None
        try:
            from tensorboardX.proto import event_pb2
            from tensorboardX.record_writer import RecordWriter
        except ImportError:
            return
        make_folder(folder)
        # A file of its own for each start: the time alone has whole seconds.
        number = len(list(folder.iterdir()))
        self.event = event_pb2.Event
        self.records = RecordWriter(str(folder / f"events.out.tfevents.{time.time():.0f}.{number}"))
        self._write(file_version="brain.Event:2")
        if epoch:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(step=epoch, session_log=start)

    def add(self, row: Mapping[str, float]) -> None:
        """Add the row of an epoch; it is in the file when this returns."""
        if self.records is None:
            return
        values = [{"tag": k, "simple_value": v} for k, v in row.items() if k != "epoch"]
        self._write(step=int(row["epoch"]), summary={"value": values})

    def close(self) -> None:
        """Finish the file."""
        if self.records is not None:
            self.records.close()

    def _write(self, **content: Any) -> None:
        # Not the package's own writer: its thread writes when it likes; a killed run loses that.
        self.records.write(self.event(wall_time=time.time(), **content).SerializeToString())
        self.records.flush()


def _read_log(path: Path) -> list[dict[str, float]]:
    """Read a learning curve: a dictionary of numbers for each epoch."""
    if not path.exists():
        return []
    remedy = "remove it to begin another"
    with reading(path, "a learning curve", remedy), path.open(newline="") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


STATE_SCHEMA = "taskuq.state/1"


def _save_state(state: Any, path: Path | str) -> Path:
    """Write nested dictionaries, lists and tuples of tensors and plain values."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    skeleton = _take_apart(state, tensors, "state")
    header = {"schema": STATE_SCHEMA, "skeleton": json.dumps(skeleton)}
    with atomic_write(path) as partial:
        save_file(tensors, partial, metadata=header)
    return Path(path)


def _load_state(path: Path | str) -> Any:
    """Read what :func:`_save_state` wrote, on the CPU."""
    from safetensors import safe_open

    with reading(path, "a training state", "train with --overwrite"):
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if header.get("schema") != STATE_SCHEMA:
            raise InputError(
                f"{path} is no training state of this version; train with --overwrite",
                code="file.schema",
            )
        return _put_together(json.loads(header["skeleton"]), tensors)


def _take_apart(value: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """Plain JSON, with {"kind": [...]} for what JSON does not have."""
    if isinstance(value, Tensor):
        # Two names of one storage would be refused; a copy is small.
        tensors[name] = value.detach().cpu().clone().contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        pairs = [
            [_take_apart(k, tensors, f"{name}.key"), _take_apart(v, tensors, f"{name}.{k}")]
            for k, v in value.items()
        ]
        return {"dict": pairs}
    if isinstance(value, list | tuple):
        parts = [_take_apart(v, tensors, f"{name}.{i}") for i, v in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": parts}
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        # Exact for every float, infinities and NaN included.
        return {"float": value.hex()}
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{name} is of type {type(value).__name__}, which is not plain data")


def _put_together(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "float":
        return float.fromhex(content)
    if kind == "dict":
        return {_put_together(k, tensors): _put_together(v, tensors) for k, v in content}
    parts = [_put_together(v, tensors) for v in content]
    return parts if kind == "list" else tuple(parts)


class SafetensorsIO(CheckpointIO):
    """Lightning CheckpointIO without pickles."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write a checkpoint whole or not at all."""
        _save_state(checkpoint, path)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint on the CPU; Lightning moves it."""
        state: dict[str, Any] = _load_state(path)
        return state

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a checkpoint."""
        Path(path).unlink(missing_ok=True)


class Checkpoint(Callback):
    """Callback that saves weights and the resume state after each epoch."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        every: int,
        notes: dict[str, Any],
        patience: int = 0,
        minutes: float = 0,
    ) -> None:
        self.recipe, self.folder, self.every, self.notes = recipe, folder, every, notes
        self.patience, self.minutes = patience, minutes
        self.started = self.spent = 0.0
        self.durations: list[float] = []
        self.best: float | None = None
        self.since_best = 0
        # Epochs of the last state.
        self.kept = 0
        self.begun = 0.0
        self.events: _TensorBoardLog | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A training that had stopped early has nothing left to do when it is started again."""
        self.started, self.kept = time.monotonic(), trainer.current_epoch
        if self._is_exhausted():
            trainer.should_stop = True
        if self.kept and trainer.is_global_zero and trainer.progress_bar_callback is not None:
            said = f"{self.folder}: resuming after {self.kept} epochs"
            sys.stderr.write(f"{said}\n")
        if trainer.is_global_zero:
            self.events = _TensorBoardLog(self.folder / "tensorboard", trainer.current_epoch)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close what is open."""
        if self.events is not None:
            self.events.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Close what is open."""
        self.on_train_end(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the clock."""
        self.begun = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation of the epoch is over: compare, write, and leave a state to resume from."""
        if trainer.sanity_checking:
            return
        epoch = trainer.current_epoch
        value = float(trainer.callback_metrics[f"validation_{self.recipe.monitor}"])
        is_best = self.recipe.is_better(value, self.best)
        if is_best:
            self.best = value
        self.since_best = 0 if is_best else self.since_best + 1
        if self._is_exhausted():
            trainer.should_stop = True
        assert isinstance(pl_module, TrainingModule)
        self.durations.append(time.monotonic() - self.begun)
        # What else a machine does changes; from half-way on the rates are settled.
        is_early = epoch == 1 or 2 * epoch < pl_module.planned
        if self.minutes and is_early and len(self.durations) > 1:
            pl_module.plan(self._fitting(trainer, pl_module.settings.epochs))
        is_last = epoch + 1 == trainer.max_epochs or trainer.should_stop
        mean_loss = pl_module.mean_loss()
        if trainer.is_global_zero:
            row = self._row(trainer, mean_loss)
            _log_epoch(self.folder / "metrics.csv", row)
            if self.events is not None:
                self.events.add(row)
            reached = {"epoch": epoch, self.recipe.monitor: value}
            with pl_module.averaged():
                if is_best:
                    self._weights("best", reached)
                if is_last or (epoch + 1) % self.every == 0:
                    self._weights("last", reached)
        if is_last or (epoch + 1) % self.every == 0:
            trainer.save_checkpoint(self.folder / RESUME)
            self.kept = epoch + 1

    def left(self) -> str:
        """Return a sentence about what an interruption leaves."""
        if self.kept:
            return (
                f"interrupted; {self.folder} holds the state after {self.kept} epochs; rerun the "
                "same command to resume"
            )
        return (
            f"interrupted before the first state, which is written every {self.every} epochs "
            f"(training.keep_every); the same command starts {self.folder} again"
        )

    def _fitting(self, trainer: Trainer, most: int) -> int:
        """Return how many epochs fit into the minutes, by the latest; the first one warms up."""
        left = 60 * self.minutes - self._seconds()
        latest = statistics.median(self.durations[1:][-3:])
        fitting = trainer.current_epoch + 1 + max(0, int(left / latest))
        epochs: int = trainer.strategy.broadcast(min(most, fitting))
        return epochs

    def _seconds(self) -> float:
        """Return the seconds of all starts of this training, without those lost to a kill."""
        return self.spent + time.monotonic() - self.started

    def _row(self, trainer: Trainer, mean_loss: float) -> dict[str, float]:
        judged = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("valid")}
        return {
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            "training_loss": mean_loss,
            **judged,
            "learning_rate": trainer.optimizers[0].param_groups[0]["lr"] * self._risen(trainer),
            "seconds": round(time.monotonic() - self.begun, 3),
        }

    @staticmethod
    def _risen(trainer: Trainer) -> float:
        """Which share of its rate the last step took."""
        module = trainer.lightning_module
        assert isinstance(module, TrainingModule)
        return module.risen(trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        """The best value so far belongs to the state."""
        return {"best": self.best, "since_best": self.since_best, "spent": self._seconds()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state; weights that did not come along are not the best ones."""
        has_best = (self.folder / "best.safetensors").exists()
        self.best = state_dict["best"] if has_best else None
        self.since_best = state_dict["since_best"]
        self.spent = state_dict.get("spent", 0.0)  # states of earlier versions do not say

    def _is_exhausted(self) -> bool:
        return 0 < self.patience <= self.since_best

    def _weights(self, name: str, reached: dict[str, Any]) -> None:
        save_weights(
            self.recipe.network,
            self.folder / f"{name}.safetensors",
            kind=self.recipe.kind,
            config=self.recipe.config,
            notes={**self.notes, "reached": reached},
        )
