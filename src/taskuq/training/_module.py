"""Lightning module and step timer of a training run."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Checkpoint, WeightAveraging
from torch import Tensor, distributed, nn

from taskuq._io import complete_record, read_json, write_json
from taskuq._seeds import BatchShard, mix_seeds
from taskuq.pipeline._executor import peak_host_bytes
from taskuq.training._config import Batch, Recipe, TrainingConfig
from taskuq.training._determinism import CaseGenerator, SyncLayers

TRAINING, VALIDATION = 0, 1
# Steps between two losses that are shown: each of them waits for the GPU.
SHOWN = 20


class TrainingModule(LightningModule):
    def __init__(self, recipe: Recipe, config: TrainingConfig) -> None:
        super().__init__()
        self.recipe, self.settings = recipe, config
        self.network: nn.Module = recipe.network
        # For processes that share batches.
        self.layers = SyncLayers()
        self._values: list[dict[str, Tensor]] = []
        self._losses: list[Tensor] = []

    def training_step(self, batch: Batch, index: int) -> Tensor:
        loader: Any = self.trainer.train_dataloader
        share: BatchShard = loader.sampler.share(index)
        generator = self._draws(TRAINING, self.current_epoch, index, share)
        self.layers.begin(share, generator)
        # Dropout takes no generator: only the global one can make a restart exact for it.
        torch.manual_seed(generator.initial_seed())
        # A training resumes after an epoch.
        if self.recipe.example_batch is not None and self.current_epoch == index == 0:
            self.recipe.example_batch(self.network, batch, generator)
        epoch = self.current_epoch + index / max(1, self.trainer.num_training_batches)
        done = epoch / self.settings.epochs
        loss = self.recipe.loss(self.network, {**batch, "progress": done}, generator)
        loss = share.weight * loss if share.world > 1 else loss
        self._losses.append(loss.detach())
        if index % SHOWN == 0:
            self.log("training_loss", loss, on_step=True, on_epoch=False, prog_bar=True)
        return loss

    def mean_loss(self) -> float:
        mean = torch.stack(self._losses).double().mean()
        self._losses.clear()
        return float(self.trainer.strategy.reduce(mean, reduce_op="mean"))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        value = float(self.trainer.callback_metrics[f"validation_{self.recipe.monitor}"])
        checkpoint["reached"] = {"epoch": self.current_epoch, self.recipe.monitor: value}

    def __deepcopy__(self, memo: Any) -> TrainingModule:
        """Copy the network, but not the data or other networks that its loss may hold."""
        copy = replace(self.recipe, network=deepcopy(self.network, memo))
        return TrainingModule(copy, self.settings)

    def validation_step(self, batch: Batch, index: int) -> None:
        loader: Any = self.trainer.val_dataloaders
        share: BatchShard = loader.sampler.share(index)
        generator = self._draws(VALIDATION, 0, index, share)
        metrics = self.recipe.validate(self.network, batch, generator)
        own = slice(None) if share.counts else slice(0)
        self._values.append({name: value[own] for name, value in metrics.items()})

    def on_validation_epoch_end(self) -> None:
        names = self._values[0]
        values = {name: torch.cat([part[name] for part in self._values]) for name in names}
        self._values.clear()
        for name, value in values.items() if self.trainer.world_size > 1 else ():
            # Of all processes, whose numbers of cases may differ.
            parts: list[Any] = [None] * distributed.get_world_size()
            distributed.all_gather_object(parts, value.cpu().tolist())
            whole = [one for part in parts for one in part]
            values[name] = torch.tensor(whole, dtype=value.dtype)
        for name, number in self.recipe.summary(values).items():
            self.log(f"validation_{name}", number, prog_bar=True)

    def configure_optimizers(self) -> Any:
        c = self.settings
        weights = [weight for weight in self.network.parameters() if weight.requires_grad]
        optimiser = (torch.optim.AdamW if c.adamw else torch.optim.Adam)(
            weights, c.learning_rate, (c.betas[0], c.betas[1]), weight_decay=c.weight_decay,
            fused=weights[0].is_cuda,
        )  # fmt: skip
        if c.schedule == "constant":
            return optimiser

        def cosine(epoch: int) -> float:
            wave = (1 + math.cos(math.pi * epoch / c.epochs)) / 2
            return c.lr_decay + (1 - c.lr_decay) * wave

        schedules = torch.optim.lr_scheduler
        if c.schedule == "cosine":
            return {"optimizer": optimiser, "lr_scheduler": schedules.LambdaLR(optimiser, cosine)}
        step = schedules.StepLR(optimiser, c.lr_decay_epochs, c.lr_decay)
        return {"optimizer": optimiser, "lr_scheduler": step}

    def warmup_factor(self, step: int) -> float:
        return min(1.0, step / max(1, self.settings.warmup_steps))

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
    ) -> None:
        """Take one optimiser step, with a reduced learning rate during warm-up."""
        rates = [group["lr"] for group in optimizer.param_groups]
        factor = self.warmup_factor(self.global_step + 1)
        for group in optimizer.param_groups:
            group["lr"] *= factor
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        if self.settings.clip_norm:
            weights = [p for group in optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(weights, self.settings.clip_norm)

    def _draws(self, phase: int, epoch: int, index: int, share: BatchShard) -> CaseGenerator:
        draws, place = CaseGenerator(self.device), (self.settings.seed, phase, epoch, index)
        draws.manual_seed(mix_seeds(*place, self.global_rank))
        draws.share = share
        if share.world > 1:
            draws.whole = torch.Generator(self.device).manual_seed(mix_seeds(*place, 0))
        return draws


class Averaging(WeightAveraging):
    """Lightning's weight averaging: an EMA, or the mean over epochs."""

    def __init__(self, config: TrainingConfig) -> None:
        super().__init__(use_buffers=False, multi_avg_fn=self._average)
        self.config = config

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.trainer, self._device = trainer, trainer.strategy.root_device
        super().setup(trainer, pl_module, stage)
        # The first weights count; and on the CPU, no step waits for the GPU.
        self._average_model.n_averaged = torch.tensor(1)  # type: ignore[union-attr]

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        # After the last step, not after the epoch: validation comes between them.
        is_due = bool(self.config.ema) or self.trainer.is_last_batch
        return step_idx is not None and is_due

    def _average(self, means: Any, weights: Any, _: Any) -> None:
        step, epoch = self.trainer.global_step, self.trainer.current_epoch
        decay = min(self.config.ema, (1 + step) / (10 + step))
        if self.config.average_from:
            # The mean of the weights after each epoch, this one included.
            before = max(0, epoch + 1 - self.config.average_from)
            decay = before / (before + 1)
        torch._foreach_lerp_(means, weights, 1 - decay)


