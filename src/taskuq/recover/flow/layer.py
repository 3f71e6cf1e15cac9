"""One layer of the flow: a transition and a row of steps at one resolution."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from taskuq.recover.flow.affine import ActNorm, Rotation
from taskuq.recover.flow.coupling import Coupling
from taskuq.recover.flow.imap import IMap


class Step(nn.Module):
    """ActNorm, rotation, conditional coupling and attention, in this order.

    Arguments:
        channels: The number of channels.
        condition: Channels of the condition.
        kernel: The kernel size of the coupling's subnet.
        generator: Draws the rotation and the start of the weights.

    Example:
        >>> step = Step(4, 2, kernel=3, generator=torch.Generator().manual_seed(0))
        >>> x, c = torch.randn(1, 4, 8, 8), torch.randn(1, 2, 8, 8)
        >>> y, log_det = step(x, c)
        >>> torch.allclose(step.inverse(y, c), x, atol=1e-5)
        True
    """

    def __init__(
        self, channels: int, condition: int, *, kernel: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.norm = ActNorm(channels)
        self.rotation = Rotation(channels, generator)
        self.coupling = Coupling(channels, condition, kernel=kernel)
        self.attention = IMap(channels)
        # Numbers for the meta device would load torch's compiler, for seconds; a file fills it.
        if not self.coupling.subnet.first.weight.is_meta:
            self.coupling.subnet.reset(generator)
            self.attention.reset(generator)

    def forward(self, x: Tensor, condition: Tensor, start: bool = False) -> tuple[Tensor, Tensor]:
        """Return the result and the log-determinant; ``start`` sets the ActNorm from ``x``."""
        if start:
            self.norm.start(x)
        x, by_norm = self.norm(x)
        x, by_coupling = self.coupling(self.rotation(x), condition)
        x, by_attention = self.attention(x)
        return x, by_norm + by_coupling + by_attention

    def inverse(self, y: Tensor, condition: Tensor) -> Tensor:
        """Undo :meth:`forward`."""
        y = self.coupling.inverse(self.attention.inverse(y), condition)
        restored: Tensor = self.norm.inverse(self.rotation.inverse(y))
        return restored


class Layer(nn.Module):
    """A transition (ActNorm and rotation) and steps whose kernels alternate between 1 and 3.

    Arguments:
        channels: The number of channels.
        condition: Channels of the condition.
        steps: How many steps.
        generator: Draws the rotations and the start of the weights.

    Example:
        >>> layer = Layer(4, 2, steps=3, generator=torch.Generator().manual_seed(0))
        >>> [step.coupling.subnet.kernel for step in layer.steps]
        [1, 3, 1]
    """

    def __init__(
        self, channels: int, condition: int, *, steps: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.norm = ActNorm(channels)
        self.rotation = Rotation(channels, generator)
        self.steps = nn.ModuleList(
            Step(channels, condition, kernel=1 + 2 * (k % 2), generator=generator)
            for k in range(steps)
        )

    def forward(self, x: Tensor, condition: Tensor, start: bool = False) -> tuple[Tensor, Tensor]:
        """Return the result and the log-determinant; ``start`` sets the ActNorms from data."""
        if start:
            self.norm.start(x)
        x, log_det = self.norm(x)
        x = self.rotation(x)
        for step in self.steps:
            x, by_step = step(x, condition, start)
            log_det = log_det + by_step
        return x, log_det

    def inverse(self, y: Tensor, condition: Tensor) -> Tensor:
        """Undo :meth:`forward`."""
        for step in reversed(self.steps):
            y = step.inverse(y, condition)  # type: ignore[operator]
        restored: Tensor = self.norm.inverse(self.rotation.inverse(y))
        return restored
