"""Normal numbers by counting: each is a function of a seed and a place, on every device."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from taskuq.recover import compiled
from taskuq.recover.sampler import kernels

_STEP = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _signed(number: int) -> int:
    """The same 64 bits as torch's whole numbers have them."""
    return number - (1 << 64) if number >= 1 << 63 else number


def _shifted(x: Tensor, by: int) -> Tensor:
    # torch shifts the sign along; it is taken away again.
    return (x >> by) & ((1 << (64 - by)) - 1)


def normal_numbers(seeds: Tensor, count: int) -> Tensor:
    r"""Normal numbers (row, count), each row from a seed of its own.

    .. math:: \sqrt{-2 \ln u_1} \cos 2 \pi u_2, \quad \sqrt{-2 \ln u_1} \sin 2 \pi u_2

    :math:`u_1` and :math:`u_2` are the halves of the splitmix64 hash of the seed and the place.
    Rows do not depend on each other, and nothing has to be drawn in order: a GPU fills all of them
    at once, with the numbers that a CPU gives (to rounding).

    References:
        Steele et al., Fast splittable pseudorandom number generators, OOPSLA 2014.

    Arguments:
        seeds: One seed for each row, int64 (row,).
        count: How many numbers.

    Example:
        >>> both = normal_numbers(torch.tensor([3, 4]), 5)
        >>> torch.equal(normal_numbers(torch.tensor([4]), 5)[0], both[1])
        True
    """
    if seeds.is_cuda and compiled.is_available():
        filled: Tensor = kernels.normal_numbers(
            seeds, count, *map(_signed, (_STEP, _FIRST, _SECOND))
        )
        return filled
    half = (count + 1) // 2
    place = torch.arange(1, half + 1, device=seeds.device)
    x = seeds[:, None] + place * _signed(_STEP)
    x = (x ^ _shifted(x, 30)) * _signed(_FIRST)
    x = (x ^ _shifted(x, 27)) * _signed(_SECOND)
    x = x ^ _shifted(x, 31)
    first, second = ((part.float() + 0.5) * 2**-32 for part in (_shifted(x, 32), x & 0xFFFFFFFF))
    radius = (-2 * torch.log(first)).clamp_min(0).sqrt()
    angle = 2 * math.pi * second
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)[:, :count]
