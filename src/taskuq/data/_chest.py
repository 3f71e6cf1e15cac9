"""Synthetic chest phantom for tomography."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taskuq._config import Coils, Count, Natural, Size
from taskuq.data._dataset import Case, Dataset, LabelledSubset, PatientDataset
from taskuq.data._readers import DataConfig
from taskuq.errors import InputError

# Between lung and fat, on a scale where air is 0 and bone about 1.
THRESHOLD = 0.3


def air_fraction(images: ArrayLike, threshold: float = THRESHOLD) -> NDArray[np.float64]:
    """Return the fraction of the body with intensities below ``threshold`` (air), (image,)."""
    from scipy import ndimage

    images = np.asarray(images)
    if images.ndim != 3 or images.dtype.kind not in "biuf" or 0 in images.shape:
        given = f"images have shape {images.shape} and type {images.dtype}"
        raise InputError(f"{given}; pass real (image, height, width)", code="shape.axes")
    iterations = round(max(images.shape[1:]) / 128 - 0.1)
    fractions = np.zeros(len(images))
    for k, image in enumerate(images):
        tissue = image >= threshold
        if iterations:
            tissue = ndimage.binary_opening(tissue, iterations=iterations)
        pieces, count = ndimage.label(tissue)
        if count == 0:
            continue
        largest = 1 + int(np.argmax(np.bincount(pieces.ravel())[1:]))
        body = ndimage.binary_fill_holes(pieces == largest)
        fractions[k] = np.mean(image[body] < threshold)
    return fractions


Image = NDArray[np.float64]

# Attenuation on the scale of a chest window: air outside 0, bone about 1.
LUNG, FAT, TISSUE, BONE = 0.08, 0.63, 0.72, 0.95
FINE = 2


class _ChestSlices(NamedTuple):
    images: NDArray[np.float32]
    nodules: NDArray[np.int64]


@dataclass(frozen=True)
class ChestPhantom(PatientDataset):
    """Synthetic chest CT slices."""

    patients: int
    seed: int
    size: int = 128
    slices: int = 4
    first: int = 0

    def __post_init__(self) -> None:
        if min(self.patients, self.slices) < 1 or self.size < 16:
            given = f"patients is {self.patients}, slices {self.slices} and size {self.size}"
            raise InputError(f"{given}; pass at least 1, 1 and 16", code="value.invalid")

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """Label of each slice, (case,): 1 if it has a nodule."""
        nodules = [self.patient(k).nodules > 0 for k in range(self.patients)]
        return np.concatenate(nodules).astype(np.int64)

    @cached_property
    def air(self) -> NDArray[np.float64]:
        """Air fraction of the body in each slice, (case,)."""
        return np.concatenate([air_fraction(self.patient(k).images) for k in range(self.patients)])

    @property
    def _slices(self) -> int:
        return self.slices

    def patient(self, index: int) -> _ChestSlices:
        return _patient(self.seed, self._number(index), self.size, self.slices)

    def __getitem__(self, index: int) -> Case:
        import torch

        number, slice_ = divmod(range(len(self))[index], self.slices)
        patient = self.patient(number)
        image = torch.as_tensor(patient.images[slice_])
        return self._case(image, bool(patient.nodules[slice_] > 0), number, slice_)


@dataclass(frozen=True, kw_only=True)
class ChestData(DataConfig):
    """Settings of [data] for synthetic chest CT; targets are air fractions."""

    processes: ClassVar[int] = 8
    coils: Coils = 0  #: Must be 0, because tomography has no coils.
    patients: Count = 100  #: Number of synthetic patients.
    size: Size = 128  #: Rows and columns of a slice.
    slices: Count = 4  #: Slices per patient.
    first_patient: Natural = 0  #: Index of the first synthetic patient.

    def open(self) -> Dataset:
        return self._chest

    def open_targets(self) -> LabelledSubset:
        chest = self._chest
        return LabelledSubset(chest, chest.air[:, None])

    @property
    def _chest(self) -> ChestPhantom:
        return ChestPhantom(self.patients, self.seed, self.size, self.slices, self.first_patient)


@lru_cache(maxsize=64)
def _patient(seed: int, number: int, size: int, slices: int) -> _ChestSlices:
    rng = np.random.default_rng([seed, number])
    # Half axes of the body, of the lungs next to it; fat and wall in the same unit, half a side.
    wide, deep = rng.uniform(0.62, 0.9), rng.uniform(0.46, 0.64)
    fat, wall = rng.uniform(0.02, 0.14), rng.uniform(0.05, 0.09)
    lean = _Lean(wide, deep, fat, wall, rng.uniform(0.75, 1.0), rng.uniform(0.16, 0.24))
    down = (np.arange(slices) + rng.uniform(0, 1, slices)) / slices
    drawn = [_slice(lean, float(t), size, rng) for t in down]
    images, nodules = zip(*drawn, strict=True)
    return _ChestSlices(np.stack(images).astype(np.float32), np.array(nodules))


class _Lean(NamedTuple):
    wide: float
    deep: float
    fat: float
    wall: float
    filled: float
    heart: float


class _Canvas:
    """Pixel coordinates of a slice, x to the right and y down, in [-1, 1]."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        axis = (np.arange(size * FINE) + 0.5) / (size * FINE) * 2 - 1
        self.y, self.x = np.meshgrid(axis, axis, indexing="ij")
        self.rng, self.image = rng, np.zeros_like(self.x)

    def inside(
        self, centre: tuple[float, float], axes: tuple[float, float], *, wobble: float = 0.0,
        turn: float = 0.0,
    ) -> NDArray[np.bool_]:  # fmt: skip
        reach, points = max(axes) * (1 + 4 * wobble), len(self.x)
        ends = [np.array([at - reach, at + reach + 4 / points]) for at in centre]
        columns, rows = (
            slice(*(end * points / 2 + points / 2).clip(0, points).astype(int)) for end in ends
        )
        x, y = self.x[rows, columns] - centre[0], self.y[rows, columns] - centre[1]
        u = (x * np.cos(turn) + y * np.sin(turn)) / axes[0]
        v = (y * np.cos(turn) - x * np.sin(turn)) / axes[1]
        limit = np.ones_like(u)
        if wobble:
            angle = np.arctan2(v, u)
            for order in range(2, 6):
                size, phase = wobble / order * self.rng.normal(), self.rng.uniform(0, 2 * np.pi)
                limit = limit + size * np.cos(order * angle + phase)
        inside = np.zeros(self.x.shape, dtype=bool)
        inside[rows, columns] = u * u + v * v < limit * limit
        return inside

    def paint(self, where: NDArray[np.bool_], value: float) -> None:
        self.image[where] = value


