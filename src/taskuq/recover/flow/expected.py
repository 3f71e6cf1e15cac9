"""What is expected of an image before anything is drawn: its coils turned, its mean, what is told.

The likelihood hardly teaches a flow the mean of what is missing. A U-Net that is trained for
nothing else says it better; the flow then draws what is left, told how the U-Net came to its image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from taskuq.measure.coils import to_channels, to_complex
from taskuq.recover.columns import consistent_columns
from taskuq.recover.flow.config import FlowConfig
from taskuq.recover.flow.turn import Turn

# The U-Net: real channels to its features and what it makes of them.
Predict = Callable[[Tensor], tuple[Tensor, Tensor]]


class Expected(NamedTuple):
    """What a measurement fixes of all its samples.

    Attributes:
        turn: How coils are turned; None where they are left as they are.
        images: The image that is expected after each pass, complex (case, coil, height, width);
            their measured lines are those of the measurement. None where the flow has no mean.
        told: What the flow is told, real channels (case, told, height, width); where it has a mean,
            the U-Net's features first.
    """

    turn: Turn | None
    images: tuple[Tensor, ...]
    told: Tensor

    def turned(self, images: Tensor) -> Tensor:
        """Coil images as the flow sees them."""
        return images if self.turn is None else self.turn(images)

    def back(self, turned: Tensor) -> Tensor:
        """What the flow sees as coil images."""
        return turned if self.turn is None else self.turn.back(turned)


def expected(config: FlowConfig, measured: Tensor, mask: Tensor, predict: Predict) -> Expected:
    r"""Turn the coils and let the U-Net say what is missing, as often as configured.

    .. math:: x^{(k+1)} = y + (I - A) \big(x^{(k)} + T^{\mathsf H} u(T y, T x^{(k)})\big), \qquad
              x^{(0)} = y

    :math:`y` is zero-filled, :math:`A` keeps the measured lines, :math:`T` turns coils
    (:class:`taskuq.recover.flow.turn.Turn`), :math:`u` is the U-Net.

    Arguments:
        config: Whether coils are turned, and how many passes there are.
        measured: Zero-filled coil images, complex (case, coil, height, width).
        mask: Booleans (case, width); True is measured.
        predict: The U-Net; not called where there are no passes.

    Example:
        >>> y, mask = torch.randn(1, 2, 8, 8) + 0j, torch.ones(1, 8, dtype=torch.bool)
        >>> found = expected(FlowConfig(coils=2, passes=1), y, mask,
        ...                  lambda told: (told[:, :3], told[:, :4]))
        >>> torch.allclose(found.images[-1], y, atol=1e-6)  # everything is measured
        True
    """
    turn = Turn.of(measured) if config.turned else None
    start = Expected(turn, (), to_channels(measured if turn is None else turn(measured)))
    if not config.passes:
        return start
    zero_filled, lines = start.told, mask[:, None, None]
    image, images = measured, []
    features = said = seen = zero_filled
    for _ in range(config.passes):
        features, said = predict(torch.cat([zero_filled, seen], dim=1))
        image = image + start.back(to_complex(said))
        image = consistent_columns(image, measured, lines)
        images.append(image)
        seen = to_channels(start.turned(image))
    share = mask.to(said.dtype).mean(1).view(-1, 1, 1, 1).expand(-1, 1, *said.shape[-2:])
    told = torch.cat([features.to(said.dtype), zero_filled, seen, said, share], dim=1)
    return Expected(turn, tuple(images), told)
