"""A variational network rearranged for recovery: the same function, for one slice at a time too.

Lines of k-space are whole columns, so that the transform along the height cancels: refinements go
on between the columns of k-space and the rows of the image, with half of the transforms and none
of their shifts. U-Nets run on rows of pixels (:mod:`taskuq.recover.folded_unet`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

from taskuq.measure.coils import rss
from taskuq.measure.fourier import ifft2c
from taskuq.recover.columns import sensitivity_window
from taskuq.recover.folded_unet import FoldedUNet, fold_unet
from taskuq.recover.varnet import NormUnet, VarNet, VarNetBlock, check_kspace, missing


class FoldedRefinement(NamedTuple):
    """One refinement: its U-Net, and how far measured lines are drawn back to the measurement."""

    unet: FoldedUNet
    step: float


@dataclass(frozen=True, eq=False)
class FoldedVarNet:
    """A variational network that can only recover, on one device and in one precision.

    Convolutions run in the precision it was folded in; everything else stays in float32 (float64
    where that is float64).

    Example:
        >>> from taskuq.recover.varnet import VarNetConfig
        >>> net = VarNet(VarNetConfig(cascades=2, width=4, pools=2, sensitivity_pools=2)).eval()
        >>> kspace, lines = torch.randn(1, 4, 16, 16, dtype=torch.complex64), torch.tensor([6])
        >>> mask = sensitivity_window(lines, 16)
        >>> kspace = kspace * mask
        >>> quick = fold_varnet(net, device="cpu", dtype=torch.float32)
        >>> torch.allclose(quick(kspace, mask, lines), net(kspace, mask, lines), atol=1e-4)
        True
    """

    sensitivity: FoldedUNet
    cascades: tuple[FoldedRefinement, ...]

    def __call__(self, kspace: Tensor, mask: Tensor, low_frequencies: Tensor) -> Tensor:
        """Recover magnitude images (case, height, width); arguments as the network's."""
        return rss(self.maps_and_images(kspace, mask, low_frequencies)[1])

    def maps_and_images(
        self, kspace: Tensor, mask: Tensor, low_frequencies: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sensitivities and recovered coil images, complex (case, coil, height, width) each."""
        check_kspace(kspace, mask, low_frequencies)
        zero_filled = ifft2c(kspace)
        measured = torch.fft.fft(zero_filled)
        seen = torch.fft.ifftshift(mask, dim=-1)[:, None, None].to(measured.real.dtype)
        window = torch.fft.ifftshift(sensitivity_window(low_frequencies, mask.shape[-1]), dim=-1)
        maps = self._maps(torch.fft.ifft(measured * window[:, None, None]))
        # The inverse transform's own factor travels with the sensitivities.
        combining = maps.conj().resolve_conj() / kspace.shape[-1]
        refined, drawn = measured, measured * seen
        for unet, step in self.cascades:
            combined = (torch.fft.ifft(refined, norm="forward") * combining).sum(1)
            correction = torch.fft.fft(_refined(unet, combined)[:, None] * maps)
            refined = refined * (1 - step * seen)
            refined = refined.add_(drawn, alpha=step).sub_(correction)
        whole = mask.all(-1).view(-1, 1, 1, 1)
        return maps, torch.where(whole, zero_filled, torch.fft.ifft(refined))

    def _maps(self, images: Tensor) -> Tensor:
        """Sensitivities of unit sum of squares, from images of the central lines."""
        maps = _refined(self.sensitivity, images.flatten(0, 1)).view(images.shape)
        norm = rss(maps)[:, None].clamp_min(torch.finfo(maps.real.dtype).tiny)
        unit: Tensor = maps / norm
        return unit


def fold_varnet(net: VarNet, *, device: torch.device | str, dtype: torch.dtype) -> FoldedVarNet:
    """Rearrange a variational network to recover the same images.

    Arguments:
        net: The network; it is not changed.
        device: Where to recover.
        dtype: The precision of the convolutions: float32, or bfloat16 on a GPU.

    Example:
        >>> from taskuq.recover.varnet import VarNetConfig
        >>> small = VarNet(VarNetConfig(cascades=2, width=4))
        >>> len(fold_varnet(small, device="cpu", dtype=torch.float32).cascades)
        2
    """
    device = torch.device(device)

    def unet(part: NormUnet) -> FoldedUNet:
        return fold_unet(part.unet, device, dtype)

    cascades = []
    for block in net.cascades:
        assert isinstance(block, VarNetBlock)
        cascades.append(FoldedRefinement(unet(block.model), block.dc_weight.item()))
    return FoldedVarNet(unet(net.sens_net.norm_unet), tuple(cascades))


def quick_varnet(net: VarNet, dtype: torch.dtype = torch.float16) -> VarNet | FoldedVarNet:
    """Return the network as it is on a CPU, and folded on a GPU.

    Arguments:
        net: The network, on the device where it shall run.
        dtype: The precision of the convolutions on a GPU.

    Example:
        >>> from taskuq.recover.varnet import VarNetConfig
        >>> net = VarNet(VarNetConfig(cascades=1, width=4))
        >>> quick_varnet(net) is net
        True
    """
    device = next(net.parameters()).device
    return fold_varnet(net, device=device, dtype=dtype) if device.type == "cuda" else net


def _refined(unet: FoldedUNet, images: Tensor) -> Tensor:
    """What :class:`NormUnet` makes of complex images (image, height, width)."""
    x = torch.view_as_real(images.contiguous())
    height, width = x.shape[1:3]
    std, mean = torch.std_mean(x, dim=(1, 2), keepdim=True)
    std = std.clamp_min(torch.finfo(std.dtype).tiny)
    x = ((x - mean) / std).to(unet.dtype)
    rows, columns = (missing(size, len(unet.down)) for size in (height, width))
    top, left = rows // 2, columns // 2
    if rows or columns:
        x = F.pad(x, (0, 0, left, columns - left, top, rows - top))
    features = unet.rows(x.flatten(1, 2), height + rows, width + columns)
    weight, bias = unet.output
    y = torch.addmm(bias, features.flatten(0, 1).to(weight.dtype), weight[:, :, 0, 0].T)
    y = y.view(len(x), height + rows, width + columns, 2)
    y = y[:, top : top + height, left : left + width]
    return torch.view_as_complex((y * std + mean).contiguous())