def _slice(lean: _Lean, down: float, size: int, rng: np.random.Generator) -> tuple[Image, int]:
    """Draw a slice; return it with its nodule count. ``down`` runs from 0 (top) to 1 (liver)."""
    c = _Canvas(size, rng)
    lift = rng.uniform(-0.06, 0.06)
    wide, deep = lean.wide * rng.uniform(0.96, 1.0), lean.deep * rng.uniform(0.96, 1.0)
    body = c.inside((0, lift), (wide, deep), wobble=0.03)
    c.paint(body, FAT)
    within = (wide - lean.fat, deep - lean.fat)
    c.paint(c.inside((0, lift), within, wobble=0.02), TISSUE)
    room = (within[0] - lean.wall, within[1] - lean.wall)
    lungs = _lungs(c, lean, room, lift, down)
    c.paint(lungs, LUNG * rng.uniform(0.6, 1.6))
    _discs(c, lungs, int(rng.integers(20, 60)), (0.006, 0.03), 0.6)  # vessels
    nodules = int(rng.random() < 0.5) * int(rng.integers(1, 4)) if lungs.any() else 0
    _discs(c, lungs, nodules, (0.015, 0.05), TISSUE)
    _bones(c, within, room, lift)
    if down > 0.75 and rng.random() < 0.6:
        at = (rng.uniform(0.1, 0.3) * room[0], lift - rng.uniform(0.1, 0.4) * room[1])
        c.paint(c.inside(at, (rng.uniform(0.04, 0.12), rng.uniform(0.03, 0.08)), wobble=0.2), 0.02)
    c.paint(~body, 0.0)
    if rng.random() < 0.5:  # a table
        height = lift + deep + rng.uniform(0.08, 0.2) + 0.1 * c.x**2 * rng.uniform(-1, 0)
        c.paint(np.abs(c.y - height) < 0.008, rng.uniform(0.3, 0.8))
    image = c.image.reshape(size, FINE, size, FINE).mean((1, 3))
    return np.clip(image + rng.normal(0, 0.012, image.shape) * (image > 0.02), 0, 1), nodules


