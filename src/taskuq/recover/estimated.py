"""Cases for training a flow around an estimate: every estimate is made once, before training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from taskuq.measure.projections import keep_measured
from taskuq.pipeline.progress import Progress
from taskuq.recover.cases import MeasuredCases
from taskuq.recover.estimate import estimate
from taskuq.recover.varnet import VarNet

# Cases that are estimated together: a GPU wants many, a CPU's cache holds one.
TOGETHER = {"cuda": 8, "cpu": 1}


@dataclass(frozen=True, eq=False)
class EstimatedCases:
    """What a flow is told and what it learns, addressed by (epoch, index).

    Arguments:
        cases: The cases, with their masks.
        inputs: What the flow is told, (case, round, 6, height, width).
        errors: What it learns, (case, round, 2, height, width).
    """

    cases: MeasuredCases
    inputs: Tensor
    errors: Tensor

    @classmethod
    def of(cls, cases: MeasuredCases, net: VarNet, *, quiet: bool = False) -> EstimatedCases:
        """Run a variational network on every case at every acceleration.

        Arguments:
            cases: The cases, with their masks.
            net: The network; it runs where it is, and the results stay there.
            quiet: Show no progress.
        """
        device = next(net.parameters()).device
        masks = torch.as_tensor(cases.masks, device=device)
        progress = Progress(len(cases), 0, quiet=quiet)
        inputs, errors = torch.empty(0), torch.empty(0)
        together = TOGETHER.get(device.type, 1)
        for start in range(0, len(cases), together):
            indices = range(start, min(start + together, len(cases)))
            images = torch.stack([cases[0, index]["image"].to(device) for index in indices])
            truth = images.repeat_interleave(len(masks), dim=0)
            mask = masks.repeat(len(images), 1)
            found = estimate(net, keep_measured(truth, mask), mask)
            told, error = found.inputs(), found.error(truth)
            if start == 0:
                # One piece of memory from the start: it may be gigabytes.
                rows = len(cases), len(masks)
                inputs, errors = (x.new_empty(*rows, *x.shape[1:]) for x in (told, error))
            for whole, part in ((inputs, told), (errors, error)):
                whole[start : indices.stop] = part.view(-1, len(masks), *part.shape[1:])
            for _ in indices:
                progress.step()
        return cls(cases, inputs, errors)

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, place: tuple[int, int]) -> dict[str, Tensor]:
        epoch, index = place
        which = self.cases.round(epoch, index)
        return {"inputs": self.inputs[index, which], "error": self.errors[index, which]}
