"""One of the processes of a training: python two_processes.py FOLDER CONFIG ...

Started with RANK and WORLD_SIZE as a launcher sets them, or without for a process alone. Keeps the
gradients of every step, as the optimiser sees them, next to the files of the training.
"""

import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from taskuq.training._fit import TrainerOptions, estimate_training, train_config
from taskuq.training._module import TrainingModule

if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, kept = Path(sys.argv[1]), {}
    whole_step = TrainingModule.optimizer_step

    def watched(self, epoch, index, optimiser, closure=None):
        def gradients():
            loss = closure()
            for name, weight in self.network.named_parameters():
                if weight.grad is not None:
                    kept[f"{self.recipe.kind}.{self.global_step}.{name}"] = weight.grad.clone()
            return loss

        whole_step(self, epoch, index, optimiser, gradients)

    TrainingModule.optimizer_step = watched
    machine = TrainerOptions("cpu", devices=int(os.environ.get("WORLD_SIZE", 1)), progress=False)
    for config in map(Path, sys.argv[2:]):
        kept.clear()
        kind = config.stem.partition("-")[0]
        if kind == "sampler":  # a dry run alone, with its parts
            record, parts = estimate_training(kind, config, machine=machine, steps=1), 0
            while record is not None:
                assert record["devices"] == machine.devices
                record, parts = record["before"], parts + 1
            assert parts == 4
            continue
        train_config(kind, config, folder / config.stem, machine=machine)
        save_file(kept, folder / f"{config.stem}-{os.environ.get('RANK', 0)}.safetensors")
