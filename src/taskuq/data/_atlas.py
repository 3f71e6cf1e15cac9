"""Synthetic brain atlas: anatomy, contrast, lesions and patients."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial import ConvexHull

from taskuq._config import Count, Size
from taskuq._io import atomic_write, open_npz
from taskuq.data._arrays import ArrayDataset
from taskuq.data._dataset import (
    Case,
    Dataset,
    InMemoryDataset,
    LabelledSubset,
    PatientDataset,
    parallel_map,
    useful_workers,
)
from taskuq.data._readers import DataConfig
from taskuq.errors import InputError, MachineError
from taskuq.measure._coils import coil_sensitivities, simulate_coils, smooth_field, smooth_phase

if TYPE_CHECKING:
    from torch import Tensor


BASE_VARIABLE = "TASKUQ_ATLAS_BASE"
# Depth is stored as a byte: eighths of a millimetre outside the brain's hull, up to 31 mm.
_DEPTH_UNIT = 0.125
_TEMPLATES = {"t1": "t1", "grey": "gm", "white": "wm"}
_VOLUMES = (*_TEMPLATES, "depth", "outer")


@dataclass(frozen=True, eq=False)
class _Anatomy:
    """Average brain on a 1 mm grid, with axes (left-right, back-front, bottom-top)."""

    t1: NDArray[np.uint8]
    grey: NDArray[np.uint8]
    white: NDArray[np.uint8]
    depth: NDArray[np.uint8]
    outer: NDArray[np.uint8]

    def sample(self, points: NDArray[np.floating]) -> dict[str, NDArray[np.float32]]:
        """Interpolate each volume linearly at voxel coordinates (3, ...); distances are in mm."""
        values = {}
        for name in _VOLUMES:
            unit, edge = (255, 0) if name in _TEMPLATES else (1 / _DEPTH_UNIT, 255)
            raw = ndimage.map_coordinates(
                getattr(self, name), points, output=np.float32, order=1, cval=edge
            )
            values[name] = raw / np.float32(unit)
        return values


def load_anatomy(path: Path | str | None = None) -> _Anatomy:
    """Load the base volumes of the atlas; build them on first use if nilearn is installed."""
    source = path or os.environ.get(BASE_VARIABLE)
    return _load(str(source) if source else None)


def save_anatomy(path: Path | str, anatomy: _Anatomy | None = None) -> Path:
    anatomy = anatomy or load_anatomy()
    with atomic_write(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, **{name: getattr(anatomy, name) for name in _VOLUMES})
    return Path(path)


@lru_cache(maxsize=2)
def _load(source: str | None) -> _Anatomy:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(cache) / "taskuq" / "atlas-base-1.npz" if source is None else Path(source)
    if source is not None or path.exists():
        with open_npz(path, "a base file of 'taskuq data atlas-base'") as file:
            return _Anatomy(**{name: file[name] for name in _VOLUMES})
    volumes = {name: _nilearn_volume(short) for name, short in _TEMPLATES.items()}
    brain = volumes["t1"] > 0
    # A morphological closing of 12 mm.
    grown = ndimage.distance_transform_edt(~np.pad(brain, 14)) <= 12.0
    closed = (ndimage.distance_transform_edt(grown) > 12.0)[14:-14, 14:-14, 14:-14]
    depth, outer = _distance(closed), _distance(_convex_slices(brain))
    anatomy = _Anatomy(**volumes, depth=depth, outer=outer)
    # A cache saves two seconds; continue if the home cannot be written.
    with suppress(MachineError):
        save_anatomy(path, anatomy)
    return anatomy


def _nilearn_volume(short: str) -> NDArray[np.uint8]:
    # Reading the files of the package avoids importing nilearn, which takes seconds.
    spec = find_spec("nilearn")
    name = f"mni_icbm152_{short}_tal_nlin_sym_09a_converted.nii.gz"
    file = Path(spec.origin if spec and spec.origin else "").parent / "datasets" / "data" / name
    if not file.exists():
        text = f"the atlas needs nilearn; pip install 'taskuq[demo]', or set {BASE_VARIABLE}"
        raise InputError(text, code="dependency.missing")
    import nibabel

    image: Any = nibabel.load(file)
    return np.asarray(image.dataobj, dtype=np.uint8)


def _convex_slices(brain: NDArray[np.bool_]) -> NDArray[np.bool_]:
    grid = np.stack(np.meshgrid(*map(np.arange, brain.shape[:2]), indexing="ij"), axis=-1)
    hulls = np.zeros_like(brain)
    for k in range(brain.shape[2]):
        points = np.argwhere(brain[:, :, k])
        if len(points) > 50:
            sides = ConvexHull(points).equations
            hulls[:, :, k] = (grid @ sides[:, :2].T + sides[:, 2] <= 1e-9).all(axis=-1)
    return hulls


def _distance(inside: NDArray[np.bool_]) -> NDArray[np.uint8]:
    outside = ndimage.distance_transform_edt(~inside)
    return np.asarray(np.minimum(outside / _DEPTH_UNIT, 255).astype(np.uint8))


Contrast = Literal["t1", "t2", "flair"]
Contrasts = Literal["t1", "t2", "flair", "mixed"]
FloatArray = NDArray[np.float32]

_TISSUES = ("grey", "white", "csf", "fat", "muscle", "marrow", "bone", "lesion")
_TYPICAL = {
    "t1": (0.68, 1.0, 0.16, 1.35, 0.55, 0.75, 0.07, 0.3),
    "t2": (1.0, 0.72, 1.9, 0.9, 0.35, 0.6, 0.06, 1.6),
    "flair": (1.0, 0.76, 0.14, 0.85, 0.42, 0.45, 0.06, 1.75),
}

# Weight of the template's T1 signal beyond its tissue classes.
DETAIL = {"t1": 0.25, "t2": -0.2, "flair": -0.12}
# Relative deviation of signals between scans; of other tissues 0.1.
_SPREAD = {"grey": 0.03, "white": 0.03, "csf": 0.15, "fat": 0.15, "lesion": 0.08}


class _TissueMaps(NamedTuple):
    grey: FloatArray
    white: FloatArray
    csf: FloatArray
    depth: FloatArray
    outer: FloatArray


def _split_tissue(
    average: dict[str, FloatArray], fields: tuple[FloatArray, FloatArray], atrophy: float
) -> _TissueMaps:
    grey, white, depth, outer = (average[name] for name in ("grey", "white", "depth", "outer"))
    inside = np.clip(1 - depth, 0, 1)
    fluid = np.clip(1 - grey - white, 0, 1)
    floor, sharpness = np.float32(0.02), 2.2
    g = sharpness * (np.log(grey + floor) + 0.45 * fields[0])
    w = sharpness * (np.log(white + floor) + 0.45 * fields[1])
    c = sharpness * (np.log(fluid + floor) + atrophy)
    top = np.maximum(np.maximum(g, w), c)
    g, w, c = np.exp(g - top), np.exp(w - top), np.exp(c - top)
    total = (g + w + c) / inside.clip(1e-6)
    return _TissueMaps(g / total, w / total, c / total, depth, outer)


def _head_signal(
    tissue: _TissueMaps,
    signals: dict[str, float],
    detail: FloatArray,
    fields: tuple[FloatArray, FloatArray, FloatArray],
    thickness: tuple[float, float, float],
) -> FloatArray:
    grey, white, csf = tissue[:3]
    brain = grey * signals["grey"] + white * signals["white"] + csf * signals["csf"]
    brain = brain + detail * (grey + white)
    fluid = thickness[0] * np.exp(0.35 * fields[0])
    bone = thickness[1] * np.exp(0.18 * fields[1])
    scalp = thickness[2] * np.exp(0.25 * fields[2])
    d, skin = tissue.depth, fluid + bone + scalp - tissue.outer
    in_fluid = _soft_step(fluid - d) * np.clip(d, 0, 1)
    in_bone = _soft_step(d - fluid) * _soft_step(fluid + bone - d)
    in_scalp = _soft_step(d - fluid - bone) * _soft_step(skin)
    middle = np.exp(-(((d - fluid - bone / 2) / (0.22 * bone)) ** 2))
    marrow = middle * np.clip(0.55 + 0.35 * fields[0], 0, 1)
    bone_signal = signals["bone"] + (signals["marrow"] - signals["bone"]) * marrow
    fatty = np.clip(0.75 + 0.3 * fields[1], 0, 1) * _soft_step(6 - skin, 1.0)
    scalp_signal = signals["muscle"] + (signals["fat"] - signals["muscle"]) * fatty
    head = brain + in_fluid * signals["csf"] + in_bone * bone_signal + in_scalp * scalp_signal
    return np.asarray(head, dtype=np.float32)


def _soft_step(distance: FloatArray, softness: float = 0.5) -> FloatArray:
    return np.asarray(1 / (1 + np.exp(-np.clip(distance / softness, -30, 30))), dtype=np.float32)


Axes = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True)
class LesionDistribution:
    patients: float = 0.62
    mass: float = 0.6
    mass_radius: tuple[float, float] = (6.0, 22.0)
    spot_radius: tuple[float, float] = (3.0, 7.0)
    spots: tuple[int, int] = (2, 6)
    visibility: tuple[float, float] = (0.2, 1.0)
    dots: float = 3.0
    dot_radius: tuple[float, float] = (1.2, 2.4)


def _draw_lesions(
    plan: LesionDistribution,
    axes: Axes,
    white: FloatArray,
    tissue: FloatArray,
    rng: np.random.Generator,
) -> tuple[FloatArray, FloatArray]:
    shown = np.zeros(white.shape, dtype=np.float32)
    share = np.zeros(white.shape, dtype=np.float32)
    # Drawn first, so that the fraction of patients does not change other numbers.
    has_lesion, has_mass = rng.random() < plan.patients, rng.random() < plan.mass
    places = np.flatnonzero(white > 0.7)
    if not has_lesion or len(places) == 0:
        return shown, share

    count = 1 if has_mass else int(rng.integers(plan.spots[0], plan.spots[1] + 1))
    low, high = plan.mass_radius if has_mass else plan.spot_radius
    faint, clear = plan.visibility
    visibility = faint + (clear - faint) * rng.random() ** 0.8
    for _ in range(count):
        place = np.unravel_index(int(rng.choice(places)), white.shape)
        center = np.array([axis[i] for axis, i in zip(axes, place, strict=True)])
        radius = low * (high / low) ** rng.random()
        distance = _uneven_distance(axes, center, radius, rng)
        alpha = _soft_step(1 - distance, rng.uniform(0.06, 0.16)) * tissue
        strength = visibility * np.exp(0.15 * rng.normal())
        if has_mass and radius > 9 and rng.random() < 0.5:
            core = rng.uniform(0.3, 0.6)
            strength = strength * (1 - rng.uniform(0.4, 1.1) * _soft_step(core - distance, 0.08))
        shown = np.where(alpha > share, alpha * strength, shown).astype(np.float32)
        share = np.maximum(share, alpha)
    return shown, share


def _draw_dots(
    plan: LesionDistribution, axes: Axes, white: FloatArray, rng: np.random.Generator
) -> FloatArray:
    shown = np.zeros(white.shape, dtype=np.float32)
    places = np.flatnonzero(white > 0.7)
    for _ in range(int(rng.poisson(plan.dots)) if len(places) else 0):
        k, i, j = np.unravel_index(int(rng.choice(places)), white.shape)
        radius = rng.uniform(*plan.dot_radius)
        squared = (axes[1][:, None] - axes[1][i]) ** 2 + (axes[2][None, :] - axes[2][j]) ** 2
        dot = rng.uniform(0.3, 0.9) * np.exp(-squared / radius**2)
        shown[k] = np.maximum(shown[k], dot)
    return shown


def _uneven_distance(
    axes: Axes, center: NDArray[np.float64], radius: float, rng: np.random.Generator
) -> FloatArray:
    """Return distances to ``center``, scaled to 1 on a randomly deformed ellipsoid."""
    stretch = np.exp(0.22 * rng.normal(size=3))
    angle = rng.uniform(0, np.pi)
    z, y, x = (axis - c for axis, c in zip(axes, center, strict=True))
    z, y, x = z[:, None, None], y[None, :, None], x[None, None, :]
    u, v = np.cos(angle) * x + np.sin(angle) * y, -np.sin(angle) * x + np.cos(angle) * y
    distance = np.sqrt((z / stretch[0]) ** 2 + (u / stretch[1]) ** 2 + (v / stretch[2]) ** 2)
    coarse = smooth_field(axes, (radius * 1.2,) * 3, rng=rng)
    fine = smooth_field(axes, (max(radius * 0.5, 3.0),) * 3, rng=rng)
    bend = 1 + np.clip(0.22 * coarse + 0.1 * fine, -0.5, 0.8)
    return np.asarray(distance / radius * bend, dtype=np.float32)


_CENTER = np.array([98.0, 116.0, 88.0])


@dataclass(frozen=True)
class PatientDistribution:
    size: int = 128
    slices: int = 8
    spacing: float = 6.0
    field_of_view: float = 240.0
    lowest: tuple[float, float] = (66.0, 92.0)
    contrast: Contrasts = "flair"
    noise: tuple[float, float] = (0.015, 0.045)
    minimum_area: float = 30.0
    lesions: LesionDistribution = field(default_factory=LesionDistribution)


@dataclass(frozen=True, eq=False)
class Patient:
    images: FloatArray
    lesion: NDArray[np.bool_]
    area: NDArray[np.float64]
    contrast: Contrast


def draw_patient(
    plan: PatientDistribution, anatomy: _Anatomy, *, rng: np.random.Generator
) -> Patient:
    pixel = plan.field_of_view / plan.size
    in_plane = (np.arange(plan.size, dtype=np.float64) - (plan.size - 1) / 2) * pixel
    heights = rng.uniform(*plan.lowest) - _CENTER[2] + plan.spacing * np.arange(plan.slices)
    axes: Axes = (heights, in_plane, in_plane)
    contrast: Contrast = ("t1", "t2", "flair", "flair")[int(4 * rng.random())]
    if plan.contrast != "mixed":
        contrast = plan.contrast

    clean, tissue, signals = _healthy_head(anatomy, axes, pixel, contrast, rng)
    parenchyma = tissue.grey + tissue.white
    shown, share = _draw_lesions(plan.lesions, axes, tissue.white, parenchyma, rng)
    shown = np.maximum(shown, _draw_dots(plan.lesions, axes, tissue.white, rng))
    clean += shown * (signals["lesion"] - clean)

    bias = np.exp(rng.uniform(0.05, 0.18) * _field(axes, 90, rng))
    grain = rng.standard_normal(clean.shape, dtype=np.float32)
    grain = ndimage.gaussian_filter(grain, (0, 1.2 / pixel, 1.2 / pixel))
    texture = 1 + 0.03 * np.asarray(grain / grain.std(), dtype=np.float32)
    clean = ndimage.gaussian_filter(clean * texture, (0, 0.45, 0.45)) * bias
    noise = rng.uniform(*plan.noise)
    real, imaginary = noise * rng.standard_normal((2, *clean.shape), dtype=np.float32)
    lesion = share > 0.5
    images = np.hypot(clean + real, imaginary).astype(np.float32)
    return Patient(images, lesion, lesion.sum(axis=(1, 2)) * pixel**2, contrast)


def _healthy_head(
    anatomy: _Anatomy, axes: Axes, pixel: float, contrast: Contrast, rng: np.random.Generator
) -> tuple[FloatArray, _TissueMaps, dict[str, float]]:
    def draw(scale: float) -> FloatArray:
        return _field(axes, scale, rng)

    values = anatomy.sample(_deformed_points(axes, rng))
    tissue = _split_tissue(values, (draw(7), draw(7)), atrophy=rng.normal(-0.1, 0.3))
    signals = {
        name: value * float(np.exp(_SPREAD.get(name, 0.1) * rng.normal()))
        for name, value in zip(_TISSUES, _TYPICAL[contrast], strict=True)
    }
    # Beyond the tissue classes of the template: nuclei, tracts, cerebellar folds.
    smooth = ndimage.gaussian_filter(values["t1"], (0, 12 / pixel, 12 / pixel))
    detail = DETAIL[contrast] * (values["t1"] - smooth) + 0.025 * draw(5)
    fields = (draw(30), draw(60), draw(70))
    thickness = (rng.uniform(0.8, 2.5), rng.uniform(5, 8), rng.uniform(4, 8))
    clean = _head_signal(tissue, signals, detail, fields, thickness)
    # Fluid-near white matter is a little bright on FLAIR in healthy people: not a lesion.
    rim = rng.uniform(0.0, 0.5)
    if contrast == "flair":
        near_fluid = ndimage.gaussian_filter(tissue.csf, (0, 3.5 / pixel, 3.5 / pixel))
        clean += rim * near_fluid * tissue.white
    return clean, tissue, signals


def _field(axes: Axes, scale: float, rng: np.random.Generator) -> FloatArray:
    return smooth_field(axes, (scale,) * 3, rng=rng).astype(np.float32)


def _deformed_points(axes: Axes, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return template voxel coordinates (3, slice, height, width) of a random patient's pixels."""
    z, y, x = np.meshgrid(*axes, indexing="ij")
    points = np.stack([x, -y, z])
    turns = []
    for k, t in enumerate(np.deg2rad(rng.normal(0, (3.0, 3.0, 5.0)))):
        i, j = [axis for axis in range(3) if axis != k]
        turn = np.eye(3)
        turn[i, i] = turn[j, j] = np.cos(t)
        turn[i, j], turn[j, i] = -np.sin(t), np.sin(t)
        turns.append(turn)
    # Cut at two deviations: a larger head would leave the image.
    scale = np.exp(0.04 * rng.normal(size=3).clip(-2, 2) + 0.02 * rng.normal())
    shift = np.array([4.0, 4.0, 0.0]) * rng.normal(size=3).clip(-2, 2)
    matrix = turns[0] @ turns[1] @ turns[2] / scale
    points = np.tensordot(matrix, points - shift[:, None, None, None], axes=1)
    for spacing, size in ((90.0, 4.5), (32.0, 1.3)):
        bends = [smooth_field(axes, (spacing,) * 3, rng=rng) for _ in range(3)]
        points = points + size * np.stack(bends)
    return np.asarray(points + _CENTER[:, None, None, None], dtype=np.float32)


