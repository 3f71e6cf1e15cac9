"""Recoveries from deepinv models and from folders of precomputed images."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from taskuq._io import open_npz, reading, require_plausible_size, safe_join
from taskuq.errors import InputError


def _magnitude(images: Any) -> Any:
    """Return the magnitude of images; several channels are real and imaginary parts."""
    return images[:, 0] if images.shape[1] == 1 else (images**2).sum(1) ** 0.5


@dataclass(frozen=True, eq=False)
class DeepinvRecover:
    """Recovery that calls a deepinv model.

    Measurements come from :class:`taskuq.measure._adapters.DeepinvMeasure`. The global generators
    of torch and NumPy, which deepinv uses, are seeded for each call and then restored.

    Args:
        model: Model, called as ``model(y, physics)``, with ``seed`` if it accepts one.
        kind: 'point' for a reconstructor of one image; 'sampler' for one sample per call (DDRM,
            DiffPIR, PosteriorDiffusion); 'chain' for a Markov chain (ULA, SKRock,
            sampling_builder) whose last states are the samples.
        together: Number of samples per call of a sampler; results depend on it.
        finish: Function that converts (image, channel, height, width) to (image, height, width).

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> def sampler(y, physics, seed=None):  # stands for deepinv.sampling.DDRM(...)
        ...     return y + torch.randn(y.shape, generator=torch.Generator().manual_seed(seed))
        >>> scan = SimpleNamespace(y=torch.zeros(1, 1, 4, 4), physics=None)
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
            text = f"the model must return {wanted} images (image, channel, height, width), got "
            raise InputError(f"{text}shape {tuple(images.shape)}", code="component.invalid")
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
        """Return the last states of the chain, without its initial state."""
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
    """Seed the global generators and restore them afterwards."""
    import torch

    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    state = np.random.get_state()  # noqa: NPY002  # it is the global one that deepinv seeds
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        try:
            yield
        finally:
            np.random.set_state(state)  # noqa: NPY002


ENDINGS = (".npz", ".npy", ".nii.gz", ".nii")


@dataclass(frozen=True)
class RecoveryFolder:
    """Recovery that reads a folder of precomputed reconstructions.

    The recoveries of case ``a`` at R = 8 are one file ``a/R8.npz`` with all samples, or a folder
    ``a/R8/`` with one file per sample, ordered by name. Files are .npz (one array), .npy, .nii or
    .nii.gz. Arrays are (sample, height, width), or (height, width) for one sample. NIfTI volumes
    are (x, y, sample) and are rotated like NIfTI image data. Complex values are replaced by their
    magnitude.

    Args:
        path: Folder of the reconstructions.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "a").mkdir()
        >>> np.savez(folder / "a/R8.npz", recoveries=np.ones((4, 16, 16)))
        >>> RecoveryFolder(folder).load("a", 8.0, samples=4).shape
        (4, 16, 16)
    """

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        if not self.path.is_dir():
            raise InputError(f"there is no folder {self.path}; check it", code="file.missing")

    def load(self, case: str, acceleration: float, *, samples: int) -> np.ndarray:
        """Return the recoveries of a case in a round, (sample, height, width).

        Only the first ``samples`` are used. Fewer raise InputError, except for one point estimate.
        """
        stem = safe_join(self.path, f"{case}/R{acceleration:g}")
        if stem.is_dir():
            names = sorted(p.name for p in stem.iterdir() if p.name.endswith(ENDINGS))
            parts = [_read(safe_join(self.path, f"{stem}/{name}")) for name in names]
            if len({part.shape[1:] for part in parts}) > 1:
                raise InputError(f"recoveries in {stem} differ in size", code="shape.mismatch")
            found = np.concatenate(parts) if parts else np.empty((0, 0, 0))
        else:
            files = [path for end in ENDINGS if (path := Path(f"{stem}{end}")).is_file()]
            if len(files) != 1:
                text = f"{len(files)} files hold recoveries of {case} at R = {acceleration:g}; "
                text += f"store one of {stem}.npz, .npy, .nii.gz or .nii"
                raise InputError(text, code="file.missing")
            found = _read(safe_join(self.path, str(files[0])))
        if len(found) != 1 and len(found) < samples:
            text = f"{stem} has {len(found)} samples, {samples} are needed"
            raise InputError(text, code="samples.mismatch")
        return found[:samples]


def _read(path: Path) -> np.ndarray:
    """Read recoveries (sample, height, width) without unpickling."""
    with reading(path, "recoveries", "make it again"):
        array = _nifti(path) if path.name.endswith((".nii", ".nii.gz")) else _numpy(path)
    if array.dtype.kind not in "fiubc" or array.ndim not in (2, 3):
        text = f"{path} must hold numbers (sample, height, width), got {array.dtype} {array.shape}"
        raise InputError(text, code="shape.axes")
    array = array if array.ndim == 3 else array[None]
    # In the order of memory: tensors cannot be made of a volume that was turned.
    return np.ascontiguousarray(abs(array) if array.dtype.kind == "c" else array, dtype=np.float32)


def _numpy(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        # Mapped: an array that claims more than the file holds is refused before memory is taken.
        return np.array(np.load(path, allow_pickle=False, mmap_mode="r"))
    with open_npz(path, "recoveries") as arrays:
        names = list(arrays)
        name = "recoveries" if "recoveries" in names else names[0] if len(names) == 1 else None
        if name is None:
            found = ", ".join(names) or "none"
            raise InputError(f"{path} has no array recoveries, got {found}", code="file.format")
        return arrays[name]


def _nifti(path: Path) -> np.ndarray:
    import nibabel

    image: Any = nibabel.load(path)
    require_plausible_size(path, math.prod(map(int, image.shape)) * image.get_data_dtype().itemsize)
    volume = np.asarray(image.dataobj)
    # As taskuq.data turns slices: the first axis runs from left to right.
    turned = np.rot90(volume)
    return np.moveaxis(turned, -1, 0) if volume.ndim == 3 else turned
