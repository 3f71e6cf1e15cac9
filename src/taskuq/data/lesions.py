"""Made lesions: where they sit, what shape they have, how well they show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taskuq.data.contrast import soft_step
from taskuq.measure.smooth import smooth_field

FloatArray = NDArray[np.float32]
Axes = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True)
class LesionPlan:
    """Frequency and appearance of lesions; sizes are in millimetres.

    Attributes:
        patients: The share of patients that have any.
        mass: The share of these that have one mass; the others have several small spots.
        mass_radius: Smallest and largest radius of a mass.
        spot_radius: Smallest and largest radius of a spot.
        spots: Smallest and largest number of spots.
        visibility: Smallest and largest share of the full lesion signal; the low end is hard.
        dots: The mean number of dots that only look like a lesion, in every patient.
        dot_radius: Smallest and largest radius of a dot.
    """

    patients: float = 0.62
    mass: float = 0.6
    mass_radius: tuple[float, float] = (6.0, 22.0)
    spot_radius: tuple[float, float] = (3.0, 7.0)
    spots: tuple[int, int] = (2, 6)
    visibility: tuple[float, float] = (0.2, 1.0)
    dots: float = 3.0
    dot_radius: tuple[float, float] = (1.2, 2.4)


def draw_lesions(
    plan: LesionPlan, axes: Axes, white: FloatArray, tissue: FloatArray, *, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Return how much of the full lesion signal each pixel shows, and which share of it is lesion.

    Both are (slice, height, width). A lesion is an ellipsoid with an uneven edge, centred in white
    matter, and cut where there is no brain tissue. A mass may have a core that shows less.
    """
    shown = np.zeros(white.shape, dtype=np.float32)
    share = np.zeros(white.shape, dtype=np.float32)
    # Drawn before anything else, so that the share of patients does not move other numbers.
    has_lesion, has_mass = rng.random() < plan.patients, rng.random() < plan.mass
    places = np.flatnonzero(white > 0.7)
    if not has_lesion or len(places) == 0:
        return shown, share

    count = 1 if has_mass else int(rng.integers(plan.spots[0], plan.spots[1] + 1))
    low, high = plan.mass_radius if has_mass else plan.spot_radius
    # Hard and easy lesions differ between patients more than within one.
    faint, clear = plan.visibility
    visibility = faint + (clear - faint) * rng.random() ** 0.8
    for _ in range(count):
        place = np.unravel_index(int(rng.choice(places)), white.shape)
        center = np.array([axis[i] for axis, i in zip(axes, place, strict=True)])
        radius = low * (high / low) ** rng.random()
        distance = _uneven_distance(axes, center, radius, rng)
        alpha = soft_step(1 - distance, rng.uniform(0.06, 0.16)) * tissue
        strength = visibility * np.exp(0.15 * rng.normal())
        if has_mass and radius > 9 and rng.random() < 0.5:
            core = rng.uniform(0.3, 0.6)
            strength = strength * (1 - rng.uniform(0.4, 1.1) * soft_step(core - distance, 0.08))
        shown = np.where(alpha > share, alpha * strength, shown).astype(np.float32)
        share = np.maximum(share, alpha)
    return shown, share


def draw_dots(
    plan: LesionPlan, axes: Axes, white: FloatArray, *, rng: np.random.Generator
) -> FloatArray:
    """Return how much of the full lesion signal each pixel shows through dots that are not lesions.

    They are vessels and dilated spaces around them, too small to count.
    """
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
    """Distance to the centre, 1 at the edge of an ellipsoid whose surface a random field bends."""
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
