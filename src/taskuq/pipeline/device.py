"""Where networks run: which device there is, its memory, and what to do when that runs out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from taskuq.errors import InputError

# Bytes for a batch on a CPU; on a GPU this share of its memory.
MEMORY, SHARE = 2 * 2**30, 0.25


def pick_device(device: str | None) -> str:
    """Return the device to use: what was asked for, or the best one there is.

    Arguments:
        device: 'cpu', 'cuda', 'cuda:1', 'mps', or None.
    """
    import torch

    if device is None:
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device {device!r} cannot be used here ({reason}); try cpu") from None
    return device


def batch_memory(device: str | None) -> float:
    """Return the bytes that the cases of a batch may take on a device."""
    if device is not None and device.startswith("cuda"):
        import torch

        return SHARE * torch.cuda.get_device_properties(device).total_memory
    return MEMORY


def threads_here() -> int | None:
    """Return how many threads torch computes with on the CPU; None where nobody loaded it."""
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


@contextmanager
def pinned_threads(count: int | None) -> Iterator[None]:
    """Let torch compute with so many threads for a while: sums of floats depend on their number.

    Arguments:
        count: How many; None leaves them as they are.
    """
    if count is None:
        yield
        return
    # Here and now: what a worker runs may load it only later, with threads of its own choice.
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def release_memory() -> None:
    """Give back memory that torch holds for later."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def peak_host_bytes() -> int:
    """Return the most memory that this process has had so far.

    Example:
        >>> peak_host_bytes() > 1_000_000
        True
    """
    try:
        status = Path("/proc/self/status").read_text()
        (line,) = (row for row in status.splitlines() if row.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    except (OSError, ValueError):
        # The last resort: on Linux a program starts with the peak of its parent.
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
