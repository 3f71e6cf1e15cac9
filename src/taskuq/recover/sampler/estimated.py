"""What a sampler draws around, whatever the measurement: an estimate and its operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor


class Estimated(Protocol):
    """A batch of estimated cases (:class:`taskuq.recover.estimate.Estimate` for MRI).

    What an application brings: channels that describe the estimate, and an operator that makes an
    image of a residual which agrees with what was measured. A network is told the first and its
    samples go through the second, in training too.
    """

    @property
    def scale(self) -> Tensor:
        """The unit of each case's images, above 0, (case,)."""

    def inputs(self) -> Tensor:
        """What the network is told, in units of the scale, (case, channel, height, width)."""

    def share(self) -> Tensor:
        """How much was measured, between 0 and 1, (case,)."""

    def images(self, residuals: Tensor) -> Tensor:
        """Consistent real images (case, sample, height, width); gradients flow through it.

        Arguments:
            residuals: In units of the scale, (case, sample, channel, height, width).
        """


@runtime_checkable
class OnTensors(Protocol):
    """What makes estimated cases of tensors alone, so that a GPU can replay it.

    It must not wait for the GPU.
    """

    def tensors(self, measurements: Sequence[Any]) -> tuple[Tensor, ...]:
        """Measurements of one size as tensors (case, ...), where estimates are made."""

    def of(self, *tensors: Tensor) -> Estimated:
        """Estimate the cases."""
