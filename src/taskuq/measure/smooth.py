"""Smooth random fields: cubic splines over a coarse lattice of random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray


def spline_basis(positions: ArrayLike, knots: int) -> NDArray[np.float64]:
    r"""Values (position, knot) of uniform cubic B-splines at given positions.

    .. math:: B_{ij} = \beta^3(p_i - j + 1)

    Row :math:`i` sums to 1 for positions :math:`p_i` in [0, knots - 3].

    Arguments:
        positions: Positions :math:`p`, in knot spacings from the first inner knot.
        knots: The number of splines.

    Example:
        >>> spline_basis([0.0, 0.5], knots=4).round(3)
        array([[0.167, 0.667, 0.167, 0.   ],
               [0.021, 0.479, 0.479, 0.021]])
    """
    t = np.abs(np.asarray(positions, dtype=float)[:, None] + 1 - np.arange(knots))
    near = 2 / 3 - t**2 + t**3 / 2
    far = (2 - t) ** 3 / 6
    return np.where(t < 1, near, np.where(t < 2, far, 0.0))


@lru_cache(maxsize=32)
def upsampling(coarse: int, fine: int) -> NDArray[np.float64]:
    """The matrix (fine, coarse) from a coarse grid to a fine one; it reproduces straight lines.

    Arguments:
        coarse: The number of coarse values, the first and last at the ends.
        fine: The number of fine values.

    Example:
        >>> (upsampling(5, 3) @ [0.0, 1.0, 2.0, 3.0, 4.0]).round(6)
        array([0., 2., 4.])
    """
    # Splines with one phantom knot at each end, fitted so that they pass through the values;
    # the phantom knots continue the curve straight.
    knots = coarse + 2
    collocation = np.zeros((knots, knots))
    collocation[1:-1] = spline_basis(np.arange(coarse), knots)
    collocation[0, :3] = collocation[-1, -3:] = (1, -2, 1)
    values = np.zeros((knots, coarse))
    values[1:-1] = np.eye(coarse)
    coefficients = np.linalg.solve(collocation, values)
    return spline_basis(np.linspace(0, coarse - 1, fine), knots) @ coefficients


def smooth_field(
    axes: Sequence[ArrayLike | int], spacing: Sequence[float], *, rng: np.random.Generator
) -> NDArray[np.float64]:
    """A random field of mean 0 and standard deviation 1 that varies over the given distance.

    Random numbers sit on a lattice; cubic splines carry them to the points. Points are a product
    of axes, so the work is a few small matrix products whatever the number of axes.

    Arguments:
        axes: For each axis its sorted coordinates, or a number n for 0, 1, ..., n - 1.
        spacing: For each axis the spacing of the lattice, in the units of its coordinates.
        rng: Where the numbers come from.

    Example:
        >>> field = smooth_field((200, 200), (10, 10), rng=rng)
        >>> field.shape, bool(abs(field.std() - 1) < 0.15)
        ((200, 200), True)
        >>> bool(np.abs(np.diff(field, axis=0)).max() < 0.6)
        True
    """
    bases = []
    for axis, step in zip(axes, spacing, strict=True):
        p = np.arange(axis, dtype=float) if isinstance(axis, int) else np.asarray(axis, dtype=float)
        # A random origin, so that no pixel is closer to the lattice than others on average.
        p = (p - p[0]) / step + rng.uniform()
        basis = spline_basis(p, int(np.floor(p[-1])) + 4)
        # The square of the weights sums to the variance of the field at each point.
        bases.append(basis / np.sqrt((basis**2).sum(axis=1, keepdims=True)))
    field = rng.normal(size=[basis.shape[1] for basis in bases])
    for k, basis in enumerate(bases):
        field = np.moveaxis(np.tensordot(basis, field, axes=(1, k)), 0, k)
    return np.asarray(field)
