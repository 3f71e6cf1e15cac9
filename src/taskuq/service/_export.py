"""Export of recovery and task networks with torch.export."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import ExportedProgram

import taskuq
from taskuq._io import atomic_write, fingerprint, write_json
from taskuq.errors import InputError, first_line
from taskuq.measure._coils import rss, to_complex
from taskuq.measure._fourier import broadcast_mask, central_lines, fft2c, ifft2c
from taskuq.pipeline._executor import Executor
from taskuq.policy._policy import Policy
from taskuq.recover._estimate import noise_scale_of, varnet_estimate
from taskuq.recover._methods import rescale_pow2
from taskuq.recover._varnet_training import VarNetRecovery
from taskuq.recover.flow._sample import (
    ATTEMPTS,
    COOLER,
    ResidualFlowSampler,
    split_latents,
    temperature_at,
)
from taskuq.recover.sampler._sample import SamplerRecovery, TensorEstimator
from taskuq.service._runtime import MANIFEST, SCHEMA, checksum


class _Export(nn.Module):
    """Base class for export; networks are kept in a list so that weights become constants."""

    def __init__(self, recover: Any) -> None:
        super().__init__()
        self.parts: list[Any] = [recover]


class _FlowExport(_Export):
    def forward(self, zero_filled: Tensor, mask: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        recover = self.parts[0]
        estimate = varnet_estimate(recover.net, zero_filled[None], mask[None])
        inputs = estimate.inputs()
        shapes = recover.flow.latent_shapes(*inputs.shape[-2:])
        flow = recover.quick
        errors = to_complex(flow.inverse(split_latents(draws, shapes), flow.encode(inputs)))
        return rss(estimate.coil_images(errors[None, :, 0]))[0], errors.abs().amax((1, 2, 3))


class _SamplerExport(_Export):
    def forward(self, zero_filled: Tensor, mask: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        recover = self.parts[0]
        return recover.from_seeds(zero_filled[None], mask[None], draws), torch.zeros(len(draws))


class _VarNetExport(_Export):
    def forward(self, zero_filled: Tensor, mask: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        images, size = rescale_pow2(zero_filled[None])
        kspace = fft2c(images)
        kspace = torch.where(broadcast_mask(mask[None], kspace), kspace, 0)
        recovered = self.parts[0].net(kspace, mask[None], central_lines(mask[None]))
        return recovered * size.view(-1, 1, 1), torch.zeros(1)


def _exportable(recover: Any, masks: Tensor, height: int) -> tuple[nn.Module, dict[str, Any]]:
    """Return a reconstruction network ready for export, and settings for drawing its noise."""
    match recover:
        case ResidualFlowSampler():
            shapes = recover.flow.latent_shapes(height, masks.shape[1])
            return _FlowExport(recover), {
                "kind": "gaussian",
                "numbers": sum(math.prod(shape) for shape in shapes),
                "limit": float(recover.flow.config.max_value),
                "attempts": ATTEMPTS,
                "cooler": COOLER,
                # The scale of draws depends on the sampled fraction.
                "deviations": [
                    [int(m.sum()), temperature_at(recover.temperature, m) * noise_scale_of(m)]
                    for m in masks
                ],
            }
        case SamplerRecovery(estimator=TensorEstimator()):
            return _SamplerExport(recover), {"kind": "seeds"}
        case VarNetRecovery():
            return _VarNetExport(recover), {"kind": "none"}
    text = f"a recovery {type(recover).__name__} cannot be exported; use a flow, sampler or VarNet"
    raise InputError(text, code="component.invalid")


def _export_module(module: nn.Module, example: tuple[Tensor, ...], what: str) -> ExportedProgram:
    """Export a module with torch.export, without assumptions about strides."""
    try:
        with torch.no_grad():
            program = torch.export.export(module.eval(), example)
    except Exception as error:
        text = f"torch.export fails for the {what} ({first_line(error):.160})"
        raise InputError(text, code="component.invalid") from None

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


# Allowed relative difference between exported and original outputs.
TOLERANCE = 1e-4


def write_runtime(
    folder: Path,
    policy: Policy,
    recover: Any,
    task: Any,
    columns: Sequence[NDArray[np.intp]],
    shape: tuple[int, int, int],
    fingerprints: Mapping[str, str] | None = None,
) -> Path:
    """Export recovery and task; raise an error if an export and its network disagree."""
    if not isinstance(task, torch.nn.Module):
        text = f"a task must be a torch module, got {type(task).__name__}"
        raise InputError(text, code="component.invalid")
    _, height, width = shape
    masks = torch.zeros(len(columns), width, dtype=torch.bool)
    for k, added in enumerate(columns):
        masks[k:, torch.as_tensor(np.asarray(added))] = True
    module, draws = _exportable(recover, masks, height)
    # The round before the last: networks are more stable with more lines.
    mask = masks[max(0, len(masks) - 2)]
    zero_filled = ifft2c(torch.where(mask, fft2c(_example_slice(*shape)), 0))
    example = (zero_filled, mask, _example_draws(draws, policy.samples))
    recovery = _export_module(module, example, "recovery")
    with torch.no_grad():
        images = module(*example)[0]
        executor = Executor(recover, task, fingerprints=fingerprints or {})
        exported_task = _export_module(task, (images,), "task")
        _require_agreeing(recovery.module()(*example)[0], images, "recovery")
        _require_agreeing(exported_task.module()(images), executor.read(images), "task")
    return write_json(folder / MANIFEST, {
        "schema": SCHEMA,
        "policy": fingerprint(policy.to_dict()),
        "shape": list(shape),
        "samples": policy.samples,
        "images": len(images),
        "columns": [np.asarray(added).tolist() for added in columns],
        "recover": {**_saved(recovery, folder / "recover.pt2"), "draws": draws,
                    "made_of": executor.name("recover"), "mark": executor.fingerprint("recover")},
        "task": {**_saved(exported_task, folder / "task.pt2"),
                 "made_of": executor.name("task"), "mark": executor.fingerprint("task")},
        "versions": {"taskuq": taskuq.__version__, "torch": torch.__version__},
    })  # fmt: skip


def _example_draws(draws: dict[str, Any], samples: int) -> Tensor:

    if draws["kind"] == "gaussian":
        generator = torch.Generator().manual_seed(0)
        return torch.randn(samples, draws["numbers"], generator=generator) / 2
    return torch.arange(samples) if draws["kind"] == "seeds" else torch.zeros(1)


def _example_slice(coils: int, height: int, width: int) -> Tensor:
    """Return coil images of a head-like phantom, on which trained networks are stable."""
    generator = torch.Generator().manual_seed(0)
    y, x = torch.linspace(-1, 1, height)[:, None], torch.linspace(-1, 1, width)
    coarse = torch.randn(1, 1, 8, 8, generator=generator)
    texture = torch.nn.functional.interpolate(coarse, size=(height, width), mode="bicubic")[0, 0]
    inside = torch.sigmoid(20 * (0.7 - torch.sqrt((y / 1.1) ** 2 + x**2)))
    angle = 2 * math.pi * torch.arange(coils).view(-1, 1, 1) / coils
    near = torch.exp(-((y - torch.sin(angle)) ** 2 + (x - torch.cos(angle)) ** 2) / 2)
    seen = torch.polar(near * inside * (1 + 0.3 * texture), angle + x + y)
    noise = torch.randn(2, coils, height, width, generator=generator)
    return seen + 0.01 * torch.complex(noise[0], noise[1])


def _require_agreeing(found: Tensor, expected: Tensor, what: str) -> None:
    apart = float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
    if not apart <= TOLERANCE:
        text = f"the exported {what} differs by {apart:.2g}, more than {TOLERANCE:g}"
        raise InputError(text, code="component.invalid")


def _saved(program: ExportedProgram, path: Path) -> dict[str, Any]:
    with atomic_write(path) as partial, warnings.catch_warnings():
        # Non-contiguous weights are saved contiguously.
        warnings.filterwarnings("ignore", "No complete tensor found")
        with partial.open("wb") as file:
            torch.export.save(program, file)
    return {"file": path.name, "sha256": checksum(path)}