SCHEMA = "taskuq.timing/1"
FILE = "timing.json"
# Synchronising idles a GPU: only these steps of an epoch are timed, in so many epochs.
SYNCHRONISED, CLOCKED = 20, 5


class StepTimer(Checkpoint):
    """Timer of training steps; runs after the checkpoint callbacks, so as to time them as well."""

    def __init__(
        self,
        kind: str,
        config: TrainingConfig,
        validation_steps: int,
        folder: Path | None = None,
        steps: int | None = None,
        before: dict[str, Any] | None = None,
    ) -> None:
        self.kind, self.config, self.validation_steps = kind, config, validation_steps
        self.folder, self.most, self.before = folder, steps, before
        self.record: dict[str, Any] = {}
        self._steps, self._validation = deque[float](maxlen=1000), deque[float](maxlen=1000)
        self._epochs: list[float] = []
        self._first: float | None = None
        self._waited = self._trained = self._wait = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if pl_module.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(pl_module.device)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epoch_began = self._step_began = self._batch_ended = _now(pl_module)
        self._step = trainer.global_step

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._wait = time.perf_counter() - self._batch_ended

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        is_timed = batch_idx < SYNCHRONISED * self.config.accumulate
        is_timed &= len(self._epochs) < CLOCKED
        now = _now(pl_module if is_timed else None)
        # In other steps, a batch that arrives while the GPU computes costs no time.
        if self._first is not None and is_timed:
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
        is_timed = batch_idx < SYNCHRONISED and len(self._epochs) < CLOCKED
        now = _now(pl_module if is_timed else None)
        if is_timed:
            self._validation.append(now - self._batch_ended)
        self._batch_ended = now

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        now = _now(pl_module)
        if self.most is None:
            self._epochs.append(now - self._epoch_began)
        network, validation = pl_module.network, list(self._validation)
        assert isinstance(network, nn.Module)
        config, first = self.config, self._first or 0.0
        device, is_gpu = pl_module.device, pl_module.device.type == "cuda"
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
            "keep_s": now - self._batch_ended if self.folder is not None else 0.0,
            "epoch_s": statistics.median(self._epochs) if self._epochs else None,
            "peak_gpu_bytes": torch.cuda.max_memory_allocated(device) if is_gpu else 0,
            "reserved_gpu_bytes": torch.cuda.max_memory_reserved(device) if is_gpu else 0,
            "peak_host_bytes": peak_host_bytes(),
            "steps_per_epoch": steps,
            "validation_steps": self.validation_steps,
            "epochs": config.epochs,
            "keep_every": config.checkpoint_every,
            "before": self.before,
        }
        self.record = {**record, "projected_hours": projected_hours(record)}
        if self.folder is not None and trainer.is_global_zero:
            write_json(self.folder / FILE, self.record)


def read_timing(folder: Path) -> dict[str, Any]:
    record = read_json(folder / FILE, SCHEMA)
    with complete_record(folder / FILE, "record of times"):
        format_timing(record)
    return record


def projected_hours(record: Mapping[str, Any]) -> float:
    """Return the estimated hours of a training run, with validation, saving and pre-training."""
    epoch = record["epoch_s"]
    if epoch is None:
        epoch = record["steps_per_epoch"] * record["step_s"]
        epoch += record["validation_steps"] * record["validation_step_s"]
        epoch += record["keep_s"] / record["keep_every"]
    compiling = max(0.0, record["first_step_s"] - record["step_s"])
    earlier = float((record["before"] or {}).get("projected_hours", 0.0))
    return float(compiling + record["epochs"] * epoch) / 3600 + earlier


def format_timing(record: Mapping[str, Any]) -> str:
    lines = [] if record["before"] is None else [format_timing(record["before"])]
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
        + ("." if record["before"] is None else ", with pre-training.")
    )
    return "\n".join(lines)


def _now(module: LightningModule | None) -> float:
    """Wait until the module's GPU has finished its work, then return the time in seconds."""
    if module is not None and module.device.type == "cuda":
        torch.cuda.synchronize(module.device)
    return time.perf_counter()
