"""iMAP: invertible attention in which half of the entries decide how much of the rest stays."""

from __future__ import annotations

import torch
from torch import Tensor, nn

FLOOR = 1e-5
# Where offset and gates start: factors of 0.982, nearly open, and the logistic function still has
# a slope to learn from.
OPEN = 4.0


def stripes(x: Tensor) -> Tensor:
    r"""Mark the entries (channel, height, width) whose channel plus row-major pixel index is odd.

    .. math:: m_{cj} = (c + j) \bmod 2

    For images of even width these are column stripes that alternate with the channel.

    Arguments:
        x: Channels (case, channel, height, width).

    Example:
        >>> stripes(torch.zeros(1, 2, 1, 4)).int().tolist()
        [[[0, 1, 0, 1]], [[1, 0, 1, 0]]]
    """
    channels, height, width = x.shape[1:]
    pixel = torch.arange(height * width, device=x.device).view(1, height, width)
    channel = torch.arange(channels, device=x.device).view(-1, 1, 1)
    return (channel + pixel) % 2 == 1


class IMap(nn.Module):
    r"""Attention over the channels of each pixel that can be undone.

    .. math:: a_j = \sigma\big(\textstyle\sum_c w_c m_{cj} x_{cj} + r\big) + 10^{-5}, \qquad
              g_c = \sigma(s_c) + 10^{-5}

    .. math:: y_{cj} = x_{cj} \big(m_{cj} g_c + (1 - m_{cj}) a_j\big), \qquad
              \log|\det| = \tfrac C2 \textstyle\sum_j \log a_j + \sum_{cj} m_{cj} \log g_c

    :math:`m` marks the deciding half (:func:`stripes`), :math:`\sigma` is the logistic function;
    :math:`w, r, s` are learned. The published module averages the outputs of a
    :math:`C \times C` map; the average is one filter :math:`w` with one offset, and that is
    what is stored here.

    References:
        Sukthanker et al., Generative Flows with Invertible Attentions, CVPR 2022.

    Arguments:
        channels: The number of channels :math:`C`, even.

    Example:
        >>> attend, x = IMap(4), torch.randn(1, 4, 6, 6)
        >>> y, log_det = attend(x)
        >>> torch.allclose(attend.inverse(y), x, atol=1e-6)
        True
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.zeros(channels))
        self.offset = nn.Parameter(torch.full((), OPEN))
        self.gate = nn.Parameter(torch.full((channels,), OPEN))

    def reset(self, generator: torch.Generator) -> None:
        """Start nearly open, with a small random filter.

        Random gates would be undone by the ActNorms for the first batch but not for Gaussian
        latents: each step would double the spread of a sample.
        """
        channels = len(self.filter)
        with torch.no_grad():
            # The mean of `channels` rows drawn from N(0, 0.02²).
            self.filter.normal_(0, 0.02 / channels**0.5, generator=generator)
            self.offset.fill_(OPEN)
            self.gate.fill_(OPEN)

    def gates(self) -> Tensor:
        """The factors of the deciding entries, (channel,)."""
        return torch.sigmoid(self.gate) + FLOOR

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the attended channels and the log-determinant of each case."""
        mask = stripes(x)
        attention = self._attention(x, mask)
        gate = self.gates().view(1, -1, 1, 1)
        y = x * torch.where(mask, gate, attention)
        decided = x.shape[1] // 2
        log_det = decided * attention.log().sum((1, 2, 3)) + (mask * gate.log()).sum()
        return y, log_det

    def inverse(self, y: Tensor) -> Tensor:
        """Undo :meth:`forward`: the deciding half first, then the half it decided on."""
        mask = stripes(y)
        opened = y / self.gates().view(1, -1, 1, 1)
        attention = self._attention(opened, mask)
        return torch.where(mask, opened, y / attention)

    def _attention(self, x: Tensor, mask: Tensor) -> Tensor:
        # Mask and filter first: that product is small, and one pass over the batch is saved.
        weighted = (x * (mask * self.filter.view(-1, 1, 1))).sum(1, keepdim=True)
        return torch.sigmoid(weighted + self.offset) + FLOOR