def _lungs(
    c: _Canvas, lean: _Lean, room: tuple[float, float], lift: float, down: float
) -> NDArray[np.bool_]:
    rng = c.rng
    # Lungs widen from the top, and the liver pushes them aside below.
    open_ = lean.filled * np.interp(down, (0, 0.25, 0.7, 1.0), (0.75, 1.0, 0.95, 0.35))
    both = np.zeros(c.x.shape, dtype=bool)
    for side in (-1, 1):
        half = room[0] * rng.uniform(0.42, 0.5)
        axes = (half * open_**0.5, room[1] * rng.uniform(0.85, 0.98) * open_**0.5)
        centre = (side * (room[0] - axes[0]), lift + room[1] * (1 - open_) * 0.4)
        both |= c.inside(centre, axes, wobble=0.08, turn=side * rng.uniform(0, 0.3))
    cavity = c.inside((0, lift), room)
    heart = lean.heart * np.interp(down, (0, 0.3, 0.6, 1.0), (0.5, 0.8, 1.3, 1.2))
    at = (0.35 * heart * rng.uniform(0.4, 1.2), lift - 0.15 * room[1])
    middle = c.inside(at, (heart, heart * rng.uniform(1.0, 1.5)), wobble=0.1)
    spine = c.inside((0, lift + 0.8 * room[1]), (0.16, 0.3))
    return np.asarray(both & cavity & ~middle & ~spine)


def _discs(
    c: _Canvas, where: NDArray[np.bool_], count: int, radii: tuple[float, float], value: float
) -> None:
    rows, columns = np.nonzero(where)
    if not len(rows):
        return
    for _ in range(count):
        k = int(c.rng.integers(len(rows)))
        at = (c.x[rows[k], columns[k]], c.y[rows[k], columns[k]])
        low, high = radii
        radius = low * (high / low) ** (c.rng.random() ** 2)
        disc = c.inside(at, (radius, radius * c.rng.uniform(0.6, 1.4)), turn=c.rng.uniform(0, 3))
        c.paint(disc & where, value * c.rng.uniform(0.8, 1.05))


def _bones(c: _Canvas, within: tuple[float, float], room: tuple[float, float], lift: float) -> None:
    rng = c.rng
    ring = ((within[0] + room[0]) / 2, (within[1] + room[1]) / 2)
    start = rng.uniform(0, 1)
    for k in range(int(rng.integers(9, 14))):
        angle = 2 * np.pi * (k + start) / 12 + rng.normal(0, 0.05)
        at = (ring[0] * np.cos(angle), lift + ring[1] * np.sin(angle))
        axes = (rng.uniform(0.03, 0.07), rng.uniform(0.012, 0.02))
        c.paint(c.inside(at, axes, turn=np.arctan2(np.cos(angle), -np.sin(angle))), BONE)
    spine = (0.0, lift + 0.82 * room[1])
    c.paint(c.inside(spine, (0.11, 0.1), wobble=0.08), BONE * rng.uniform(0.88, 1.0))
    c.paint(c.inside((0, spine[1] + 0.14), (0.05, 0.05)), TISSUE)
    c.paint(c.inside((0, spine[1] + 0.22), (0.02, 0.06)), BONE)
    c.paint(c.inside((0, lift - ring[1]), (0.08, 0.02)), BONE)
