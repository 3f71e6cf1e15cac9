"""At what temperature a flow draws: one number, or one for each acceleration."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from taskuq.errors import InputError

# An acceleration and the temperature there, for some accelerations.
Temperatures = Sequence[tuple[float, float]]


def _pairs(temperature: float | Temperatures) -> list[tuple[float, float]]:
    if isinstance(temperature, int | float):
        return [(1.0, temperature)]
    return list(temperature)


def check_temperature(temperature: float | Temperatures) -> None:
    """Refuse what is no temperature.

    Arguments:
        temperature: One number of at least 0, or pairs of an acceleration of at least 1 and such
            a number.

    Example:
        >>> check_temperature([(16, 0.85), (8, 1)])
    """
    pairs = _pairs(temperature)
    fine = pairs and all(
        len(pair) == 2 and pair[0] >= 1 and 0 <= pair[1] < math.inf for pair in pairs
    )
    if not fine:
        raise InputError(
            f"the temperature is {temperature}; give a number of at least 0, or pairs of an "
            "acceleration of at least 1 and such a number"
        )


def temperature_at(temperature: float | Temperatures, mask: Tensor) -> float:
    """The temperature for a mask.

    Arguments:
        temperature: One number, or pairs of an acceleration and a number.
        mask: The measured columns, booleans (width,).

    Returns:
        The number; between two accelerations it is interpolated in their logarithms, beyond the
        first and the last it stays.

    Example:
        >>> import torch
        >>> mask = torch.arange(64) % 16 == 0  # R = 16
        >>> temperature_at([(16, 0.8), (8, 1)], mask)
        0.8
    """
    accelerations, values = zip(*sorted(_pairs(temperature)), strict=True)
    rate = len(mask) / max(float(mask.sum()), 1.0)
    return float(np.interp(math.log(rate), np.log(accelerations), values))
