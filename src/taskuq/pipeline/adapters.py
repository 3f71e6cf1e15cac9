"""Other people's recoveries: any deepinv reconstructor, sampler or Markov chain."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from taskuq.errors import InputError
from taskuq.protocols import MarkovChain


def magnitude(images: Any) -> Any:
    r"""Combine the channels of images: one is the image, several are real and imaginary parts.

    .. math:: |x| = \sqrt{\textstyle\sum_c x_c^2}

    Arguments:
        images: (image, channel, height, width).

    Example:
        >>> magnitude(np.array([[[[3.0]], [[4.0]]]])).tolist()
        [[[5.0]]]
    """
    return images[:, 0] if images.shape[1] == 1 else (images**2).sum(1) ** 0.5


@dataclass(frozen=True, eq=False)
class PhysicsRecovery:
    """A deepinv model as a Recover, for what its physics measured.

    That comes from :class:`taskuq.measure.adapters.PhysicsMeasure`. Samples come from a seed of
    their own, and the generators of torch and NumPy are left as they were: deepinv draws from the
    global ones.

    Arguments:
        model: Called as ``model(y, physics)`` and, where it takes one, with ``seed``.
        kind: 'point' for a reconstructor, which gives one image; 'sampler' for one that draws a
            sample each time (DDRM, DiffPIR, PosteriorDiffusion); 'chain' for a Markov chain (ULA,
            SKRock, sampling_builder) whose last states are the samples.
        together: Samples that a sampler draws in one call; its numbers depend on that.
        finish: Makes images (image, height, width) of what the model gave, (image, channel,
            height, width).

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> def sampler(y, physics, seed=None):  # stands for deepinv.sampling.DDRM(...)
        ...     return y + torch.randn(y.shape, generator=torch.Generator().manual_seed(seed))
        >>> scan = SimpleNamespace(y=torch.zeros(1, 1, 4, 4), physics=None)
        >>> PhysicsRecovery(sampler)(scan, samples=3, seed=0).shape
        torch.Size([3, 4, 4])
    """

    model: Any
    kind: Literal["point", "sampler", "chain"] = "sampler"
    together: int = 1
    finish: Callable[[Any], Any] = magnitude

    def __post_init__(self) -> None:
        if self.kind not in ("point", "sampler", "chain") or self.together < 1:
            raise InputError(
                f"kind is {self.kind!r} and together {self.together}; choose point, sampler or "
                "chain, and draw at least one sample in a call"
            )
        if self.kind == "chain" and not isinstance(self.model, MarkovChain):
            raise InputError(
                f"{type(self.model).__name__} keeps no chain; choose the kind sampler or point"
            )

    def __call__(self, measurement: Any, *, samples: int, seed: int) -> Any:
        """Return recoveries, (sample, height, width)."""
        import torch

        y, physics = measurement.y, measurement.physics
        if self.kind == "point":
            images = self._call(y, physics, seed)
        elif self.kind == "chain":
            self._call(y, physics, seed)
            images = torch.cat([state["x"] for state in self._states(samples)])
        else:
            parts = []
            for first in range(0, samples, self.together):
                batch = y.repeat_interleave(min(self.together, samples - first), dim=0)
                parts.append(self._call(batch, physics, seed + first))
            images = torch.cat(parts)
        wanted = 1 if self.kind == "point" else samples
        if images.ndim != 4 or len(images) != wanted:
            raise InputError(
                f"the model gave shape {tuple(images.shape)}; {wanted} images (image, channel, "
                "height, width) are needed"
            )
        return self.finish(images.detach())

    def _call(self, y: Any, physics: Any, seed: int) -> Any:
        import torch

        function = self.model.forward if isinstance(self.model, torch.nn.Module) else self.model
        takes_seed = "seed" in inspect.signature(function).parameters
        # NumPy takes 32 bits, and deepinv takes 0 for no seed.
        small = seed % (2**32 - 1) + 1
        with _own_generators(small):
            return self.model(y, physics, **({"seed": small} if takes_seed else {}))

    def _states(self, samples: int) -> list[Any]:
        """Return the last states of the chain, without the one it started from."""
        chain = self.model
        kept = sum(
            step >= chain.max_iter * chain.burnin_ratio and step % chain.thinning == 0
            for step in range(chain.max_iter)
        )
        states = list(chain.get_chain())
        if min(kept, len(states)) < samples:
            raise InputError(
                f"the chain keeps {min(kept, len(states))} states, but {samples} samples are "
                "asked for; give it more iterations, less thinning, or history_size=True"
            )
        return states[-samples:]


@contextmanager
def _own_generators(seed: int) -> Iterator[None]:
    """Seed the global generators for a while, and give them back as they were."""
    import torch

    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    state = np.random.get_state()  # noqa: NPY002  # it is the global one that deepinv seeds
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        try:
            yield
        finally:
            np.random.set_state(state)  # noqa: NPY002
