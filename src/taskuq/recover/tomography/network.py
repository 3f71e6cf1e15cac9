"""The unrolled network: a point estimate from the measured views of a CT scan."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from taskuq.errors import InputError
from taskuq.measure.sinograms import Sinograms, filtered_back_projection, restored
from taskuq.recover.unet import UNet


@dataclass(frozen=True)
class UnrolledConfig:
    """The size of an unrolled network; the default is for 256×256.

    Arguments:
        cascades: How many refinements follow each other.
        width: Channels of the first level of each refinement U-Net.
        pools: How many times a refinement U-Net halves the image.

    Example:
        >>> UnrolledConfig().cascades
        6
    """

    cascades: int = 6
    width: int = 32
    pools: int = 4

    def __post_init__(self) -> None:
        if min(self.cascades, self.width, self.pools) < 1:
            raise InputError(
                f"the network has {self.cascades} cascades, width {self.width} and {self.pools} "
                "pools; give numbers above 0"
            )


class UnrolledNet(nn.Module):
    r"""Refinements, before each of which the image is brought towards the measured views.

    .. math:: x \leftarrow R(x) + U_k\big(R(x), b, \ln m\big)

    :math:`R` is one step of :func:`taskuq.measure.sinograms.restored`, :math:`b` the filtered
    back-projection with its high frequencies faded out and :math:`m` the measured share.

    References:
        Adler and Öktem, Learned Primal-Dual Reconstruction, IEEE Transactions on Medical Imaging
        2018.

    Arguments:
        config: The size.

    Example:
        >>> from taskuq.measure.sinograms import stacked
        >>> from taskuq.measure.tomography import ParallelBeamCT
        >>> scan = ParallelBeamCT(32, 64, accelerations=(8,))(torch.ones(32, 32), acceleration=8)
        >>> UnrolledNet(UnrolledConfig(cascades=2, width=4, pools=2))(stacked([scan])).shape
        torch.Size([1, 32, 32])
    """

    def __init__(self, config: UnrolledConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or UnrolledConfig()
        self.refinements = nn.ModuleList(_refinement(c) for _ in range(c.cascades))

    def forward(self, views: Sinograms) -> Tensor:
        """Recover images (case, height, width)."""
        smooth = filtered_back_projection(views, "hann")
        share = torch.log(views.share.clamp_min(1e-3)).view(-1, 1, 1).expand(smooth.shape)
        image = restored(torch.zeros_like(smooth), views)
        for refinement in self.refinements:
            image = restored(image, views, steps=1)
            image = image + refinement(torch.stack([image, smooth, share], dim=1))[:, 0].float()
        return image


def _refinement(config: UnrolledConfig) -> UNet:
    """A U-Net that says almost nothing before it is trained: the start is least squares."""
    net = UNet(3, 1, width=config.width, pools=config.pools)
    last = net.output
    assert isinstance(last, nn.Conv2d)
    assert last.bias is not None
    nn.init.normal_(last.weight, std=1e-3)
    nn.init.zeros_(last.bias)
    return net
