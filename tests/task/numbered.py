"""A ResNet-50 whose weights follow from their names: the same on every machine."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np
import torch


def numbered_state(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Weights in float64 that depend on names and shapes alone, of a healthy size."""
    state = {}
    for name, shape in shapes.items():
        normal = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
        if len(shape) > 1:
            value = normal * np.sqrt(2 / np.prod(shape[1:]))
        elif name.endswith("running_var"):
            value = 1 + 0.1 * np.abs(normal)
        elif name.endswith("weight"):
            value = 1 + 0.1 * normal
        else:
            value = 0.1 * normal
        dtype = torch.int64 if name.endswith("tracked") else torch.float64
        state[name] = torch.as_tensor(value).to(dtype)
    return state


def numbered_images() -> torch.Tensor:
    """Two images, (2, 3, 64, 64)."""
    return torch.as_tensor(np.random.default_rng(0).random((2, 3, 64, 64)))
