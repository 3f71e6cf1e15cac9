"""Write a runtime: programs of recovery and task, the lines of each round, and fingerprints."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.export import ExportedProgram

import taskuq
from taskuq.decide.policy import Policy
from taskuq.decide.steps import named
from taskuq.errors import InputError
from taskuq.files import whole_file, write_json
from taskuq.fingerprints import fingerprint
from taskuq.measure.fourier import fft2c, ifft2c
from taskuq.protocols import NamedPart
from taskuq.runs.runtime.manifest import MANIFEST, SCHEMA, checksum
from taskuq.runs.runtime.programs import drawing_of, written_down

# How far outputs of a runtime may be from those of the networks it was made of.
AGREES = 1e-4


def write_runtime(
    folder: Path,
    policy: Policy,
    recover: Any,
    task: Any,
    columns: Sequence[NDArray[np.intp]],
    shape: tuple[int, int, int],
) -> Path:
    """Write recovery and task as programs, and see that they say what the networks say.

    Arguments:
        folder: Where to write; what is there is replaced.
        policy: The policy they will decide with.
        recover: The recovery, on the CPU.
        task: The task, a torch module on the CPU.
        columns: The columns of k-space that each round adds.
        shape: Coil, height, width of a slice.
    """
    if not isinstance(task, torch.nn.Module):
        raise InputError(f"a task {type(task).__name__} is no torch module; give its weights")
    _, height, width = shape
    masks = torch.zeros(len(columns), width, dtype=torch.bool)
    for k, added in enumerate(columns):
        masks[k:, torch.as_tensor(np.asarray(added))] = True
    drawing = drawing_of(recover, masks, height)
    # The round before the last: with more lines networks are steadier.
    mask = masks[max(0, len(masks) - 2)]
    zero_filled = ifft2c(torch.where(mask, fft2c(example_slice(*shape)), 0))
    given = (zero_filled, mask, example_draws(drawing.draws, policy.samples))
    recovery = written_down(drawing.module, given, "recovery")
    with torch.no_grad():
        images = drawing.module(*given)[0]
        seen = written_down(task, (images,), "task")
        _require_agreeing(recovery.module()(*given)[0], images, "recovery")
        _require_agreeing(seen.module()(images), task(images), "task")
    return write_json(folder / MANIFEST, {
        "schema": SCHEMA,
        "policy": fingerprint(policy.to_dict()),
        "shape": list(shape),
        "samples": policy.samples,
        "images": len(images),
        "columns": [np.asarray(added).tolist() for added in columns],
        "recover": {**_saved(recovery, folder / "recover.pt2"), "draws": drawing.draws,
                    "made_of": named(recover), "mark": _mark(recover)},
        "task": {**_saved(seen, folder / "task.pt2"), "made_of": named(task), "mark": _mark(task)},
        "versions": {"taskuq": taskuq.__version__, "torch": torch.__version__},
    })  # fmt: skip


def _mark(part: Any) -> str:
    """What a run calls a network; nothing where it was not opened by its weights."""
    return str(part.fingerprint) if isinstance(part, NamedPart) else ""


def example_draws(draws: dict[str, Any], samples: int) -> Tensor:
    """Return draws of the right size, the same every time."""
    if draws["kind"] == "gaussian":
        generator = torch.Generator().manual_seed(0)
        return torch.randn(samples, draws["numbers"], generator=generator) / 2
    return torch.arange(samples) if draws["kind"] == "seeds" else torch.zeros(1)


def example_slice(coils: int, height: int, width: int) -> Tensor:
    """Return coil images of something like a head: networks are steady on what they know.

    On a square with nothing around it a variational network multiplies rounding by a million.

    Arguments:
        coils: How many coils, around the head.
        height: Rows.
        width: Columns.

    Example:
        >>> example_slice(2, 16, 16).shape
        torch.Size([2, 16, 16])
    """
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
    if not apart <= AGREES:
        raise InputError(
            f"the program of the {what} is {apart:.2g} away from what it was made of, and "
            f"{AGREES:g} is allowed; nothing is written"
        )


def _saved(program: ExportedProgram, path: Path) -> dict[str, Any]:
    with whole_file(path) as partial, warnings.catch_warnings():
        # Weights whose memory is not in order are written in order, which is meant.
        warnings.filterwarnings("ignore", "No complete tensor found")
        with partial.open("wb") as file:
            torch.export.save(program, file)
    return {"file": path.name, "sha256": checksum(path)}
