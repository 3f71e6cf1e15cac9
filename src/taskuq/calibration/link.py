"""Strictly increasing scales on which task outputs are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from taskuq.errors import InputError
from taskuq.interval import FloatArray, TaskRange

# Where the logit hands over to its tangent: a soft output of 1e-4 is as sure as it gets.
TAIL = 1e-4


@dataclass(frozen=True)
class Link:
    r"""A strictly increasing map :math:`g` of the whole real line, with its inverse.

    ``identity`` leaves values as they are. ``logit`` maps a task range :math:`[a, b]` by

    .. math:: g(z) = \log\frac{t}{1 - t}, \qquad t = \frac{z - a}{b - a}

    and continues along the tangent where :math:`t < 10^{-4}` or :math:`t > 1 - 10^{-4}`, so that
    saturated outputs, and targets outside a range nobody declared, still have finite images.

    Arguments:
        kind: ``identity`` or ``logit``.
        low: The lower end :math:`a` of the range of ``logit``.
        high: The upper end :math:`b`.

    Example:
        >>> link = Link("logit")
        >>> link([0.0, 0.5, 0.9]).round(3)
        array([-10.21 ,   0.   ,   2.197])
        >>> link.inverse(link([-0.1, 0.5, 0.9])).round(12)
        array([-0.1,  0.5,  0.9])
    """

    kind: Literal["identity", "logit"] = "identity"
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in ("identity", "logit"):
            raise InputError(f"a link is 'identity' or 'logit', got {self.kind!r}")
        if self.kind == "logit" and not -np.inf < self.low < self.high < np.inf:
            raise InputError(f"a logit link needs a finite range, got [{self.low}, {self.high}]")

    @property
    def is_identity(self) -> bool:
        """Whether values stay as they are."""
        return self.kind == "identity"

    def __call__(self, values: ArrayLike) -> FloatArray:
        """Map values onto the scale."""
        z = np.asarray(values, dtype=float)
        if self.is_identity:
            return z
        t = (z - self.low) / (self.high - self.low)
        inner = np.clip(t, TAIL, 1 - TAIL)
        return np.asarray(np.log(inner / (1 - inner)) + (t - inner) / (TAIL * (1 - TAIL)))

    def inverse(self, images: ArrayLike) -> FloatArray:
        """Map from the scale back to task outputs."""
        w = np.asarray(images, dtype=float)
        if self.is_identity:
            return w
        edge = np.log((1 - TAIL) / TAIL)
        inner = np.clip(w, -edge, edge)
        t = 1 / (1 + np.exp(-inner)) + (w - inner) * (TAIL * (1 - TAIL))
        return np.asarray(self.low + (self.high - self.low) * t)


IDENTITY = Link()


def natural_link(range_: TaskRange, *seen: FloatArray) -> Link:
    """Choose the scale for a task: a logit on its range, or on [0, 1] if all seen lies there.

    Arguments:
        range_: The declared task range, if any.
        seen: Outputs and targets of other data than those the guarantee is about.

    Example:
        >>> natural_link(None, np.array([0.2, 0.9])).kind
        'logit'
        >>> natural_link(None, np.array([28.1, 33.0])).kind
        'identity'
    """
    if range_ is not None and np.isfinite(range_).all():
        return Link("logit", *map(float, range_))
    if range_ is None and all(v.size and v.min() >= 0 and v.max() <= 1 for v in seen):
        return Link("logit")
    return Link("identity")
