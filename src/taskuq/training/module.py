"""The bridge to pytorch-lightning: one module that trains any recipe."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from taskuq.seeds import mixed_seed
from taskuq.training.config import TrainingConfig
from taskuq.training.recipe import Batch, Recipe

TRAINING, VALIDATION = 0, 1


class Training(LightningModule):
    """Trains a recipe's network; state files hold the network's weights alone.

    Arguments:
        recipe: What to train.
        config: How.
    """

    def __init__(self, recipe: Recipe, config: TrainingConfig) -> None:
        super().__init__()
        self.recipe, self.settings = recipe, config
        self.network: nn.Module = recipe.network
        self.register_buffer("begun", torch.zeros((), dtype=torch.bool))
        self._has_begun: bool | None = None
        self._values: list[dict[str, Tensor]] = []
        self._losses: list[Tensor] = []

    def training_step(self, batch: Batch, index: int) -> Tensor:
        """One step's loss."""
        generator = self._generator(TRAINING, self.current_epoch, index)
        # Dropout takes no generator: only the global one can make a restart exact for it.
        torch.manual_seed(generator.initial_seed())
        if self.recipe.first_batch is not None and not self._begun():
            self.recipe.first_batch(self.network, batch, generator)
            self.begun.fill_(True)  # type: ignore[operator]
            self._has_begun = True
        loss = self.recipe.loss(self.network, batch, generator)
        self._losses.append(loss.detach())
        self.log("training_loss", loss, on_step=True, on_epoch=False, prog_bar=True)
        return loss

    def mean_loss(self) -> float:
        """The mean loss of the steps since it was asked for last, of this process."""
        mean = float(torch.stack(self._losses).double().mean())
        self._losses.clear()
        return mean

    def validation_step(self, batch: Batch, index: int) -> None:
        """Collect the quantities of each case; the same randomness in every epoch."""
        generator = self._generator(VALIDATION, 0, index)
        self._values.append(self.recipe.validate(self.network, batch, generator))

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
        weights = [p for p in self.network.parameters() if p.requires_grad]
        optimiser = torch.optim.Adam(
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
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
                optimiser, c.epochs, eta_min=c.decay * c.learning_rate
            )
        return {"optimizer": optimiser, "lr_scheduler": schedule}

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

    def _generator(self, phase: int, epoch: int, index: int) -> torch.Generator:
        seed = mixed_seed(self.settings.seed, phase, epoch, index, self.global_rank)
        return torch.Generator(self.device).manual_seed(seed)

    def _begun(self) -> bool:
        # Read back from the device once, not in every step.
        if self._has_begun is None:
            self._has_begun = bool(self.begun)
        return self._has_begun


def _gather(values: Tensor) -> Tensor:
    """The values of all processes, which may hold different numbers of cases."""
    from torch import distributed

    parts: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(parts, values.cpu().tolist())
    return torch.tensor([value for part in parts for value in part], dtype=values.dtype)
