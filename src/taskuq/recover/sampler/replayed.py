"""Draw on a GPU by replaying: estimates and what is known of cases, then samples in chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from taskuq.recover.recorded import record
from taskuq.recover.sampler.estimated import Estimated, OnTensors
from taskuq.recover.sampler.network import apart
from taskuq.recover.sampler.noise import normal_numbers
from taskuq.seeds import mixed_seed


class ReplayedDraws:
    """Recorded draws for the shape of measurements and the number of samples met last.

    Arguments:
        net: What knows cases and draws: a folded sampler, or a network with the same methods.
        estimating: What makes estimated cases.
        together: Pixels that are drawn at one time.
        graphs: Whether to record; otherwise the same steps are taken as they are.
    """

    def __init__(
        self, net: Any, estimating: OnTensors, *, together: int, graphs: bool = True
    ) -> None:
        self.net, self.estimating = net, estimating
        self.together, self.graphs = together, graphs
        self._key: tuple[object, ...] = ()
        self._recording: _Recording | None = None

    @torch.no_grad()
    def __call__(
        self, measurements: Sequence[Any], *, samples: int, seeds: Sequence[int]
    ) -> Tensor:
        """Return posterior samples, (case, sample, height, width)."""
        tensors = self.estimating.tensors(measurements)
        pixels = math.prod(tensors[0].shape[-2:]) * len(seeds)
        # Chunks of equally many samples, so that one graph serves.
        count = math.ceil(samples / max(1, self.together // pixels))
        chunk = math.ceil(samples / count)
        key = (chunk, *((x.shape, x.dtype) for x in tensors))
        if self._recording is None or key != self._key:
            self._recording = None  # its memory is free for the next one
            self._recording, self._key = _Recording(self, tensors, chunk), key
        self._recording.know(tensors)
        images = [
            self._recording.draw(
                [
                    mixed_seed(seed, j, 0)
                    for seed in seeds
                    for j in range(k * chunk, (k + 1) * chunk)
                ]
            )
            for k in range(count)
        ]
        return torch.cat(images, dim=1)[:, :samples]


class _Recording:
    """The work for one shape of input, with its buffers; two graphs replay it."""

    found: Estimated
    known: Any

    def __init__(self, owner: ReplayedDraws, tensors: Sequence[Tensor], samples: int) -> None:
        self.owner = owner
        self.inputs = [x.clone() for x in tensors]
        cases = len(tensors[0])
        self.cases, self.size = cases, tuple(tensors[0].shape[-2:])
        self.seeds = torch.zeros(cases * samples, dtype=torch.int64, device=tensors[0].device)
        self.steps = record(self._know, self._draw) if owner.graphs else []

    def know(self, tensors: Sequence[Tensor]) -> None:
        """Take measurements, estimate them and compute what all of their samples share."""
        for buffer, x in zip(self.inputs, tensors, strict=True):
            buffer.copy_(x)
        if self.steps:
            self.steps[0][0].replay()
        else:
            self._know()

    def draw(self, seeds: Sequence[int]) -> Tensor:
        """Draw one chunk, (case, sample, height, width)."""
        self.seeds.copy_(torch.tensor(seeds))
        if not self.steps:
            return self._draw()
        graph, images = self.steps[1]
        graph.replay()
        drawn: Tensor = images.clone()
        return drawn

    def _know(self) -> None:
        self.found = self.owner.estimating.of(*self.inputs)
        self.known = self.owner.net.know(self.found.inputs(), self.found.share())

    def _draw(self) -> Tensor:
        noise = normal_numbers(self.seeds, self.owner.net.noise_size(*self.size))
        return self.found.images(self.owner.net.draw(self.known, apart(noise, self.cases)))
