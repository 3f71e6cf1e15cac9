"""Draw with a trained sampler: what is known once for a case, then any number of samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from taskuq.errors import InputError
from taskuq.recover.sampler.estimated import Estimated, OnTensors
from taskuq.recover.sampler.folded import FoldedSampler, fold_sampler
from taskuq.recover.sampler.network import SamplerNet, apart
from taskuq.recover.sampler.noise import normal_numbers
from taskuq.recover.sampler.replayed import ReplayedDraws
from taskuq.recover.sampler.widening import Louder
from taskuq.seeds import mixed_seed

# Pixels that are drawn together: a GPU wants many, a CPU's cache holds few.
TOGETHER = {"cuda": 2**22, "cpu": 2**17}


@torch.no_grad()
def drawn(
    net: SamplerNet | FoldedSampler | Louder,
    found: Estimated,
    *,
    samples: int,
    seeds: Sequence[int],
    dtype: torch.dtype = torch.float32,
    compose: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Draw images (case, sample, height, width) around estimated cases.

    A sample depends on its case, the case's seed and its own index, not on what is drawn with it.

    Arguments:
        net: The sampler, where the estimates are.
        found: The estimated cases.
        samples: How many samples of each case.
        seeds: One seed for each case.
        dtype: The precision of the network: float32 or bfloat16.
        compose: What is made of residuals; by default the estimates' images.
    """
    if samples < 1:
        raise InputError(f"{samples} samples are asked for; ask for at least 1")
    told = found.inputs()
    kind = told.device.type
    height, width = told.shape[-2:]
    chunk = max(1, TOGETHER.get(kind, 2**17) // (len(told) * height * width))
    count = net.noise_size(height, width)
    images = []
    with torch.autocast(kind, dtype, enabled=dtype != torch.float32):
        known: Any = net.know(told, found.share())
    for start in range(0, samples, chunk):
        numbers = range(start, min(start + chunk, samples))
        rows = torch.tensor([[mixed_seed(seed, j, 0) for j in numbers] for seed in seeds])
        noise = normal_numbers(rows.flatten().to(told.device), count)
        with torch.autocast(kind, dtype, enabled=dtype != torch.float32):
            residuals = net.draw(known, apart(noise, len(seeds)))
        images.append((compose or found.images)(residuals.float()))
    return torch.cat(images, dim=1)


class SamplerRecovery:
    """Posterior samples by a sampler around estimates.

    Arguments:
        net: The sampler, on the device where it shall run.
        estimating: What makes estimated cases of measurements, on the same device.
        dtype: The precision of the sampler; by default bfloat16 on a GPU, float32 elsewhere.
        loudness: How loud noise is at each acceleration
            (:func:`taskuq.recover.sampler.widening.loudness_of`); as it was learned by default.
    """

    def __init__(
        self,
        net: SamplerNet,
        estimating: Callable[[Sequence[Any]], Estimated],
        *,
        dtype: torch.dtype | None = None,
        loudness: Sequence[float] | None = None,
    ) -> None:
        self.loudness = loudness
        self.net, self.estimating = net.eval(), estimating
        device = next(net.parameters()).device
        on_gpu = device.type == "cuda"
        self.dtype = dtype or (torch.bfloat16 if on_gpu else torch.float32)
        self._drawing: Any = net
        self._replayed: ReplayedDraws | None = None
        if on_gpu and isinstance(net, SamplerNet):
            self._drawing = fold_sampler(net, device=device, dtype=self.dtype)
        if loudness is not None:
            self._drawing = Louder(self._drawing, torch.tensor(loudness, device=device))
        if on_gpu and isinstance(net, SamplerNet):
            of_tensors: Any = estimating
            if isinstance(of_tensors, OnTensors):
                together = TOGETHER["cuda"]
                self._replayed = ReplayedDraws(self._drawing, of_tensors, together=together)
        # No draw is ever refused.
        self.rejected = 0

    def __call__(self, measurement: Any, *, samples: int, seed: int) -> Tensor:
        """Return posterior samples, (sample, height, width)."""
        return self.batch([measurement], samples=samples, seeds=[seed])[0]

    def batch(self, measurements: Sequence[Any], *, samples: int, seeds: Sequence[int]) -> Tensor:
        """Return posterior samples of several cases, (case, sample, height, width)."""
        if self._replayed is not None and samples > 0:
            return self._replayed(measurements, samples=samples, seeds=seeds)
        found = self.estimating(measurements)
        return drawn(self._drawing, found, samples=samples, seeds=seeds, dtype=self.dtype)

    def coil_images(self, measurement: Any, *, samples: int, seed: int) -> Tensor:
        """Return posterior samples before coils are combined, (sample, coil, height, width)."""
        found: Any = self.estimating([measurement])
        if not hasattr(found, "coils"):
            raise InputError("the estimates have no coils; ask for images")
        with_coils = drawn(
            self._drawing,
            found,
            samples=samples,
            seeds=[seed],
            dtype=self.dtype,
            compose=found.coils,
        )
        return with_coils[0]

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        # Recorded GPU work cannot travel to another process; it is recorded there again.
        again = partial(SamplerRecovery, dtype=self.dtype, loudness=self.loudness)
        return again, (self.net, self.estimating)
