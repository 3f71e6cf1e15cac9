"""From tissue to signal: a brain and a head as T1-, T2- or FLAIR-like MR would show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Contrast = Literal["t1", "t2", "flair"]
# What a plan of patients may ask for; of mixed patients half are FLAIR.
Contrasts = Literal["t1", "t2", "flair", "mixed"]
FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class Signals:
    """Signal of each tissue, relative to the brighter of grey and white matter.

    ``lesion`` is the signal of a clear lesion; a faint one lies between it and the tissue.
    """

    grey: float
    white: float
    csf: float
    fat: float
    muscle: float
    marrow: float
    bone: float
    lesion: float


_TYPICAL = {
    "t1": Signals(0.68, 1.0, 0.16, 1.35, 0.55, 0.75, 0.07, 0.3),
    "t2": Signals(1.0, 0.72, 1.9, 0.9, 0.35, 0.6, 0.06, 1.6),
    "flair": Signals(1.0, 0.76, 0.14, 0.85, 0.42, 0.45, 0.06, 1.75),
}

# How much of the template's T1 signal beyond its tissue classes shows, and with which sign.
DETAIL = {"t1": 0.25, "t2": -0.2, "flair": -0.12}


def draw_signals(contrast: Contrast, *, rng: np.random.Generator) -> Signals:
    """Signals of one scan: the typical ones of its contrast, each a few percent off."""
    typical = _TYPICAL[contrast]
    spread = {"grey": 0.03, "white": 0.03, "csf": 0.15, "fat": 0.15, "lesion": 0.08}
    return Signals(
        **{
            name: value * float(np.exp(spread.get(name, 0.1) * rng.normal()))
            for name, value in vars(typical).items()
        }
    )


@dataclass(frozen=True, eq=False)
class Tissue:
    """Tissue fractions on the slices of one patient, each (slice, height, width).

    Inside the skull grey, white and csf sum to 1. ``depth`` and ``outer`` are the distances to the
    brain and to its convex hull from outside, in millimetres.
    """

    grey: FloatArray
    white: FloatArray
    csf: FloatArray
    depth: FloatArray
    outer: FloatArray


def split_tissue(
    grey: FloatArray,
    white: FloatArray,
    depth: FloatArray,
    outer: FloatArray,
    *,
    fields: tuple[FloatArray, FloatArray],
    atrophy: float,
    sharpness: float = 2.2,
) -> Tissue:
    r"""Make one brain out of the average one.

    .. math:: p_k \propto \exp\big( \gamma (\log \bar p_k + \delta_k) \big)

    The average :math:`\bar p` of many brains is blurred where they differ. Random fields
    :math:`\delta` decide for one of the foldings that the average allows, the sharpness
    :math:`\gamma` makes it a definite one, and atrophy favours fluid.
    """
    inside = np.clip(1 - depth, 0, 1)
    fluid = np.clip(1 - grey - white, 0, 1)
    floor = np.float32(0.02)
    g = sharpness * (np.log(grey + floor) + 0.45 * fields[0])
    w = sharpness * (np.log(white + floor) + 0.45 * fields[1])
    c = sharpness * (np.log(fluid + floor) + atrophy)
    top = np.maximum(np.maximum(g, w), c)
    g, w, c = np.exp(g - top), np.exp(w - top), np.exp(c - top)
    total = (g + w + c) / inside.clip(1e-6)
    return Tissue(g / total, w / total, c / total, depth, outer)


def head_signal(
    tissue: Tissue,
    signals: Signals,
    detail: FloatArray,
    *,
    fields: tuple[FloatArray, FloatArray, FloatArray],
    thickness: tuple[float, float, float],
) -> FloatArray:
    """Signal of brain, fluid, skull and scalp, (slice, height, width); 0 in air."""
    brain = tissue.grey * signals.grey + tissue.white * signals.white + tissue.csf * signals.csf
    brain = brain + detail * (tissue.grey + tissue.white)

    fluid = thickness[0] * np.exp(0.35 * fields[0])
    bone = thickness[1] * np.exp(0.18 * fields[1])
    scalp = thickness[2] * np.exp(0.25 * fields[2])
    d, skin = tissue.depth, fluid + bone + scalp - tissue.outer
    in_fluid = soft_step(fluid - d) * np.clip(d, 0, 1)
    in_bone = soft_step(d - fluid) * soft_step(fluid + bone - d)
    in_scalp = soft_step(d - fluid - bone) * soft_step(skin)
    # The spongy middle of the skull holds fatty marrow between two dark tables.
    middle = np.exp(-(((d - fluid - bone / 2) / (0.22 * bone)) ** 2))
    marrow = middle * np.clip(0.55 + 0.35 * fields[0], 0, 1)
    bone_signal = signals.bone + (signals.marrow - signals.bone) * marrow
    # Fat lies below the skin; where the skull is far from it there is muscle, as at the temples.
    fatty = np.clip(0.75 + 0.3 * fields[1], 0, 1) * soft_step(6 - skin, 1.0)
    scalp_signal = signals.muscle + (signals.fat - signals.muscle) * fatty
    return np.asarray(
        brain + in_fluid * signals.csf + in_bone * bone_signal + in_scalp * scalp_signal,
        dtype=np.float32,
    )


def soft_step(distance: FloatArray, softness: float = 0.5) -> FloatArray:
    """From 0 where a distance is negative to 1 where it is positive, smoothly."""
    return np.asarray(1 / (1 + np.exp(-np.clip(distance / softness, -30, 30))), dtype=np.float32)