# Independent streams of random numbers.
_PATIENT, _COILS, _PHASE = 0, 1, 2


@dataclass(frozen=True)
class Atlas(PatientDataset):
    """Synthetic brain MR slices with and without lesions, as complex coil images."""

    patients: int
    seed: int
    coils: int = 8
    plan: PatientDistribution = field(default_factory=PatientDistribution)
    first: int = 0
    base: Path | None = None

    def __post_init__(self) -> None:
        if self.patients < 1 or self.coils < 0:
            given = f"patients is {self.patients} and coils {self.coils}"
            raise InputError(f"{given}; pass at least 1 and 0", code="value.invalid")

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """Label of each slice, (case,): 1 if its lesion area is at least ``plan.minimum_area``."""
        return np.asarray(self.lesion_area >= self.plan.minimum_area, dtype=np.int64)

    @cached_property
    def lesion_area(self) -> NDArray[np.float64]:
        """Lesion area of each slice, in square millimetres, (case,)."""
        return np.concatenate([self.patient(k).area for k in range(self.patients)])

    @property
    def _slices(self) -> int:
        return self.plan.slices

    def patient(self, index: int) -> Patient:
        return _patient(self.plan, self.base, self.seed, self._number(index))

    def lesion_mask(self, index: int) -> NDArray[np.bool_]:
        """Return the mask of lesion pixels of one case, booleans (height, width)."""
        patient, slice_ = divmod(index, self.plan.slices)
        return np.asarray(self.patient(patient).lesion[slice_])

    def __getitem__(self, index: int) -> Case:
        import torch

        number, slice_ = divmod(range(len(self))[index], self.plan.slices)
        patient, size = self.patient(number), self.plan.size
        image = torch.as_tensor(patient.images[slice_])
        if self.coils:
            maps = _sensitivities(self.coils, size, self.seed, self.first + number)
            rng = np.random.default_rng([self.seed, self.first + number, _PHASE, slice_])
            image = simulate_coils(image, maps, smooth_phase(size, size, rng=rng))
        has_lesion = bool(patient.area[slice_] >= self.plan.minimum_area)
        return self._case(image, has_lesion, number, slice_)


