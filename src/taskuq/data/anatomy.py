"""The anatomy the atlas starts from: an average brain, and a head around it."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial import ConvexHull

from taskuq.errors import InputError, MachineError
from taskuq.files import open_npz, whole_file

BASE_VARIABLE = "TASKUQ_ATLAS_BASE"
# Depth is stored as a byte: eighths of a millimetre outside the brain's hull, up to 31 mm.
_DEPTH_UNIT = 0.125
_TEMPLATES = {"t1": "t1", "grey": "gm", "white": "wm"}
_VOLUMES = (*_TEMPLATES, "depth", "outer")


@dataclass(frozen=True, eq=False)
class Anatomy:
    """An average brain on a grid of 1 mm: (left-right, back-front, bottom-top).

    Attributes:
        t1: T1-weighted signal of the brain, 0 outside, bytes.
        grey: Probability of grey matter, 255 is certain.
        white: Probability of white matter, 255 is certain.
        depth: Distance from outside to the brain with its fissures closed, in eighths of a
            millimetre; 0 inside. The skull follows it.
        outer: The same to the convex hull of the brain in each slice. The skin follows it.
    """

    t1: NDArray[np.uint8]
    grey: NDArray[np.uint8]
    white: NDArray[np.uint8]
    depth: NDArray[np.uint8]
    outer: NDArray[np.uint8]

    def sample(self, points: NDArray[np.floating]) -> dict[str, NDArray[np.float32]]:
        """Values at points (3, ...) in voxels, by linear interpolation; distances in mm."""
        values = {}
        for name in _VOLUMES:
            volume = getattr(self, name)
            is_distance = name in ("depth", "outer")
            unit, edge = (1 / _DEPTH_UNIT, 255) if is_distance else (255, 0)
            raw = ndimage.map_coordinates(
                volume, points, output=np.float32, order=1, mode="constant", cval=edge
            )
            values[name] = raw / np.float32(unit)
        return values


def load_anatomy(path: Path | str | None = None) -> Anatomy:
    """Load the base volumes of the atlas, building them once where nilearn is installed.

    Looked for in this order: the given path, the file named by the environment variable
    TASKUQ_ATLAS_BASE, the cache of this user, and the MNI152 volumes that the nilearn package
    carries (from which the cached file is then made).
    """
    given = path or os.environ.get(BASE_VARIABLE)
    return _load(str(given) if given else None)


def save_anatomy(path: Path | str, anatomy: Anatomy | None = None) -> Path:
    """Write the base volumes into one .npz file, for machines without nilearn."""
    anatomy = anatomy or load_anatomy()
    with whole_file(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, **{name: getattr(anatomy, name) for name in _VOLUMES})
    return Path(path)


def cache_folder() -> Path:
    """Return where files that can be made again are kept: taskuq in the user's cache folder."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "taskuq"


@lru_cache(maxsize=2)
def _load(given: str | None) -> Anatomy:
    path = cache_folder() / "atlas-base-1.npz" if given is None else Path(given)
    if given is not None or path.exists():
        return _read(path)
    anatomy = _build()
    # A cache saves two seconds; a home that cannot be written is no reason to stop.
    with suppress(MachineError):
        save_anatomy(path, anatomy)
    return anatomy


def _read(path: Path) -> Anatomy:
    try:
        with open_npz(path, "volumes") as file:
            return Anatomy(**{name: file[name] for name in _VOLUMES})
    except InputError as error:
        raise InputError(
            f"{path} is not a base file of the atlas ({error}); write one with "
            "'taskuq data atlas-base' where nilearn is installed",
            code="file.format",
        ) from error


def _build() -> Anatomy:
    volumes = {name: _nilearn_volume(short) for name, short in _TEMPLATES.items()}
    brain = volumes["t1"] > 0
    return Anatomy(
        **volumes, depth=_distance(_closed(brain)), outer=_distance(_convex_slices(brain))
    )


def _nilearn_volume(short: str) -> NDArray[np.uint8]:
    # Reading the files of the package avoids importing nilearn, which takes seconds.
    spec = find_spec("nilearn")
    folders: Any = spec.submodule_search_locations if spec else []
    for folder in folders:
        name = f"mni_icbm152_{short}_tal_nlin_sym_09a_converted.nii.gz"
        file = Path(folder) / "datasets" / "data" / name
        if file.exists():
            import nibabel

            image: Any = nibabel.load(file)
            return np.asarray(image.dataobj, dtype=np.uint8)
    raise InputError(
        "the atlas needs the MNI152 volumes of nilearn, which is not installed; pip install "
        f"'taskuq[demo]', or name a base file in {BASE_VARIABLE}",
        code="dependency.missing",
    )


def _closed(brain: NDArray[np.bool_], radius: float = 12.0) -> NDArray[np.bool_]:
    """The brain with fissures narrower than twice the radius closed."""
    pad = int(radius) + 2
    padded = np.pad(brain, pad)
    grown = ndimage.distance_transform_edt(~padded) <= radius
    closed = ndimage.distance_transform_edt(grown) > radius
    return np.asarray(closed[pad:-pad, pad:-pad, pad:-pad])


def _convex_slices(brain: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The convex hull of the brain in each axial slice."""
    grid = np.stack(np.meshgrid(*map(np.arange, brain.shape[:2]), indexing="ij"), axis=-1)
    hulls = np.zeros_like(brain)
    for k in range(brain.shape[2]):
        points = np.argwhere(brain[:, :, k])
        # A hull needs an area; the topmost voxels of a brain may lie on a line.
        if len(points) > 50:
            sides = ConvexHull(points).equations
            hulls[:, :, k] = (grid @ sides[:, :2].T + sides[:, 2] <= 1e-9).all(axis=-1)
    return hulls


def _distance(inside: NDArray[np.bool_]) -> NDArray[np.uint8]:
    outside = ndimage.distance_transform_edt(~inside)
    return np.asarray(np.minimum(outside / _DEPTH_UNIT, 255).astype(np.uint8))
