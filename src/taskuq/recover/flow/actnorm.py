"""Activation normalisation: one scale and one offset for each channel, started from data."""

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
        >>> import torch
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