def _draw_patients(atlas: Atlas, *, workers: int = 1) -> list[Patient]:
    return list(parallel_map(atlas.patient, range(atlas.patients), workers=workers))


def save_atlas(atlas: Atlas, path: Path | str, *, workers: int = 1) -> Path:
    """Write an atlas as an .npz file for :func:`taskuq.data._arrays.read_npz`."""
    patients = _draw_patients(atlas, workers=workers)
    area = np.concatenate([patient.area for patient in patients])
    with atomic_write(path) as partial, partial.open("wb") as file:
        np.savez_compressed(
            file,
            images=np.concatenate([patient.images for patient in patients]).astype(np.float16),
            label=(area >= atlas.plan.minimum_area).astype(np.uint8),
            group=atlas.groups,
            case=atlas.cases,
            lesion=np.concatenate([patient.lesion for patient in patients]),
            lesion_area=area,
            contrast=np.repeat([patient.contrast for patient in patients], atlas.plan.slices),
            seed=atlas.seed,
        )
    return Path(path)


def mask_box(mask: NDArray[np.bool_]) -> tuple[slice, slice] | None:
    """Return the rows and columns of the smallest box around a mask; None for an empty mask."""
    if not mask.any():
        return None
    down, across = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    return slice(int(down[0]), int(down[-1]) + 1), slice(int(across[0]), int(across[-1]) + 1)


