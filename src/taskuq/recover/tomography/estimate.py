"""What samples are drawn around in tomography: an estimate, and agreement with measured views."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from taskuq.measure.sinograms import Sinograms, filtered_back_projection, restored
from taskuq.recover.tomography.network import UnrolledNet


@dataclass(frozen=True, eq=False)
class ViewsEstimate:
    """What an unrolled network makes of a batch of measured views.

    Attenuation is an absolute quantity: the unit of every case is 1.

    Attributes:
        image: The estimate, brought towards the measured views, (case, height, width).
        first: The network's own image, the same shape.
        back: Filtered back-projection, its high frequencies faded out, the same shape.
        views: The measured views.
    """

    image: Tensor
    first: Tensor
    back: Tensor
    views: Sinograms

    @property
    def scale(self) -> Tensor:
        """The unit of each case's images, (case,): 1."""
        return torch.ones_like(self.views.share)

    def inputs(self) -> Tensor:
        """What the sampler is told, (case, 3, height, width).

        Where the measured views had to change the network's image, it was wrong.
        """
        return torch.stack([self.image, self.first, self.back], dim=1)

    def share(self) -> Tensor:
        """The share of views that was measured, (case,)."""
        return self.views.share

    def images(self, residuals: Tensor) -> Tensor:
        """Images with these errors, brought towards the views, (case, sample, height, width).

        Arguments:
            residuals: Errors of the estimate, (case, sample, 1, height, width).
        """
        return restored(self.image[:, None] + residuals[:, :, 0], self.views)


@torch.no_grad()
def estimated(net: UnrolledNet, views: Sinograms) -> ViewsEstimate:
    """Run an unrolled network and let its image agree with what was measured.

    Arguments:
        net: The network.
        views: The measured views, where the network is.

    Example:
        >>> from taskuq.measure.sinograms import stacked
        >>> from taskuq.measure.tomography import ParallelBeamCT
        >>> from taskuq.recover.tomography import UnrolledConfig
        >>> scan = ParallelBeamCT(32, 64, accelerations=(8,))(torch.ones(32, 32), acceleration=8)
        >>> net = UnrolledNet(UnrolledConfig(cascades=1, width=4, pools=2))
        >>> estimated(net, stacked([scan])).inputs().shape
        torch.Size([1, 3, 32, 32])
    """
    first = net(views)
    back = filtered_back_projection(views, "hann")
    return ViewsEstimate(restored(first, views), first, back, views)
