"""Image quality as fastMRI defines it, for whole volumes, and the Fréchet distance of features."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

WINDOW, K1, K2 = 7, 0.01, 0.03


def ssim(images: Tensor, targets: Tensor, data_range: Tensor) -> Tensor:
    r"""Return the mean structural similarity of each image to its target, (case,); 1 where equal.

    .. math:: \frac{(2\mu_x\mu_y + C_1)(2\sigma_{xy} + C_2)}
              {(\mu_x^2 + \mu_y^2 + C_1)(\sigma_x^2 + \sigma_y^2 + C_2)},
              \qquad C_i = (K_i L)^2

    Means :math:`\mu` and unbiased (co)variances :math:`\sigma` are taken in each uniform 7×7
    window that lies inside the image, and the ratio is averaged over windows; :math:`L` is the
    data range, :math:`K_1 = 0.01` and :math:`K_2 = 0.03`.

    References:
        Wang et al., Image Quality Assessment, IEEE Transactions on Image Processing 2004.
    """
    x, y = images[:, None], targets[:, None]
    scale = WINDOW**2 / (WINDOW**2 - 1)
    mean_x, mean_y = F.avg_pool2d(x, WINDOW, 1), F.avg_pool2d(y, WINDOW, 1)
    var_x = scale * (F.avg_pool2d(x * x, WINDOW, 1) - mean_x**2)
    var_y = scale * (F.avg_pool2d(y * y, WINDOW, 1) - mean_y**2)
    cov = scale * (F.avg_pool2d(x * y, WINDOW, 1) - mean_x * mean_y)
    c1, c2 = ((k * data_range.view(-1, 1, 1, 1)) ** 2 for k in (K1, K2))
    ratio = ((2 * mean_x * mean_y + c1) * (2 * cov + c2)) / (
        (mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2)
    )
    return torch.mean(ratio, dim=(1, 2, 3))


FloatArray = NDArray[np.float64]


def volume_psnr(recovered: Tensor, truth: Tensor) -> float:
    r"""Return the peak signal-to-noise ratio of a volume in decibels, infinite for equal ones.

    .. math:: 10 \log_{10} \frac{\max(x)^2}{\operatorname{mean}(\hat x - x)^2}

    :math:`x` are all slices of the volume, :math:`\hat x` their recoveries.

    References:
        Zbontar et al., fastMRI, arXiv:1811.08839.
    """
    x, y = truth.double(), recovered.double()
    error = (x - y).square().mean()
    return float(10 * torch.log10(x.max() ** 2 / error))


def volume_ssim(recovered: Tensor, truth: Tensor) -> float:
    """Return the mean structural similarity over slices, with the volume's data range."""
    x, y = truth.double(), recovered.double()
    return float(ssim(y, x, x.max().expand(len(x))).mean())


def spread_error_correlation(
    samples: Tensor, truth: Tensor, *, foreground: float = 0.05, block: int = 1
) -> float:
    """Return Spearman's correlation of samples' deviation and their mean's absolute error, or NaN.

    The error of one pixel is a single draw: put a sample in the place of the truth, and even a
    perfect posterior reaches a modest correlation only. Blocks average that away and ask where
    errors are, not which pixel has drawn a large one.

    Arguments:
        samples: Posterior samples of one image, (sample, height, width), at least two.
        truth: The true image, (height, width).
        foreground: Only pixels above this share of the maximum count; dark background has
            neither spread nor error and would flatter the result.
        block: Average over blocks of so many rows and columns first; with 0 as ``foreground`` the
            whole image counts.

    Example:
        >>> truth = torch.linspace(1, 2, 16).reshape(4, 4)
        >>> samples = torch.stack([truth, 1.5 * truth])  # spread and error both grow with truth
        >>> round(spread_error_correlation(samples, truth), 6)
        1.0
    """
    maps = torch.stack([samples.std(0), (samples.mean(0) - truth).abs(), truth])
    maps = torch.nn.functional.avg_pool2d(maps[:, None], block)[:, 0]
    inside = maps[2] > foreground * truth.max() if foreground else torch.ones_like(maps[2]).bool()
    return rank_correlation(maps[0][inside].numpy(), maps[1][inside].numpy())


def rank_correlation(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Return Spearman's correlation; NaN where either has one value only."""
    from scipy.stats import spearmanr

    if min(np.ptp(values) if len(values) else 0.0 for values in (first, second)) == 0:
        return math.nan
    return float(spearmanr(first, second).statistic)


def frechet_distance(first: FloatArray, second: FloatArray) -> float:
    r"""Return the Fréchet distance between two clouds of features, each taken as a Gaussian.

    .. math:: |\mu_1 - \mu_2|^2 + \operatorname{tr}\big(\Sigma_1 + \Sigma_2
              - 2 (\Sigma_1^{1/2} \Sigma_2 \Sigma_1^{1/2})^{1/2}\big)

    :math:`\mu` and :math:`\Sigma` are means and covariances of the features.

    References:
        Heusel et al., GANs Trained by a Two Time-Scale Update Rule, NeurIPS 2017.
    """
    shift = first.mean(0) - second.mean(0)
    # Sigma = A' A for centred features A, so that the cross term is the sum of the singular values
    # of A1 A2': as large as the numbers of images, or of features where those are fewer.
    one, two = (_root(features) for features in (first, second))
    cross = np.linalg.svd(one @ two.T, compute_uv=False).sum()
    return float(shift @ shift + np.square(one).sum() + np.square(two).sum() - 2 * cross)


def _root(features: FloatArray) -> FloatArray:
    """A matrix A with A' A the covariance of features, of no more rows than columns."""
    centred = (features - features.mean(0)) / np.sqrt(len(features) - 1)
    is_tall = centred.shape[0] > centred.shape[1]
    return np.asarray(np.linalg.qr(centred, mode="r") if is_tall else centred)