@dataclass(frozen=True, kw_only=True)
class AtlasData(DataConfig):
    """Settings of [data] for the synthetic brain atlas; ``seed`` also determines the patients."""

    patients: Count = 200  #: Number of synthetic patients.
    size: Size = 128  #: Rows and columns of a slice.
    slices: Count = 8  #: Slices per patient.
    contrast: Contrasts = "flair"  #: Image contrast; "mixed" varies by patient.
    target: Literal["label", "lesion_area"] = "label"  #: Training target of a task network.
    processes: ClassVar[int] = 8

    def open(self) -> Dataset:
        return self._atlas(self.coils)

    def open_targets(self) -> LabelledSubset:
        atlas = self._atlas(coils=0)
        cases: Dataset = atlas
        if self.in_memory:
            # Once for images and areas; case by case every patient would be drawn many times.
            workers = useful_workers(self.processes, len(atlas))
            patients = _draw_patients(atlas, workers=workers)
            area = np.concatenate([patient.area for patient in patients])
            images = np.concatenate([patient.images for patient in patients])
            label = (area >= atlas.plan.minimum_area).astype(int)
            cases = InMemoryDataset.of(ArrayDataset(images, label, atlas.groups, normalise=False))
        else:
            area = atlas.lesion_area
        targets = (
            area[:, None] if self.target == "lesion_area" else LabelledSubset.of(cases).targets
        )
        return LabelledSubset(cases, targets, is_read=self.in_memory)

    def boxes(self, cases: Sequence[str]) -> dict[str, tuple[slice, slice]]:
        atlas, found = self._atlas(coils=0), {}
        places = {name: index for index, name in enumerate(atlas.cases.tolist())}
        for case in cases:
            mask = atlas.lesion_mask(places[case]) if case in places else np.zeros((1, 1), bool)
            if (box := mask_box(mask)) is not None:
                found[case] = box
        return found

    def _atlas(self, coils: int) -> Atlas:
        plan = PatientDistribution(size=self.size, slices=self.slices, contrast=self.contrast)
        return Atlas(self.patients, self.seed, coils=coils, plan=plan)


@lru_cache(maxsize=160)
def _patient(plan: PatientDistribution, base: Path | None, seed: int, number: int) -> Patient:
    rng = np.random.default_rng([seed, number, _PATIENT])
    return draw_patient(plan, load_anatomy(base), rng=rng)


@lru_cache(maxsize=160)
def _sensitivities(coils: int, size: int, seed: int, number: int) -> Tensor:
    rng = np.random.default_rng([seed, number, _COILS])
    return coil_sensitivities(coils, size, size, rng=rng)
