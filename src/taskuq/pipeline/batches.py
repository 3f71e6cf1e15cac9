"""Cases that run together: how many fit, and what happens when they do not."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from taskuq.errors import InputError
from taskuq.pipeline.chain import CaseOutputs, Chain

# Bytes for a batch on a CPU; on a GPU this share of its memory.
MEMORY, SHARE = 2 * 2**30, 0.25
# A network holds some 64 numbers for each pixel of an image it reads (ResNet-50 the most).
NUMBERS = 64
# On an H200 the sampler gains nothing beyond 16 cases at a time.
MOST = 16


def batch_size(
    recover: Any,
    image: Any,
    *,
    samples: int,
    cases: int,
    device: str | None = None,
    batch: int | None = None,
) -> int:
    """Return how many cases run at once; it depends on the run and the device, not on the moment.

    Arguments:
        recover: The recovery; without a method ``batch`` cases run one by one.
        image: One of the images.
        samples: Posterior samples per case and round.
        cases: All cases of the run, also those already finished.
        device: Where networks run.
        batch: What the user asks for; chosen by memory where None.

    Example:
        >>> class Recover:
        ...     def batch(self, measurements, *, samples, seeds): ...
        >>> batch_size(Recover(), np.ones((320, 320)), samples=32, cases=100)
        2
        >>> batch_size(Recover(), np.ones((128, 128)), samples=32, cases=100)
        15
    """
    if batch is not None and batch < 1:
        raise InputError(f"batch must be at least 1, got {batch}")
    if not hasattr(recover, "batch"):
        return 1
    if batch is None:
        shape = tuple(image.shape)
        # Networks on coil images hold a real and an imaginary channel for each coil.
        copies = max(samples, 2 * math.prod(shape[:-2]))
        need = 4 * NUMBERS * copies * math.prod(shape[-2:])
        batch = max(1, min(MOST, int(_memory(device) / need)))
    # Equal batches, so that few cases are run for nothing in the last one.
    return math.ceil(cases / math.ceil(cases / batch))


def _memory(device: str | None) -> float:
    if device is not None and device.startswith("cuda"):
        import torch

        return SHARE * torch.cuda.get_device_properties(device).total_memory
    return MEMORY


class Batches:
    """Runs cases together, and in smaller batches once memory has run out.

    Arguments:
        chain: Measurement, recovery and task.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.halvings = 0

    def run(
        self, items: Sequence[tuple[int, str, Any]]
    ) -> Iterator[tuple[int, CaseOutputs | Exception]]:
        """Yield for each case its numbers, or why there are none.

        A case that makes its batch fail is found by halving the batch; the others do not suffer.

        Arguments:
            items: Number, identity and image of each case; the images have one shape.
        """
        waiting = [list(items)] if items else []
        while waiting:
            part = waiting.pop()
            if len(part) > self.chain.size:
                waiting += [part[self.chain.size :], part[: self.chain.size]]
                continue
            error = None
            try:
                found = self.chain.scan([image for _, _, image in part], [n for _, n, _ in part])
            except Exception as reason:  # one bad case must not end a run of hours
                # Without its frames, which hold on to the memory that ran out.
                error = reason.with_traceback(None)
            if error is None:
                yield from zip((index for index, _, _ in part), found, strict=True)
            elif is_out_of_memory(error) and self.chain.size > 1:
                self.chain = replace(self.chain, size=self.chain.size // 2)
                self.halvings += 1
                release_memory()
                waiting.append(part)
            elif len(part) > 1:
                middle = len(part) // 2
                waiting += [part[middle:], part[:middle]]
            else:
                yield part[0][0], error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory has run out, on a GPU or beside it.

    Example:
        >>> is_out_of_memory(MemoryError()), is_out_of_memory(ValueError("memory"))
        (True, False)
    """
    torch = sys.modules.get("torch")
    kinds = (MemoryError,) if torch is None else (MemoryError, torch.OutOfMemoryError)
    # On a CPU torch raises a bare RuntimeError.
    on_cpu = type(error) is RuntimeError and "allocate memory" in str(error)
    return isinstance(error, kinds) or on_cpu


def release_memory() -> None:
    """Give back memory that torch holds for later."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
