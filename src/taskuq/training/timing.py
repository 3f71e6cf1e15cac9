"""Cost of a training: seconds a step, memory, and projected hours of all epochs."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import nn

from taskuq.files import read_json, write_json
from taskuq.pipeline.device import peak_host_bytes
from taskuq.training.config import TrainingConfig

SCHEMA = "taskuq.timing/1"
FILE = "timing.json"
# Steps of an epoch after which the GPU is waited for, so that the clock shows its time, and in how
# many epochs: a GPU that is waited for idles until it gets more work.
SYNCHRONISED, CLOCKED = 20, 5


class Timing(Callback):
    """Callback that times steps and epochs, and ends a trial."""

    def __init__(
        self,
        kind: str,
        config: TrainingConfig,
        *,
        validation_steps: int,
        folder: Path | None = None,
        steps: int | None = None,
        before: dict[str, Any] | None = None,
    ) -> None:
        self.kind, self.config, self.validation_steps = kind, config, validation_steps
        self.folder, self.most, self.before = folder, steps, before
        self.record: dict[str, Any] = {}
        self._steps: deque[float] = deque(maxlen=1000)
        self._validation: deque[float] = deque(maxlen=1000)
        self._epochs: list[float] = []
        self._first: float | None = None
        self._waited = self._trained = self._wait = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget what memory was needed before."""
        if pl_module.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(pl_module.device)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the clock."""
        self._epoch_began = self._step_began = self._batch_ended = _now(pl_module)
        self._step, self._is_idle = trainer.global_step, True

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Take the time that the batch was waited for."""
        self._wait = time.perf_counter() - self._batch_ended

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Count a step, and stop where enough were taken."""
        is_timed = batch_idx < SYNCHRONISED * self.config.accumulate and self._is_clocked()
        now = _now(pl_module if is_timed else None)
        was_idle, self._is_idle = self._is_idle, is_timed or pl_module.device.type != "cuda"
        # A batch that comes while the GPU still computes is not waited for.
        if self._first is not None and was_idle and self._is_idle:
            self._trained += now - self._batch_ended
            self._waited += self._wait
        self._batch_ended = now
        if trainer.global_step == self._step:
            return  # gradients are still being added up
        seconds, self._step_began, self._step = now - self._step_began, now, trainer.global_step
        if self._first is None:
            self._first = seconds
        elif is_timed:
            self._steps.append(seconds)
        if self.most is not None and trainer.global_step >= self.most:
            trainer.should_stop = True

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count a batch of validation."""
        is_timed = batch_idx < SYNCHRONISED and self._is_clocked()
        now = _now(pl_module if is_timed else None)
        if is_timed:
            self._validation.append(now - self._batch_ended)
        self._batch_ended = now

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation is over and weights are written: sum up."""
        now = _now(pl_module)
        if self.most is None:
            self._epochs.append(now - self._epoch_began)
        self.record = self._sum_up(trainer, pl_module, kept=now - self._batch_ended)
        if self.folder is not None and trainer.is_global_zero:
            write_json(self.folder / FILE, self.record)

    def _is_clocked(self) -> bool:
        return len(self._epochs) < CLOCKED

    def _sum_up(self, trainer: Trainer, module: LightningModule, *, kept: float) -> dict[str, Any]:
        network = module.network
        assert isinstance(network, nn.Module)
        config, first = self.config, self._first or 0.0
        device, is_gpu = module.device, module.device.type == "cuda"
        validation = list(self._validation)
        steps = -(-int(trainer.num_training_batches) // config.accumulate)
        record = {
            "schema": SCHEMA,
            "kind": self.kind,
            "device": torch.cuda.get_device_name(device) if is_gpu else device.type,
            "devices": trainer.world_size,
            "parameters": sum(p.numel() for p in network.parameters()),
            "precision": config.precision,
            "batch": config.batch,
            "trial": self.most is not None,
            "steps": trainer.global_step,
            "first_step_s": first,
            "step_s": statistics.median(self._steps) if self._steps else first,
            "wait_share": self._waited / self._trained if self._trained else 0.0,
            # The first batch of all may compile.
            "validation_step_s": statistics.median(validation[1:] or validation),
            "keep_s": kept if self.folder is not None else 0.0,
            "epoch_s": statistics.median(self._epochs) if self._epochs else None,
            "peak_gpu_bytes": torch.cuda.max_memory_allocated(device) if is_gpu else 0,
            "reserved_gpu_bytes": torch.cuda.max_memory_reserved(device) if is_gpu else 0,
            "peak_host_bytes": peak_host_bytes(),
            "steps_per_epoch": steps,
            "validation_steps": self.validation_steps,
            "epochs": config.epochs,
            "keep_every": config.keep_every,
            "minutes": config.minutes,
            "before": self.before,
        }
        return {**record, "projected_hours": projected_hours(record)}


def read_timing(folder: Path) -> dict[str, Any]:
    """Read the timing of a folder's training."""
    record: dict[str, Any] = read_json(folder / FILE, SCHEMA)
    return record


def projected_hours(record: Mapping[str, Any]) -> float:
    """Return the hours of all epochs, with validation, writing, and the part trained before.

    Epochs count as they were seen where a whole one was, else by their steps; with ``minutes``
    there are no more of them than fit.
    """
    epoch = record["epoch_s"]
    if epoch is None:
        epoch = record["steps_per_epoch"] * record["step_s"]
        epoch += record["validation_steps"] * record["validation_step_s"]
        epoch += record["keep_s"] / record["keep_every"]
    compiling = max(0.0, record["first_step_s"] - record["step_s"])
    before = record["before"]
    earlier = 0.0 if before is None else float(before["projected_hours"])
    most = 60 * record["minutes"] or math.inf
    return min(float(compiling + record["epochs"] * epoch), most) / 3600 + earlier


def timing_sentence(record: Mapping[str, Any]) -> str:
    """Return the cost of a training in a sentence."""
    lines = [] if record["before"] is None else [timing_sentence(record["before"])]
    gpu = f"{record['peak_gpu_bytes'] / 2**30:.2f} GiB of GPU memory and "
    hours = record["projected_hours"]
    lines.append(
        f"{record['kind']}, {record['parameters']:,} parameters, batches of {record['batch']} on "
        f"{record['devices']} × {record['device']}: first step {record['first_step_s']:.3g} s, "
        f"then {record['step_s']:.3g} s each ({record['wait_share']:.0%} of it waiting for data); "
        f"{gpu if record['peak_gpu_bytes'] else ''}{record['peak_host_bytes'] / 2**30:.2f} GiB of "
        f"host memory. {record['epochs']} epochs of {record['steps_per_epoch']} steps and "
        f"{record['validation_steps']} batches of validation: about "
        + (f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.2g} minutes")
        + ("." if record["before"] is None else ", with what comes before.")
    )
    return "\n".join(lines)


def _now(module: LightningModule | None) -> float:
    """Return the time after a module's GPU has finished."""
    if module is not None and module.device.type == "cuda":
        torch.cuda.synchronize(module.device)
    return time.perf_counter()
