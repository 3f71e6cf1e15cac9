"""Preparation of fastMRI volumes, and its cache."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taskuq.data.volume import Volume
from taskuq.errors import InputError
from taskuq.files import open_npz, whole_file
from taskuq.measure.coils import compress_coils, compression_matrix
from taskuq.measure.fourier import fft2c, ifft2c
from taskuq.measure.masks import gro_mask, published_masks

Slices = Literal["central-60", "central-80", "all"]
# Change this when the same configuration would give other numbers: old caches are then left alone.
_VERSION = 1


@dataclass(frozen=True)
class Preparation:
    """Settings that turn volumes into coil images; the defaults are the paper's.

    Attributes:
        acquisition: Which acquisition to keep; empty keeps all.
        minimum_coils: Volumes with fewer receive coils are skipped.
        minimum_width: Volumes with fewer encoded phase-encode lines are skipped.
        size: Rows and columns of the central crop.
        coils: Number of virtual coils.
        compression: ``"measured"`` computes the virtual coils from the lines of the first round;
            ``"full"`` from all lines, as the paper's code did.
        first_acceleration: R of the first round, whose lines set coils and scale.
        slices: ``"central-60"`` is the rule of the paper's 2188 slices; ``"central-80"`` is
            what its text says; ``"all"`` keeps every slice.
    """

    acquisition: str = "CORPD_FBK"
    minimum_coils: int = 9
    minimum_width: int = 320
    size: int = 320
    coils: int = 8
    compression: Literal["measured", "full"] = "measured"
    first_acceleration: float = 16
    slices: Slices = "central-60"

    def __post_init__(self) -> None:
        if self.compression not in ("measured", "full"):
            raise InputError(
                f"compression is {self.compression!r}; choose 'measured' or 'full'",
                code="choice.unknown",
            )
        if self.slices not in ("central-60", "central-80", "all"):
            raise InputError(
                f"slices is {self.slices!r}; choose 'central-60', 'central-80' or 'all'",
                code="choice.unknown",
            )
        if self.minimum_coils < self.coils:
            raise InputError(
                f"minimum_coils is {self.minimum_coils} for {self.coils} virtual coils; it must be "
                "at least as large",
                code="value.invalid",
            )

    @property
    def key(self) -> str:
        """A name for this configuration: a different one has a different cache."""
        # Which slices and volumes are looked at does not change how one is prepared.
        kept = ("size", "coils", "compression", "first_acceleration")
        text = json.dumps([_VERSION, {name: asdict(self)[name] for name in kept}], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def first_mask(self) -> NDArray[np.bool_]:
        """The lines of the first round: the published mask where it fits, else GRO."""
        if self.size == 320 and self.first_acceleration == 16:
            return np.asarray(published_masks((16,))[0])
        density = max(1.0, 15 / 16 * self.first_acceleration)
        return gro_mask(self.size, round(self.size / self.first_acceleration), density=density)

    def refusal(self, volume: Volume) -> str | None:
        """Why a volume is not used, or None."""
        encoded = volume.header.encoded_size
        lines = volume.width if encoded is None else encoded[1]
        if self.acquisition and volume.acquisition != self.acquisition:
            return f"acquisition is {volume.acquisition or 'not stated'}, not {self.acquisition}"
        if volume.coils < self.minimum_coils:
            return f"{volume.coils} coils, at least {self.minimum_coils} are needed"
        if lines < self.minimum_width:
            return f"{lines} encoded lines, at least {self.minimum_width} are needed"
        if min(volume.height, volume.width) < self.size:
            return f"k-space is {volume.height}×{volume.width}, smaller than the crop {self.size}"
        return None

    def chosen_slices(self, count: int) -> range:
        """The slices of a volume that are used."""
        if self.slices == "all":
            return range(count)
        if self.slices == "central-80":
            return range(int(count * 0.1), int(count * 0.9))
        # In floats 1 - 0.8 is a little less than 0.2, so 35 slices begin at 6 and not at 7. The
        # published counts were made so.
        return range(int(count * (1 - 0.8)), int(count * 0.8))


@dataclass(frozen=True, eq=False)
class VirtualCoils:
    """Virtual coils for each slice of a volume, and its scale.

    Attributes:
        matrices: Coil compression, complex (slice, coil, virtual coil).
        scale: The 95 % quantile of the magnitudes of all zero-filled virtual-coil images of the
            volume in the first round.
    """

    matrices: NDArray[np.complex64]
    scale: float


def cropped_coils(
    volume: Volume, index: int, size: int, matrix: NDArray[np.complex64] | None = None
) -> Tensor:
    """Fully sampled coil images of one slice, cut to their centre, complex (coil, size, size)."""
    kspace = torch.as_tensor(volume.kspace(index))
    if matrix is not None:
        # Mixing coils commutes with everything else; doing it first leaves fewer to transform.
        kspace = compress_coils(kspace, torch.as_tensor(matrix))
    # Rows outside the crop need no second transform.
    images = _center(_inverse(kspace, axis=-2), size, axis=-2)
    return _center(_inverse(images, axis=-1), size, axis=-1).contiguous()


def _inverse(kspace: Tensor, axis: int) -> Tensor:
    """One axis of :func:`taskuq.measure.fourier.ifft2c`."""
    images = torch.fft.ifft(torch.fft.ifftshift(kspace, dim=axis), dim=axis, norm="ortho")
    shifted: Tensor = torch.fft.fftshift(images, dim=axis)
    return shifted


def _center(images: Tensor, size: int, axis: int) -> Tensor:
    return images.narrow(axis, (images.shape[axis] - size) // 2, size)


def prepare_volume(volume: Volume, preparation: Preparation) -> VirtualCoils:
    """Read a whole volume once and compute its virtual coils and its scale."""
    mask = torch.as_tensor(preparation.first_mask)
    matrices, magnitudes = [], []
    for index in range(volume.slices):
        images = cropped_coils(volume, index, preparation.size)
        # The transform is unitary and mixing coils commutes with masking lines, so the few lines
        # of the first round stand for the zero-filled images.
        lines = fft2c(images)[..., mask]
        source = lines if preparation.compression == "measured" else images
        matrix = compression_matrix(source, preparation.coils)
        matrices.append(matrix.numpy())
        virtual = images.new_zeros(preparation.coils, *images.shape[-2:])
        virtual[..., mask] = compress_coils(lines, matrix)
        magnitudes.append(ifft2c(virtual).abs().numpy().ravel())
    scale = float(np.quantile(np.concatenate(magnitudes), 0.95))
    if not np.isfinite(scale) or scale <= 0:
        raise InputError(
            f"{volume.path} has no signal in the lines of the first round; fetch the file again",
            code="value.invalid",
        )
    return VirtualCoils(np.stack(matrices), scale)


def cached_coils(volume: Volume, preparation: Preparation, cache: Path | None) -> VirtualCoils:
    """The virtual coils of a volume, from the cache or else computed and kept.

    The cache has a folder for each configuration and a file for each volume. A file appears only
    when it is complete; workers that prepare the same volume at once write the same content.
    """
    if cache is None:
        return prepare_volume(volume, preparation)
    stat = volume.path.stat()
    # A file that was fetched again under the same name is another file.
    name = f"{volume.name}-{stat.st_size}-{stat.st_mtime_ns}.npz"
    path = Path(cache) / preparation.key / name
    if path.exists():
        with open_npz(path, "a prepared volume") as file:
            return VirtualCoils(file["matrices"], float(file["scale"]))
    coils = prepare_volume(volume, preparation)
    with whole_file(path) as partial, partial.open("wb") as file:
        np.savez(file, matrices=coils.matrices, scale=coils.scale)
    return coils
