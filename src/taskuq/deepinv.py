"""Adapters between deepinv (physics, models) and taskuq (measurements, reconstructions)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from taskuq.errors import InputError, import_extra

import_extra("torch", "taskuq[mri]")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from taskuq import conformal  # noqa: E402
from taskuq._seeds import as_seed  # noqa: E402
from taskuq.measure._coils import to_channels  # noqa: E402
from taskuq.measure._fourier import ifft2c, image_seed, round_at  # noqa: E402
from taskuq.measure._mri import MRIMeasurement  # noqa: E402
from taskuq.measure._systems import CallableMeasure  # noqa: E402
from taskuq.pipeline import Pipeline  # noqa: E402
from taskuq.pipeline._executor import Executor  # noqa: E402
from taskuq.protocols import Recover, Task  # noqa: E402

__all__ = ["DeepinvMeasure", "DeepinvMeasurement", "DeepinvModel", "DeepinvRecover", "calibrate"]


@dataclass(frozen=True, eq=False)
class DeepinvMeasurement:
    """Measurement of one image, with a leading axis of length 1, and its physics."""

    y: Tensor
    physics: Any


@dataclass(frozen=True, eq=False)
class DeepinvMeasure:
    """Imaging system built from one deepinv physics per acceleration.

    Args:
        physics: Physics of deepinv by acceleration, in decreasing order of acceleration.
        seed: Seed for the noise of each image; None for physics without random noise.
    """

    physics: Mapping[float, Any]
    seed: int | None = None

    def __post_init__(self) -> None:
        CallableMeasure(self.physics)

    @property
    def accelerations(self) -> tuple[float, ...]:
        """Acceleration of each round, decreasing."""
        return tuple(self.physics)

    def __call__(self, image: Tensor, acceleration: float) -> DeepinvMeasurement:
        """Measure one image, (height, width) or (channel, height, width)."""
        if image.ndim not in (2, 3):
            text = f"the image has shape {tuple(image.shape)}; pass 2 or 3 axes"
            raise InputError(text, code="shape.axes")
        channels = image if image.ndim == 3 else image[None]
        batch = (to_channels(channels) if torch.is_complex(channels) else channels)[None]
        keywords = {} if self.seed is None else {"seed": image_seed(image, self.seed)}
        physics = self.physics[self.accelerations[round_at(acceleration, self.accelerations)]]
        return DeepinvMeasurement(physics(batch, **keywords), physics)


def _magnitude(images: Any) -> Any:
    """Remove the channel axis; two channels, real and imaginary part, become the magnitude."""
    return images[:, 0] if images.shape[1] == 1 else (images**2).sum(1) ** 0.5


@dataclass(frozen=True, eq=False)
class DeepinvRecover:
    """Reconstruction method that calls a deepinv model on data of :class:`DeepinvMeasure`.

    The global random generators of torch and NumPy, which deepinv uses, are seeded for each call
    and restored afterwards.

    Args:
        model: Model, called as ``model(y, physics)``, and with ``seed`` if it has this parameter.
        kind: 'point' if a call returns a point estimate; 'sampler' if it returns one sample
            per image (DDRM, DiffPIR, PosteriorDiffusion); 'chain' if it runs a Markov chain (ULA,
            SKRock, sampling_builder), whose last states are used as samples.
        together: Number of samples that a sampler draws in one batch; it affects the results.
        finish: Function from (image, channel, height, width) to (image, height, width);
            default: the magnitude.

    Example:
        >>> def sampler(y, physics, seed=None):  # stands for deepinv.sampling.DDRM(...)
        ...     return y + torch.randn(y.shape, generator=torch.Generator().manual_seed(seed))
        >>> scan = DeepinvMeasurement(torch.zeros(1, 1, 4, 4), physics=None)
        >>> DeepinvRecover(sampler)(scan, samples=3, seed=0).shape
        torch.Size([3, 4, 4])
    """

    model: Any
    kind: Literal["point", "sampler", "chain"] = "sampler"
    together: int = 1
    finish: Callable[[Any], Any] = _magnitude

    def __post_init__(self) -> None:
        if self.kind not in ("point", "sampler", "chain") or self.together < 1:
            text = "kind must be point, sampler or chain and together at least 1, got "
            raise InputError(f"{text}{self.kind!r} and {self.together}", code="choice.unknown")
        if self.kind == "chain" and not hasattr(self.model, "get_chain"):
            name = type(self.model).__name__
            raise InputError(f"{name} has no chain; use another kind", code="component.invalid")

    def __call__(self, measurement: Any, *, samples: int, seed: int) -> Any:
        """Return samples (sample, height, width), or one point estimate (1, height, width)."""
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
            text = f"the model must return {wanted} images (image, channel, height, width), got "
            raise InputError(f"{text}shape {tuple(images.shape)}", code="component.invalid")
        return self.finish(images.detach())

    def _call(self, y: Any, physics: Any, seed: int) -> Any:
        takes_seed = "seed" in _parameters(self.model)
        # NumPy takes 32 bits, and deepinv takes 0 for no seed.
        small = seed % (2**32 - 1) + 1
        with _own_generators(small):
            return self.model(y, physics, **({"seed": small} if takes_seed else {}))

    def _states(self, samples: int) -> list[Any]:
        """Return the last ``samples`` states that the Markov chain keeps."""
        chain = self.model
        kept = sum(
            step >= chain.max_iter * chain.burnin_ratio and step % chain.thinning == 0
            for step in range(chain.max_iter)
        )
        states = list(chain.get_chain())
        if min(kept, len(states)) < samples:
            text = f"the chain keeps {min(kept, len(states))} states for {samples} samples; use "
            text += "more iterations, less thinning, or history_size=True"
            raise InputError(text, code="samples.mismatch")
        return states[-samples:]


@contextmanager
def _own_generators(seed: int) -> Iterator[None]:
    """Seed the global random generators for the block, and restore them afterwards."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    state = np.random.get_state()  # noqa: NPY002  # it is the global one that deepinv seeds
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        try:
            yield
        finally:
            np.random.set_state(state)  # noqa: NPY002


