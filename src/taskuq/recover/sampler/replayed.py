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
        self._key: tuple[Any, ...] = ()
        self._recording: _Recording | None = None

    @torch.no_grad()
    def __call__(
        self, measurements: Sequence[Any], *, samples: int, seeds: Sequence[int]
    ) -> Tensor:
        """Return posterior samples, (case, sample, height, width)."""
        given, tensors = len(seeds), self.estimating.tensors(measurements)
        if given < self._cases <= 2 * given:
            # A last batch that is smaller: filled up with its last case, it needs no recording.
            more = self._cases - given
            tensors = tuple(torch.cat([x, x[-1:].expand(more, *x.shape[1:])]) for x in tensors)
            seeds = [*seeds, *[seeds[-1]] * more]
        pixels = math.prod(tensors[0].shape[-2:]) * len(seeds)
        # Chunks of equally many samples, so that one graph serves.
        count = math.ceil(samples / max(1, self.together // pixels))
        chunk = math.ceil(samples / count)
        shapes = tuple((x.shape, x.dtype) for x in tensors)
        if count == 1 and chunk < self._chunk(shapes):
            # A scan that is measured in full asks for one sample: recording it, and the next scan's
            # first round after it, would take far longer than samples that nobody looks at.
            chunk = self._chunk(shapes)
        key = (chunk, *shapes)
        if self._recording is None or key != self._key:
            self._recording = None  # its memory is free for the next one
            self._recording, self._key = _Recording(self, tensors, chunk), key
        self._recording.know(tensors)
        images = []
        for first in range(0, count * chunk, chunk):
            numbers = range(first, first + chunk)
            rows = [mixed_seed(seed, j, 0) for seed in seeds for j in numbers]
            images.append(self._recording.draw(rows))
        return torch.cat(images, dim=1)[:given, :samples]

    def _chunk(self, shapes: tuple[object, ...]) -> int:
        """How many samples were recorded for inputs of these shapes."""
        return int(self._key[0]) if self._key[1:] == shapes else 0

    @property
    def _cases(self) -> int:
        """How many cases were recorded."""
        return 0 if self._recording is None else self._recording.cases


class _Recording:
    """The work for one shape of input, with its buffers; two graphs replay it."""

    found: Estimated
    known: Any
    size: tuple[int, int]

    def __init__(self, owner: ReplayedDraws, tensors: Sequence[Tensor], samples: int) -> None:
        self.owner = owner
        self.inputs = [x.clone() for x in tensors]
        self.cases = cases = len(tensors[0])
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
        told = self.found.inputs()
        self.size = (told.shape[-2], told.shape[-1])
        self.known = self.owner.net.know(told, self.found.share())

    def _draw(self) -> Tensor:
        noise = normal_numbers(self.seeds, self.owner.net.noise_size(*self.size))
        return self.found.images(self.owner.net.draw(self.known, apart(noise, self.cases)))
