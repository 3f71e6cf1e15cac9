"""Recoveries made elsewhere: a folder of images, by case, round and sample."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from taskuq.disk import reading, require_room
from taskuq.errors import InputError
from taskuq.files import inside, open_npz

ENDINGS = (".npz", ".npy", ".nii.gz", ".nii")


@dataclass(frozen=True)
class RecoveryFolder:
    """A folder of recoveries in the place of a Recover, so that anybody's sampler can be judged.

    The recoveries of case ``a`` at R = 8 are either one file, ``a/R8.npz``, with all samples, or
    a folder ``a/R8/`` with a file for each, in the order of their names. Files are .npz (one
    array), .npy, .nii or .nii.gz. Arrays are (sample, height, width), or (height, width) for one
    sample; NIfTI volumes are (x, y, sample) and are turned as slices of volumes are. Complex
    numbers count by their magnitude. The names of cases are those of the run; what would lead out
    of the folder is refused.

    Arguments:
        path: The folder.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "a").mkdir()
        >>> np.savez(folder / "a/R8.npz", recoveries=np.ones((4, 16, 16)))
        >>> RecoveryFolder(folder).stored("a", 8.0, samples=4).shape
        (4, 16, 16)
    """

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        if not self.path.is_dir():
            raise InputError(f"there is no folder of recoveries at {self.path}; check the name")

    def stored(self, case: str, acceleration: float, *, samples: int) -> np.ndarray:
        """Return the recoveries of a case in a round, (sample, height, width).

        Arguments:
            case: The identity of the case.
            acceleration: The round's acceleration.
            samples: How many are needed; more are left out, fewer are refused unless it is one,
                a point estimate.
        """
        stem = inside(self.path, f"{case}/R{acceleration:g}")
        if stem.is_dir():
            names = sorted(p.name for p in stem.iterdir() if p.name.endswith(ENDINGS))
            parts = [_read(inside(self.path, f"{stem}/{name}")) for name in names]
            if len({part.shape[1:] for part in parts}) > 1:
                raise InputError(f"the recoveries in {stem} have different sizes; make them equal")
            found = np.concatenate(parts) if parts else np.empty((0, 0, 0))
        else:
            files = [path for end in ENDINGS if (path := Path(f"{stem}{end}")).is_file()]
            if len(files) != 1:
                raise InputError(
                    f"{len(files)} files hold recoveries of {case} at R = {acceleration:g}; one of "
                    f"{stem}.npz, .npy, .nii.gz or .nii, or a folder of that name, is needed"
                )
            found = _read(inside(self.path, str(files[0])))
        if len(found) != 1 and len(found) < samples:
            raise InputError(
                f"{stem} holds {len(found)} samples, but {samples} are needed; draw more, or ask "
                "for fewer"
            )
        return found[:samples]


def _read(path: Path) -> np.ndarray:
    """Read recoveries, (sample, height, width), without ever running what a file holds."""
    with reading(path, "recoveries", "make it again"):
        array = _nifti(path) if path.name.endswith((".nii", ".nii.gz")) else _numpy(path)
    if array.dtype.kind not in "fiubc" or array.ndim not in (2, 3):
        raise InputError(
            f"{path} holds {array.dtype} of shape {array.shape}; give numbers (sample, height, "
            "width)"
        )
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
            raise InputError(
                f"{path} holds the arrays {', '.join(names) or 'none'}; name one recoveries"
            )
        return arrays[name]


def _nifti(path: Path) -> np.ndarray:
    import nibabel

    image: Any = nibabel.load(path)
    require_room(path, math.prod(map(int, image.shape)) * image.get_data_dtype().itemsize)
    volume = np.asarray(image.dataobj)
    # As taskuq.data turns slices: the first axis runs from left to right.
    turned = np.rot90(volume)
    return np.moveaxis(turned, -1, 0) if volume.ndim == 3 else turned