def mri_measurement(y: Tensor, physics: Any) -> MRIMeasurement:
    """Return a measurement of one image from deepinv k-space (1, 2, [coil,] height, width)."""
    kspace = torch.complex(y[0, 0], y[0, 1])
    kspace = kspace if kspace.ndim == 3 else kspace[None]
    mask = torch.as_tensor(physics.mask)[0].bool().flatten(0, -2)
    if kspace.ndim != 3 or not (mask == mask[0]).all():
        text = f"the network needs k-space with masked columns, got y {tuple(y.shape)} and a mask "
        raise InputError(f"{text}that differs between rows", code="shape.axes")
    return MRIMeasurement(ifft2c(kspace), mask[0], mask.shape[1] / float(mask[0].sum()))


class DeepinvModel(torch.nn.Module):
    """Reconstruction method of taskuq as a deepinv model, ``model(y, physics)``.

    Args:
        recover: Reconstruction method, e.g. from :func:`taskuq.recover.open_recovery`.
        samples: Number of posterior samples; the model returns their mean.
        measurement: Function from (y, physics) of one image to the measurement that ``recover``
            needs; the default is for the MRI physics of deepinv with column masks.

    Example:
        >>> from types import SimpleNamespace
        >>> from taskuq.recover import open_recovery
        >>> model = DeepinvModel(open_recovery("varnet-atlas"))
        >>> mri = SimpleNamespace(mask=(torch.arange(32) % 2 == 0).expand(1, 1, 32, 32))
        >>> model(torch.rand(3, 2, 8, 32, 32), mri).shape  # (image, 2, coil, height, width)
        torch.Size([3, 1, 32, 32])
    """

    def __init__(
        self,
        recover: Recover,
        samples: int = 1,
        measurement: Callable[[Tensor, Any], Any] = mri_measurement,
    ) -> None:
        super().__init__()
        self.recover, self.samples, self.measurement = recover, samples, measurement

    def forward(self, y: Tensor, physics: Any, seed: int | None = None, **kwargs: Any) -> Tensor:
        """Return the posterior mean of each image, (image, 1, height, width)."""
        first = int(torch.randint(2**62, ())) if seed is None else seed
        sample = Executor(self.recover, task=torch.flatten).sample_with_seed
        found = [
            sample(self.measurement(one[None], physics), self.samples, first + k)
            for k, one in enumerate(y)
        ]
        return torch.stack([torch.as_tensor(images).mean(0, keepdim=True) for images in found])


def calibrate(
    model: Any,
    physics: Any,
    images: Sequence[Tensor] | Tensor,
    task: Task,
    *,
    alpha: float,
    samples: int = 32,
    kind: Literal["point", "sampler", "chain"] = "sampler",
    together: int = 1,
    seed: int | np.random.Generator = 0,
    **options: Any,
) -> conformal.Bound:
    """Calibrate a bound for a task on images that a deepinv model reconstructs.

    Each image is measured with the physics and reconstructed with the model. The task is run on
    the posterior samples and on the true image.

    Args:
        model: Reconstructor, sampler or Markov chain of deepinv.
        physics: Physics of deepinv.
        images: True images (case, [channel,] height, width).
        task: Function from images (image, height, width) to one number per image.
        alpha: Error rate in (0, 1).
        samples: Number of posterior samples per image.
        kind: Kind of model, as in :class:`DeepinvRecover`.
        together: Number of samples that a sampler draws in one batch.
        seed: Integer or Generator for noise and samples.
        options: Options of :func:`taskuq.calibrate`, e.g. ``score``, ``group`` or ``task_range``.

    Raises:
        InputError: If the model fails for an image, or options do not fit the images.

    Example:
        >>> images = torch.rand(40, 8, 8, generator=torch.Generator().manual_seed(0))
        >>> def sampler(y, physics):  # stands for deepinv.sampling.DDRM(...)
        ...     return y + 0.1 * torch.randn(y.shape)
        >>> bound = calibrate(sampler, lambda x: x, images, lambda x: x.amax((1, 2)), alpha=0.1)
        >>> bound.guarantee.alpha
        0.1
    """
    seed = as_seed(seed)
    measure = DeepinvMeasure(
        {2.0: physics}, seed if _parameters(physics).keys() & {"seed", "kwargs"} else None
    )
    pipeline = Pipeline(measure, DeepinvRecover(model, kind, together), task)
    table = pipeline.run(images, accelerations=(2.0,), samples=samples, seed=seed, progress=False)
    if table.missing_cases:
        text = f"{len(table.missing_cases)} of {len(images)} images failed; see the log above"
        raise InputError(text, code="component.invalid")
    return conformal.calibrate(table.outputs[0], table.targets, alpha=alpha, **options)


def _parameters(model: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(
        model.forward if isinstance(model, torch.nn.Module) else model
    ).parameters
