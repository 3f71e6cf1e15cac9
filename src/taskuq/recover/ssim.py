"""Structural similarity with a data range of its own for each image."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

WINDOW, K1, K2 = 7, 0.01, 0.03


def ssim(images: Tensor, targets: Tensor, data_range: Tensor) -> Tensor:
    r"""Mean structural similarity of each image to its target.

    .. math:: \frac{(2\mu_x\mu_y + C_1)(2\sigma_{xy} + C_2)}
              {(\mu_x^2 + \mu_y^2 + C_1)(\sigma_x^2 + \sigma_y^2 + C_2)},
              \qquad C_i = (K_i L)^2

    Means :math:`\mu` and unbiased (co)variances :math:`\sigma` are taken in each uniform 7×7
    window that lies inside the image, and the ratio is averaged over windows; :math:`L` is the
    data range, :math:`K_1 = 0.01` and :math:`K_2 = 0.03`.

    References:
        Wang et al., Image Quality Assessment, IEEE Transactions on Image Processing 2004.

    Arguments:
        images: Magnitude images (case, height, width).
        targets: The true images, the same shape.
        data_range: The range :math:`L` of each case, (case,): the maximum of its volume.

    Returns:
        One number for each case, (case,); 1 for equal images.

    Example:
        >>> import torch
        >>> x = torch.rand(2, 32, 32)
        >>> ssim(x, x, data_range=torch.ones(2)).tolist()
        [1.0, 1.0]
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
