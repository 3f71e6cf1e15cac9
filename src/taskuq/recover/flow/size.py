"""How large residuals are: at each pixel by a small network, and by acceleration as measured."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

SLOPE = 0.01
# The logarithm of a size stays within this, beside what the first ActNorm does for all pixels.
LARGEST = 4.0
# The accelerations for which it is known how much too small residuals are; others are between.
ACCELERATIONS = (1, 2, 4, 8, 16, 32, 64)


class SizeNet(nn.Module):
    """The logarithm of the size of residuals at each pixel; 0 at the start.

    Arguments:
        inputs: Channels in.
        hidden: Channels between.
        outputs: Channels out.

    Example:
        >>> SizeNet(8, 4, 2)(torch.ones(1, 8, 6, 6)).abs().max().item()
        0.0
    """

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, hidden, 3, padding=1)
        self.second = nn.Conv2d(hidden, hidden, 3, padding=1)
        self.third = nn.Conv2d(hidden, outputs, 1)
        with torch.no_grad():
            self.third.weight.zero_()
            self.third.bias.zero_()  # type: ignore[union-attr]

    def forward(self, told: Tensor) -> Tensor:
        """Map (case, inputs, height, width) to (case, outputs, height, width)."""
        hidden = F.leaky_relu(self.first(told), SLOPE)
        raw = self.third(F.leaky_relu(self.second(hidden), SLOPE))
        return LARGEST * torch.tanh(raw.to(told.dtype) / LARGEST)


def widening_at(widening: Tensor, mask: Tensor) -> Tensor:
    """By how much residuals are widened for masks, (case, channel).

    Between two accelerations it is interpolated in their logarithms; beyond the ends it stays.

    Arguments:
        widening: The factors at each of ``ACCELERATIONS``, (acceleration, channel).
        mask: Booleans (case, width); True is measured.

    Example:
        >>> mask = torch.arange(24)[None] % torch.tensor([[2], [3]]) == 0
        >>> widening_at(torch.arange(1.0, 8.0)[:, None], mask)[:, 0]
        tensor([2.0000, 2.5850])
    """
    share = mask.to(widening.dtype).mean(-1).clamp_min(1 / ACCELERATIONS[-1])
    place = -torch.log2(share)
    below = place.floor().long().clamp_max(len(ACCELERATIONS) - 2)
    return torch.lerp(widening[below], widening[below + 1], (place - below)[:, None])
