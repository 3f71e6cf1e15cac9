"""Affine maps of the channels at every pixel: ActNorm, started from data, and a fixed rotation."""

from __future__ import annotations

import torch
from torch import Tensor, distributed, nn


class ActNorm(nn.Module):
    r"""Scale and shift each channel.

    .. math:: y_c = e^{s_c} x_c + b_c, \qquad \log|\det| = HW \textstyle\sum_c s_c

    :math:`s_c` and :math:`b_c` are learned; :math:`H, W` are the image's sides. The start is taken
    from data (:meth:`start`), so that the first batch leaves with mean 0 and variance 1.

    References:
        Kingma and Dhariwal, Glow, NeurIPS 2018.

    Arguments:
        channels: The number of channels.

    Example:
        >>> norm, x = ActNorm(3), 5 + 2 * torch.randn(4, 3, 8, 8)
        >>> norm.start(x)
        >>> y, log_det = norm(x)
        >>> y.mean().abs().item() < 1e-5, torch.allclose(norm.inverse(y), x, atol=1e-5)
        (True, True)
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    @torch.no_grad()
    def start(self, x: Tensor) -> None:
        """Set scale and offset so that ``x`` (of all processes together) is standardised."""
        moments = torch.stack([x.mean((0, 2, 3)), x.square().mean((0, 2, 3))]).double()
        if distributed.is_available() and distributed.is_initialized():
            # Every process holds a batch of the same size; its own moments would start it apart.
            distributed.all_reduce(moments)
            moments /= distributed.get_world_size()
        mean, square = moments
        std = (square - mean**2).clamp_min(1e-12).sqrt()
        self.scale.copy_(-std.log())
        self.bias.copy_(-mean / std)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scaled channels and the log-determinant."""
        y = torch.addcmul(self.bias.view(1, -1, 1, 1), x, self.scale.exp().view(1, -1, 1, 1))
        return y, x.shape[-2] * x.shape[-1] * self.scale.sum()

    def inverse(self, y: Tensor) -> Tensor:
        """Undo :meth:`forward`."""
        return (y - self.bias.view(1, -1, 1, 1)) * (-self.scale).exp().view(1, -1, 1, 1)


class Rotation(nn.Module):
    """Rotate the channels of every pixel by the same fixed matrix; its log-determinant is 0.

    Arguments:
        channels: The number of channels.
        generator: Draws the matrix, which is stored with the weights and never trained.

    Example:
        >>> rotate, x = Rotation(8, torch.Generator().manual_seed(0)), torch.randn(1, 8, 4, 4)
        >>> torch.allclose(rotate.inverse(rotate(x)), x, atol=1e-6)
        True
        >>> round(float(torch.det(rotate.matrix)), 5)
        1.0
    """

    matrix: Tensor

    def __init__(self, channels: int, generator: torch.Generator) -> None:
        super().__init__()
        self.register_buffer("matrix", _random_rotation(channels, generator))

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


def _random_rotation(channels: int, generator: torch.Generator) -> Tensor:
    """Draw a rotation matrix (channels, channels) uniformly among those of determinant 1."""
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
