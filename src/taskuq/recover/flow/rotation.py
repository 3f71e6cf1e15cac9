"""A fixed random rotation of the channels at every pixel."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def random_rotation(channels: int, generator: torch.Generator) -> Tensor:
    """Draw a rotation matrix (channels, channels) uniformly among those of determinant 1.

    Arguments:
        channels: The size of the matrix.
        generator: The source of randomness.

    Example:
        >>> import torch
        >>> q = random_rotation(4, torch.Generator().manual_seed(0))
        >>> torch.allclose(q @ q.T, torch.eye(4), atol=1e-6), round(float(torch.det(q)), 5)
        (True, 1.0)
    """
    gaussian = torch.randn(
        channels, channels, generator=generator, dtype=torch.float64, device="cpu"
    )
    q, r = torch.linalg.qr(gaussian)
    # Without these signs the QR decomposition does not give the uniform distribution.
    q = q * torch.sign(torch.diagonal(r))
    if torch.det(q) < 0:
        q[:, 0] = -q[:, 0]
    rotation: Tensor = q.float()
    return rotation


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

    def exact(self) -> Tensor:
        """The matrix in float64, orthogonal to the last digit.

        The stored numbers are rounded to float32 and orthogonal to 1e-7; one step of Newton and
        Schulz takes that to 1e-14.
        """
        rounded = self.matrix.double()
        eye = torch.eye(len(rounded), dtype=rounded.dtype, device=rounded.device)
        return rounded @ (3 * eye - rounded.T @ rounded) / 2

    def forward(self, x: Tensor) -> Tensor:
        """Rotate."""
        return self._mix(x, self._matrix(x))

    def inverse(self, y: Tensor) -> Tensor:
        """Rotate back, by the transpose."""
        return self._mix(y, self._matrix(y).T)

    def _matrix(self, x: Tensor) -> Tensor:
        return self.exact() if x.dtype == torch.float64 else self.matrix

    @staticmethod
    def _mix(x: Tensor, matrix: Tensor) -> Tensor:
        # Rounded to bfloat16, as autocast would do, a rotation and its transpose do not cancel.
        with torch.autocast(x.device.type, enabled=False):
            return (matrix @ x.flatten(2)).view_as(x)
