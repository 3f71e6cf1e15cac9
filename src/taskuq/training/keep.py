"""Files of a training: the best weights, the last ones, and the state to resume from."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.plugins.io import CheckpointIO

from taskuq.training.folder import RESUME
from taskuq.training.log import Events, log_epoch
from taskuq.training.module import Training
from taskuq.training.recipe import Recipe
from taskuq.training.state import load_state, save_state
from taskuq.weights.files import save_weights


class SafeIO(CheckpointIO):
    """Lightning's checkpoints as safetensors instead of pickles."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write a checkpoint whole or not at all."""
        save_state(checkpoint, path)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint on the CPU; Lightning moves it."""
        state: dict[str, Any] = load_state(path)
        return state

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a checkpoint."""
        Path(path).unlink(missing_ok=True)


class Keep(Callback):
    """Callback that writes weights after each epoch and the state to resume from."""

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
        self.events: Events | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A training that had stopped early has nothing left to do when it is started again."""
        self.started, self.kept = time.monotonic(), trainer.current_epoch
        if self._is_exhausted():
            trainer.should_stop = True
        if self.kept and trainer.is_global_zero and trainer.progress_bar_callback is not None:
            said = f"{self.folder}: resuming after {self.kept} epochs"
            sys.stderr.write(f"{said}\n")
        if trainer.is_global_zero:
            self.events = Events(self.folder / "tensorboard", trainer.current_epoch)

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
        assert isinstance(pl_module, Training)
        self.durations.append(time.monotonic() - self.begun)
        # What else a machine does changes; from half-way on the rates are settled.
        is_early = epoch == 1 or 2 * epoch < pl_module.planned
        if self.minutes and is_early and len(self.durations) > 1:
            pl_module.plan(self._fitting(trainer, pl_module.settings.epochs))
        is_last = epoch + 1 == trainer.max_epochs or trainer.should_stop
        mean_loss = pl_module.mean_loss()
        if trainer.is_global_zero:
            row = self._row(trainer, mean_loss)
            log_epoch(self.folder / "metrics.csv", row)
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
        assert isinstance(module, Training)
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
