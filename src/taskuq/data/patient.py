"""One synthetic patient: a deformed head, a contrast, a bias field, a texture, and lesions."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from taskuq.data.anatomy import Anatomy
from taskuq.data.contrast import (
    DETAIL,
    Contrast,
    Contrasts,
    Signals,
    Tissue,
    draw_signals,
    head_signal,
    split_tissue,
)
from taskuq.data.lesions import Axes, LesionPlan, draw_dots, draw_lesions
from taskuq.measure.smooth import smooth_field

FloatArray = NDArray[np.float32]
_CENTER = np.array([98.0, 116.0, 88.0])


@dataclass(frozen=True)
class PatientPlan:
    """Distribution of patients; lengths are in millimetres.

    Attributes:
        size: Rows and columns of a slice.
        slices: Slices for each patient.
        spacing: Distance between slices.
        field_of_view: Width and height of a slice.
        lowest: Height of the lowest slice above the base of the template, smallest and largest.
        contrast: ``"t1"``, ``"t2"``, ``"flair"``, or ``"mixed"``: each patient one of
            the three, FLAIR twice as often as the others.
        noise: Smallest and largest deviation of the noise, relative to the brain's signal.
        minimum_area: Lesion area below which a slice counts as free, in square millimetres.
        lesions: How often and how large.
    """

    size: int = 128
    slices: int = 8
    spacing: float = 6.0
    field_of_view: float = 240.0
    lowest: tuple[float, float] = (66.0, 92.0)
    contrast: Contrasts = "flair"
    noise: tuple[float, float] = (0.015, 0.045)
    minimum_area: float = 30.0
    lesions: LesionPlan = field(default_factory=LesionPlan)


@dataclass(frozen=True, eq=False)
class Patient:
    """The slices of one patient.

    Attributes:
        images: Magnitude (slice, height, width); the brain is near 1.
        lesion: Where the lesions are, boolean (slice, height, width).
        area: Lesion area of each slice, in square millimetres.
        contrast: What the images show.
        noise: Deviation of the noise that the images carry.
    """

    images: FloatArray
    lesion: NDArray[np.bool_]
    area: NDArray[np.float64]
    contrast: Contrast
    noise: float


def draw_patient(plan: PatientPlan, anatomy: Anatomy, *, rng: np.random.Generator) -> Patient:
    """Draw one patient; everything but the noise is shared by its slices."""
    pixel = plan.field_of_view / plan.size
    in_plane = (np.arange(plan.size, dtype=np.float64) - (plan.size - 1) / 2) * pixel
    heights = rng.uniform(*plan.lowest) - _CENTER[2] + plan.spacing * np.arange(plan.slices)
    axes: Axes = (heights, in_plane, in_plane)
    contrast: Contrast = ("t1", "t2", "flair", "flair")[int(4 * rng.random())]
    if plan.contrast != "mixed":
        contrast = plan.contrast

    clean, tissue, signals = _healthy_head(anatomy, axes, pixel, contrast, rng)
    parenchyma = tissue.grey + tissue.white
    shown, share = draw_lesions(plan.lesions, axes, tissue.white, parenchyma, rng=rng)
    shown = np.maximum(shown, draw_dots(plan.lesions, axes, tissue.white, rng=rng))
    clean += shown * (signals.lesion - clean)

    bias = np.exp(rng.uniform(0.05, 0.18) * _field(axes, 90, rng))
    texture = 1 + 0.03 * _texture(axes, pixel, rng)
    clean = ndimage.gaussian_filter(clean * texture, (0, 0.45, 0.45)) * bias
    noise = rng.uniform(*plan.noise)
    real, imaginary = noise * rng.standard_normal((2, *clean.shape), dtype=np.float32)
    lesion = share > 0.5
    return Patient(
        images=np.hypot(clean + real, imaginary).astype(np.float32),
        lesion=lesion,
        area=lesion.sum(axis=(1, 2)) * pixel**2,
        contrast=contrast,
        noise=float(noise),
    )


def _healthy_head(
    anatomy: Anatomy, axes: Axes, pixel: float, contrast: Contrast, rng: np.random.Generator
) -> tuple[FloatArray, Tissue, Signals]:
    """Return what a head without lesions shows, its tissues, and their signals."""

    def draw(scale: float) -> FloatArray:
        return _field(axes, scale, rng)

    values = anatomy.sample(_deformed_points(axes, rng))
    tissue = split_tissue(
        *(values[name] for name in ("grey", "white", "depth", "outer")),
        fields=(draw(7), draw(7)),
        atrophy=rng.normal(-0.1, 0.3),
    )
    signals = draw_signals(contrast, rng=rng)
    # What the template shows beyond its tissue classes: nuclei, tracts, cerebellar folds.
    smooth = ndimage.gaussian_filter(values["t1"], (0, 12 / pixel, 12 / pixel))
    detail = DETAIL[contrast] * (values["t1"] - smooth) + 0.025 * draw(5)
    clean = head_signal(
        tissue,
        signals,
        detail,
        fields=(draw(30), draw(60), draw(70)),
        thickness=(rng.uniform(0.8, 2.5), rng.uniform(5, 8), rng.uniform(4, 8)),
    )
    # Fluid-near white matter is a little bright on FLAIR in healthy people: not a lesion.
    rim = rng.uniform(0.0, 0.5)
    if contrast == "flair":
        near_fluid = ndimage.gaussian_filter(tissue.csf, (0, 3.5 / pixel, 3.5 / pixel))
        clean += rim * near_fluid * tissue.white
    return clean, tissue, signals


def _field(axes: Axes, scale: float, rng: np.random.Generator) -> FloatArray:
    return smooth_field(axes, (scale,) * 3, rng=rng).astype(np.float32)


def _deformed_points(axes: Axes, rng: np.random.Generator) -> NDArray[np.float32]:
    """Template positions (3, slice, height, width), in voxels, of the pixels of a patient."""
    z, y, x = np.meshgrid(*axes, indexing="ij")
    # Rows run from front to back: the nose is at the top of the picture.
    points = np.stack([x, -y, z])
    turn = _rotation(np.deg2rad(rng.normal(0, (3.0, 3.0, 5.0))))
    # Cut at two deviations: a larger head would leave the picture.
    scale = np.exp(0.04 * rng.normal(size=3).clip(-2, 2) + 0.02 * rng.normal())
    shift = np.array([4.0, 4.0, 0.0]) * rng.normal(size=3).clip(-2, 2)
    matrix = turn / scale
    points = np.tensordot(matrix, points - shift[:, None, None, None], axes=1)
    for spacing, size in ((90.0, 4.5), (32.0, 1.3)):
        bends = [smooth_field(axes, (spacing,) * 3, rng=rng) for _ in range(3)]
        points = points + size * np.stack(bends)
    return np.asarray(points + _CENTER[:, None, None, None], dtype=np.float32)


def _rotation(angles: NDArray[np.float64]) -> NDArray[np.float64]:
    (a, b, c), eye = angles, np.eye(3)
    turns = []
    for k, t in enumerate((a, b, c)):
        i, j = [axis for axis in range(3) if axis != k]
        turn = eye.copy()
        turn[i, i] = turn[j, j] = np.cos(t)
        turn[i, j], turn[j, i] = -np.sin(t), np.sin(t)
        turns.append(turn)
    return np.asarray(turns[0] @ turns[1] @ turns[2])


def _texture(axes: Axes, pixel: float, rng: np.random.Generator) -> FloatArray:
    """Fine grain of living tissue, at about two millimetres."""
    grain = rng.standard_normal([len(axis) for axis in axes], dtype=np.float32)
    sigma = 1.2 / pixel
    grain = ndimage.gaussian_filter(grain, (0, sigma, sigma))
    return np.asarray(grain / grain.std(), dtype=np.float32)
