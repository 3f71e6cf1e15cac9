"""Kernels that Triton compiles for a GPU, where there is one."""

# mypy: ignore-errors
# Kernels are compiled from their text, in a language of its own.

from __future__ import annotations

from functools import lru_cache

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch: no kernel is called, its twin in plain torch runs
    triton = tl = None


def is_available() -> bool:
    """Whether kernels can be compiled here."""
    return triton is not None


def jit(function):
    """Compile by Triton where there is one."""
    return triton.jit(function) if triton else function


@lru_cache
def multiprocessors(device: int) -> int:
    """How many multiprocessors a GPU has."""
    return torch.cuda.get_device_properties(device).multi_processor_count
