"""Recoveries and tasks as one function of tensors each, which torch can write down."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from taskuq.errors import InputError, first_line
from taskuq.measure.coils import rss
from taskuq.measure.fourier import fft2c
from taskuq.measure.projections import broadcast_mask
from taskuq.recover.around import COOLER, AroundEstimate, temperature_at
from taskuq.recover.columns import central_lines
from taskuq.recover.estimate import estimate
from taskuq.recover.flow.sampler import ATTEMPTS
from taskuq.recover.sampler.network import apart
from taskuq.recover.sampler.noise import normal_numbers
from taskuq.recover.sampler.recovery import SamplerRecovery
from taskuq.recover.scan import unit_sized
from taskuq.recover.varnet_training import VarNetRecovery


class Drawing(NamedTuple):
    """A recovery as a program, and how it is drawn with.

    Attributes:
        module: Zero-filled coil images (coil, height, width), a mask (width,) and draws to images
            (sample, height, width) and the size of each draw (sample,).
        draws: What the third argument is: of ``kind`` 'gaussian', so many normal ``numbers`` in
            each row; 'seeds', a seed for each sample; or 'none'.
    """

    module: nn.Module
    draws: dict[str, Any]


class FlowProgram(nn.Module):
    """Samples around an estimate, from normal numbers as wide as they are drawn."""

    def __init__(self, recover: AroundEstimate) -> None:
        super().__init__()
        # In a list, so that what was folded is written as constants and not as parameters.
        self.parts = [recover]

    def forward(self, zero_filled: Tensor, mask: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Draw."""
        recover = self.parts[0]
        found = estimate(recover.net, zero_filled[None], mask[None])
        inputs = found.inputs()
        shapes = recover.flow.latent_shapes(*inputs.shape[-2:])
        rows = torch.split(draws, [math.prod(shape) for shape in shapes], dim=1)
        latents = [
            row.view(-1, height, width, channels)
            for row, (channels, height, width) in zip(rows, shapes, strict=True)
        ]
        errors = recover.folded.inverse(latents, recover.folded.shares(inputs))
        return rss(found.coil_images(0, errors)), errors.abs().amax((1, 2, 3))


class SamplerProgram(nn.Module):
    """Samples in one evaluation, from a seed for each."""

    def __init__(self, recover: SamplerRecovery) -> None:
        super().__init__()
        self.parts: list[Any] = [recover]

    def forward(self, zero_filled: Tensor, mask: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Draw."""
        recover = self.parts[0]
        found = recover.estimating.of(zero_filled[None], mask[None])
        told, net = found.inputs(), recover._drawing
        noise = normal_numbers(draws, net.noise_size(*told.shape[-2:]))
        residuals = net.draw(net.know(told, found.share()), apart(noise, 1))
        return found.images(residuals.float())[0], torch.zeros(len(draws))


class VarNetProgram(nn.Module):
    """A point estimate, whatever is drawn."""

    def __init__(self, recover: VarNetRecovery) -> None:
        super().__init__()
        self.parts = [recover]

    def forward(self, zero_filled: Tensor, mask: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Estimate."""
        images, size = unit_sized(zero_filled[None])
        kspace = fft2c(images)
        kspace = torch.where(broadcast_mask(mask[None], kspace), kspace, 0)
        recovered = self.parts[0].net(kspace, mask[None], central_lines(mask[None]))
        return recovered * size.view(-1, 1, 1), torch.zeros(1)


def drawing_of(recover: Any, masks: Tensor, height: int) -> Drawing:
    """Return a recovery as a program.

    Arguments:
        recover: A flow around estimates, a sampler around estimates, or a variational network.
        masks: The masks it will see, booleans (round, width).
        height: Of the images.
    """
    match recover:
        case AroundEstimate():
            shapes = recover.flow.latent_shapes(height, masks.shape[1])
            return Drawing(FlowProgram(recover), {
                "kind": "gaussian",
                "numbers": sum(math.prod(shape) for shape in shapes),
                "limit": float(recover.flow.config.limit),
                "attempts": ATTEMPTS,
                "cooler": COOLER,
                # How wide draws are depends on how much was measured.
                "deviations": [[int(mask.sum()), _deviation(recover, mask)] for mask in masks],
            })  # fmt: skip
        case SamplerRecovery() if hasattr(recover.estimating, "of"):
            return Drawing(SamplerProgram(recover), {"kind": "seeds"})
        case VarNetRecovery():
            return Drawing(VarNetProgram(recover), {"kind": "none"})
    raise InputError(
        f"a recovery {type(recover).__name__} cannot be written as a program; a flow or a sampler "
        "around estimates and a variational network can"
    )


def _deviation(recover: AroundEstimate, mask: Tensor) -> float:
    from taskuq.recover.estimate import WIDEST

    unmeasured = 1 - mask.float().mean().item()
    widening = min(unmeasured**-0.5, WIDEST) if unmeasured else 1.0
    return temperature_at(recover.temperature, mask) * widening


def written_down(module: nn.Module, example: tuple[Tensor, ...], what: str) -> ExportedProgram:
    """Return a module as a program of torch's own operations, for inputs of the example's size.

    Arguments:
        module: The module.
        example: Inputs.
        what: What to call it in an error.
    """
    try:
        with torch.no_grad():
            program = torch.export.export(module.eval(), example)
    except Exception as error:
        raise InputError(
            f"torch cannot write the {what} down as a program ({first_line(error):.160})"
        ) from None
    return with_any_strides(program)


def with_any_strides(program: ExportedProgram) -> ExportedProgram:
    """Let a program not rely on how the memory of its numbers was laid out when it was traced.

    Where tracing believes that numbers lie in order already, it leaves out the copy that puts them
    in order; convolutions then lay them out in another way than it believed.

    Arguments:
        program: The program; it is changed.
    """
    ops, graph = torch.ops.aten, program.graph_module.graph
    for node in list(graph.nodes):
        if node.target is ops.view.default:
            node.target = ops.reshape.default
        elif node.target is ops.view_as_complex.default:
            with graph.inserting_before(node):
                ordered = graph.call_function(ops.contiguous.default, (node.args[0],))
            ordered.meta = dict(node.args[0].meta)
            node.replace_input_with(node.args[0], ordered)
    program.graph_module.recompile()
    return program
