"""Lightning's trainer and its messages."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from taskuq.errors import InputError
from taskuq.training.config import TrainingConfig

if TYPE_CHECKING:
    from taskuq.training.fit import Machine


def trainer_of(config: TrainingConfig, machine: Machine, callbacks: list[Any]) -> Any:
    """Make Lightning's trainer; a missing device is refused in a sentence."""
    import pytorch_lightning as pl
    from lightning_fabric.utilities.exceptions import MisconfigurationException

    from taskuq.training.keep import SafeIO

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
            plugins=[SafeIO()],
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
def quiet() -> Iterator[None]:
    """Lightning advises on worker counts and products; what it has to say goes to its log file."""
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
