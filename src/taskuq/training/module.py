"""The bridge to pytorch-lightning: one module that trains any recipe."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from taskuq.seeds import Share, mixed_seed
from taskuq.training.config import TrainingConfig
from taskuq.training.order import EpochOrder
from taskuq.training.recipe import Batch, Recipe
from taskuq.training.seeds import CaseDraws
from taskuq.training.shared import SharedLayers

TRAINING, VALIDATION = 0, 1
# Steps between two losses that are shown: each of them waits for the GPU.
SHOWN = 20


class Training(LightningModule):
    """Lightning module of a recipe; state files hold the network's weights alone."""

    def __init__(self, recipe: Recipe, config: TrainingConfig) -> None:
        super().__init__()
        self.recipe, self.settings = recipe, config
        self.network: nn.Module = recipe.network
        self.register_buffer("begun", torch.zeros((), dtype=torch.bool))
        # How many epochs are trained: what is configured, or what fits into the minutes.
        self.register_buffer("epochs", torch.tensor(config.epochs))
        weights = network_weights(recipe.network) if config.average else []
        self.mean = nn.ParameterList(
            nn.Parameter(weight.detach().clone(), requires_grad=False) for weight in weights
        )
        # Used where processes share batches.
        self.layers = SharedLayers()
        self._has_begun: bool | None = None
        self._values: list[dict[str, Tensor]] = []
        self._losses: list[Tensor] = []

    def training_step(self, batch: Batch, index: int) -> Tensor:
        """One step's loss."""
        share = _share(self.trainer.train_dataloader, index)
        generator = self._draws(TRAINING, self.current_epoch, index, share)
        self.layers.begin(share, generator)
        # Dropout takes no generator: only the global one can make a restart exact for it.
        torch.manual_seed(generator.initial_seed())
        if self.recipe.first_batch is not None and not self._begun():
            self.recipe.first_batch(self.network, batch, generator)
            self.begun.fill_(True)  # type: ignore[operator]
            self._has_begun = True
        done = (
            self.current_epoch + index / max(1, self.trainer.num_training_batches)
        ) / self.planned
        loss = self.recipe.loss(self.network, {**batch, "progress": done}, generator)
        loss = share.weight * loss if share.world > 1 else loss
        self._losses.append(loss.detach())
        if index % SHOWN == 0:
            self.log("training_loss", loss, on_step=True, on_epoch=False, prog_bar=True)
        return loss

    def mean_loss(self) -> float:
        """The mean loss of the steps since it was asked for last, of all processes."""
        mean = torch.stack(self._losses).double().mean()
        self._losses.clear()
        return float(self.trainer.strategy.reduce(mean, reduce_op="mean"))

    @property
    def planned(self) -> int:
        """Number of epochs that are trained."""
        assert self.trainer.max_epochs is not None
        return self.trainer.max_epochs

    def on_train_start(self) -> None:
        """Keep the number of epochs that fitted into the minutes of a resumed training."""
        if self.settings.minutes:
            self.plan(int(self.epochs))  # type: ignore[arg-type]

    def plan(self, epochs: int) -> None:
        """Train so many epochs in all, schedule included."""
        self.epochs.fill_(epochs)  # type: ignore[operator]
        self.trainer.fit_loop.max_epochs = epochs

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Update the EMA of the weights after a step."""
        if not self.settings.average:
            return
        step = self.global_step
        decay = min(self.settings.average, (1 + step) / (10 + step))
        with torch.no_grad():
            now = [weight.detach() for weight in network_weights(self.network)]
            torch._foreach_lerp_([weight.data for weight in self.mean], now, 1 - decay)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Exchange the weights for their EMA for a while, if there is one."""
        if not self.settings.average:
            yield
            return
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        # The weights stay where they are: recorded GPU work knows them by their place.
        for weight, mean in zip(network_weights(self.network), self.mean, strict=True):
            before = weight.clone()
            weight.copy_(mean)
            mean.copy_(before)

    def validation_step(self, batch: Batch, index: int) -> None:
        """Collect the quantities of each case; the same randomness in every epoch."""
        share = _share(self.trainer.val_dataloaders, index)
        generator = self._draws(VALIDATION, 0, index, share)
        with self.averaged():
            found = self.recipe.validate(self.network, batch, generator)
        own = slice(None) if share.counts else slice(0)
        self._values.append({name: value[own] for name, value in found.items()})

    def on_validation_epoch_end(self) -> None:
        """Summarise the quantities of all cases of all processes."""
        names = self._values[0]
        values = {name: torch.cat([part[name] for part in self._values]) for name in names}
        self._values.clear()
        if self.trainer.world_size > 1:
            values = {name: _gather(value) for name, value in values.items()}
        if self.trainer.sanity_checking:
            return
        for name, value in self.recipe.summary(values).items():
            self.log(f"validation_{name}", value, prog_bar=True)

    def configure_optimizers(self) -> Any:
        """Adam, and the schedule the configuration names."""
        c = self.settings
        weights = network_weights(self.network)
        optimiser = (torch.optim.AdamW if c.decoupled else torch.optim.Adam)(
            weights,
            lr=c.learning_rate,
            betas=(c.betas[0], c.betas[1]),
            weight_decay=c.weight_decay,
            fused=weights[0].is_cuda,
        )
        if c.schedule == "constant":
            return optimiser
        if c.schedule == "step":
            schedule: Any = torch.optim.lr_scheduler.StepLR(optimiser, c.decay_epochs, c.decay)
        else:
            schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, self._cosine)
        return {"optimizer": optimiser, "lr_scheduler": schedule}

    def _cosine(self, epoch: int) -> float:
        # Of the number of epochs now, which may change until half of them are done.
        wave = (1 + math.cos(math.pi * epoch / self.planned)) / 2
        return self.settings.decay + (1 - self.settings.decay) * wave

    def risen(self, step: int) -> float:
        """Return the share of its rate that a step takes, counted from 1: all after the warm-up."""
        return min(1.0, step / max(1, self.settings.warmup))

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
    ) -> None:
        """One step, at the rate that the schedule says or, in the beginning, below it."""
        rates = [group["lr"] for group in optimizer.param_groups]
        risen = self.risen(self.global_step + 1)
        for group in optimizer.param_groups:
            group["lr"] *= risen
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        """Clip the norm of the gradient as configured.

        Lightning's own clipping refuses a fused optimiser in mixed precision, because gradients
        may be scaled there. In bfloat16, the only mixed precision here, they never are.
        """
        if self.settings.clip:
            weights = [p for group in optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(weights, self.settings.clip)

    def _draws(self, phase: int, epoch: int, index: int, share: Share) -> CaseDraws:
        own, whole = (
            mixed_seed(self.settings.seed, phase, epoch, index, rank)
            for rank in (self.global_rank, 0)
        )
        draws = CaseDraws(self.device)
        draws.manual_seed(own)
        draws.share = share
        if share.world > 1:
            draws.whole = torch.Generator(self.device).manual_seed(whole)
        return draws

    def _begun(self) -> bool:
        # Read back from the device once, not in every step.
        if self._has_begun is None:
            self._has_begun = bool(self.begun)
        return self._has_begun


def network_weights(network: nn.Module) -> list[nn.Parameter]:
    """Return the trained weights of a network, in its own order."""
    return [weight for weight in network.parameters() if weight.requires_grad]


def _share(loader: Any, index: int) -> Share:
    order: EpochOrder = loader.sampler
    return order.share(index)


def _gather(values: Tensor) -> Tensor:
    """The values of all processes, which may hold different numbers of cases."""
    from torch import distributed

    parts: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(parts, values.cpu().tolist())
    return torch.tensor([value for part in parts for value in part], dtype=values.dtype)
