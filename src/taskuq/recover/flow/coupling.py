"""Conditional affine coupling: half of the channels scale and shift the other half."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

SLOPE = 0.01
# The published soft clamp: 0.636 is close to 2 / pi, so that |s| stays below CLAMP.
CLAMP, ATAN_SCALE = 1.5, 0.636


class Subnet(nn.Module):
    """Three convolutions that read half of the channels and the condition.

    The last convolution starts at zero, so that a new coupling is the identity.

    Arguments:
        inputs: Channels of the half that is read.
        condition: Channels of the condition.
        kernel: 1 for a network on single pixels, 3 for one on neighbourhoods.

    Example:
        >>> subnet = Subnet(32, 64, kernel=3)
        >>> subnet(torch.zeros(1, 32, 8, 8), torch.zeros(1, 64, 8, 8)).shape
        torch.Size([1, 64, 8, 8])
    """

    def __init__(self, inputs: int, condition: int, *, kernel: int) -> None:
        super().__init__()
        hidden = 2 * (inputs + condition)
        self.inputs, self.kernel = inputs, kernel
        pad = kernel // 2
        self.first = nn.Conv2d(inputs + condition, hidden, kernel, padding=pad)
        self.second = nn.Conv2d(hidden, hidden, kernel, padding=pad)
        self.third = nn.Conv2d(hidden, 2 * inputs, kernel, padding=pad)

    def reset(self, generator: torch.Generator) -> None:
        """Draw weights from N(0, 0.02²), the last convolution's excepted."""
        with torch.no_grad():
            for conv in (self.first, self.second):
                conv.weight.normal_(0, 0.02, generator=generator)
                conv.bias.normal_(0, 0.02, generator=generator)  # type: ignore[union-attr]
            self.third.weight.zero_()
            self.third.bias.zero_()  # type: ignore[union-attr]

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Return raw scale and shift, (case, 2 * inputs, height, width)."""
        hidden = F.leaky_relu(self.first(torch.cat([x, condition], dim=1)), SLOPE)
        hidden = F.leaky_relu(self.second(hidden), SLOPE)
        raw: Tensor = self.third(hidden)
        return raw


def log_scale(raw: Tensor) -> Tensor:
    r"""Soften a raw scale to :math:`s = 1.5 \cdot 0.636 \arctan(a)`, which stays within ±1.5.

    Arguments:
        raw: The network's raw scale :math:`a`.

    Example:
        >>> round(float(log_scale(torch.tensor(1e9))), 3)
        1.499
    """
    return CLAMP * ATAN_SCALE * torch.atan(raw)


class Coupling(nn.Module):
    r"""Scale and shift the second half of the channels by what the first half says.

    .. math:: y_1 = x_1, \quad y_2 = x_2 e^{s} + t, \quad (a, t) = N(x_1, c), \quad
              \log|\det| = \textstyle\sum s

    :math:`x_1, x_2` are the halves, :math:`c` is the condition, :math:`N` a :class:`Subnet`, and
    :math:`s` the softened :math:`a` (:func:`log_scale`).

    References:
        Dinh et al., Density Estimation Using Real NVP, ICLR 2017.

    Arguments:
        channels: The number of channels, even.
        condition: Channels of the condition.
        kernel: The kernel size of the subnet, 1 or 3.

    Example:
        >>> x, c = torch.randn(1, 4, 8, 8), torch.ones(1, 2, 8, 8)
        >>> coupling = Coupling(4, 2, kernel=1)
        >>> y, log_det = coupling(x, c)
        >>> torch.allclose(coupling.inverse(y, c), x, atol=1e-6)
        True
    """

    def __init__(self, channels: int, condition: int, *, kernel: int) -> None:
        super().__init__()
        self.subnet = Subnet(channels // 2, condition, kernel=kernel)

    def forward(self, x: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """Return the coupled channels and the log-determinant of each case."""
        kept, changed = x.chunk(2, dim=1)
        s, t = self._scale_and_shift(kept, condition)
        y = torch.cat([kept, changed * s.exp() + t], dim=1)
        return y, s.sum((1, 2, 3))

    def inverse(self, y: Tensor, condition: Tensor) -> Tensor:
        """Undo :meth:`forward`."""
        kept, changed = y.chunk(2, dim=1)
        s, t = self._scale_and_shift(kept, condition)
        return torch.cat([kept, (changed - t) * (-s).exp()], dim=1)

    def _scale_and_shift(self, kept: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        # Under autocast the subnet runs in bfloat16; scale and shift stay in the images' precision.
        raw, shift = self.subnet(kept, condition).to(kept.dtype).chunk(2, dim=1)
        return log_scale(raw), shift
