"""A fixed random rotation of the channels at every pixel."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses


def random_rotation(channels: int, generator: torch.Generator) -> Tensor:
    """Draw a rotation matrix (determinant 1), uniformly among all rotations.

    Arguments:
        channels: The size of the matrix.
        generator: The source of randomness.

    Returns:
        A matrix (channels, channels).

    Example:
        >>> import torch
        >>> q = random_rotation(4, torch.Generator().manual_seed(0))
        >>> torch.allclose(q @ q.T, torch.eye(4), atol=1e-6), round(float(torch.det(q)), 5)
        (True, 1.0)
    """
    gaussian = torch.randn(channels, channels, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian)
    # Without these signs the QR decomposition does not give the uniform distribution.
    q = q * torch.sign(torch.diagonal(r))
    if torch.det(q) < 0:
        q[:, 0] = -q[:, 0]
    return q.float()


class Rotation(nn.Module):
    """Rotate the channels of every pixel by the same fixed matrix; its log-determinant is 0.

    Arguments:
        channels: The number of channels.
        generator: Draws the matrix, which is stored with the weights and never trained.

    Example:
        >>> import torch
        >>> rotate, x = Rotation(8, torch.Generator().manual_seed(0)), torch.randn(1, 8, 4, 4)
        >>> torch.allclose(rotate.inverse(rotate(x)), x, atol=1e-6)
        True
    """

    matrix: Tensor

    def __init__(self, channels: int, generator: torch.Generator) -> None:
        super().__init__()
        self.register_buffer("matrix", random_rotation(channels, generator))

    def forward(self, x: Tensor) -> Tensor:
        """Rotate."""
        return F.conv2d(x, self.matrix[:, :, None, None])

    def inverse(self, y: Tensor) -> Tensor:
        """Rotate back, by the transpose."""
        return F.conv2d(y, self.matrix.T[:, :, None, None])
