r"""Proper scores of samples: what a sampler learns by.

A score is proper when no other distribution scores better on average than the true one. *Fair* is
an estimate from :math:`P` samples that is right on average for every :math:`P`: a network trained
with four samples of each case learns the distribution, and not one that is best for ensembles of
four.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

from taskuq.errors import InputError


def fair_crps(samples: Tensor, truth: Tensor) -> Tensor:
    r"""The fair continuous ranked probability score, averaged over what a case holds, (case,).

    .. math:: \frac1P \sum_j |\hat x_j - x| - \frac{1}{P (P - 1)} \sum_{j < k} |\hat x_j - \hat x_k|

    It scores each number of a case on its own; what they have to do with each other it cannot see.

    References:
        Ferro, Fair scores for ensemble forecasts, QJRMS 2014.

    Arguments:
        samples: :math:`\hat x_j`, (case, sample, ...), at least two of each case.
        truth: :math:`x`, (case, ...).

    Example:
        >>> fair_crps(torch.tensor([[0.0, 2.0]]), torch.tensor([1.0]))
        tensor([0.])
        >>> fair_crps(torch.tensor([[0.0, 0.0]]), torch.tensor([1.0]))
        tensor([1.])
    """
    _check(samples, truth)
    count = samples.shape[1]
    off = (samples - truth[:, None]).abs().mean(1)
    pairs = sum(_apart(samples, later).abs().sum(1) for later in range(1, count))
    return (off - pairs / (count * (count - 1))).reshape(len(truth), -1).mean(1)


def energy_score(samples: Tensor, truth: Tensor) -> Tensor:
    r"""The fair energy score of what a case holds as one vector of length :math:`n`, (case,).

    .. math:: \frac{1}{\sqrt n} \Big(\frac1P \sum_j \|\hat x_j - x\|
              - \frac{1}{P (P - 1)} \sum_{j < k} \|\hat x_j - \hat x_k\|\Big)

    References:
        Gneiting and Raftery, Strictly Proper Scoring Rules, Prediction, and Estimation, JASA 2007.

    Arguments:
        samples: :math:`\hat x_j`, (case, sample, ...), at least two of each case.
        truth: :math:`x`, (case, ...).

    Example:
        >>> energy_score(torch.tensor([[[3.0, 4.0], [3.0, 4.0]]]), torch.zeros(1, 2)) * 2**0.5
        tensor([5.])
    """
    _check(samples, truth)
    samples, truth = samples.flatten(2), truth.flatten(1)
    count = samples.shape[1]
    off = _norm(samples - truth[:, None]).mean(1)
    pairs = sum(_norm(_apart(samples, later)).sum(1) for later in range(1, count))
    score = off - pairs / (count * (count - 1))
    scored: Tensor = score / samples.shape[-1] ** 0.5
    return scored


def _apart(samples: Tensor, later: int) -> Tensor:
    """How far the samples from a place on are from the one before it."""
    return samples[:, later:] - samples[:, later - 1 : later]


def _norm(x: Tensor) -> Tensor:
    # Where two samples agree in every number, the derivative of a norm is taken as 0.
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return norm


def _check(samples: Tensor, truth: Tensor) -> None:
    if samples.shape[:1] + samples.shape[2:] != truth.shape or samples.shape[1] < 2:
        raise InputError(
            f"samples have shape {tuple(samples.shape)} and the truth {tuple(truth.shape)}; give "
            "(case, sample, ...) with at least two samples, and (case, ...)"
        )


@dataclass(frozen=True)
class ImageScore:
    """How images are scored, the table ``[score]``: a sum of proper scores, so proper itself.

    Arguments:
        pixels: The weight of the fair CRPS of pixels.
        energy: The weight of the energy score of the whole image.
        pooled: The weight of the fair CRPS of images averaged over squares, for each size.
        pools: Sides of the squares, in pixels; those larger than an image do not count.

    Example:
        >>> truth = torch.ones(1, 8, 8)
        >>> ImageScore(pools=(2,))(truth[:, None].expand(-1, 4, -1, -1), truth)
        tensor([0.])
    """

    pixels: float = 1.0
    energy: float = 0.5
    pooled: float = 0.5
    pools: tuple[int, ...] = (2, 4, 8, 16, 32)

    def __post_init__(self) -> None:
        weights = (self.pixels, self.energy, self.pooled)
        if min(weights) < 0 or not max(weights) > 0 or min(self.pools, default=1) < 1:
            raise InputError(
                f"the score weighs pixels {self.pixels}, energy {self.energy} and pooled "
                f"{self.pooled} over {list(self.pools)}; give weights of at least 0, one above it, "
                "and whole numbers of pixels"
            )

    def __call__(self, samples: Tensor, truth: Tensor) -> Tensor:
        """Score images (case, sample, height, width) by the true ones (case, height, width)."""
        score = self.pixels * fair_crps(samples, truth) + self.energy * energy_score(samples, truth)
        for side in self.pools if self.pooled else ():
            if side <= min(truth.shape[-2:]):
                part = fair_crps(F.avg_pool2d(samples, side), F.avg_pool2d(truth, side))
                score = score + self.pooled * part
        return score
