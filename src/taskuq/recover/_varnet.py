"""U-Net and end-to-end variational network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from taskuq._config import Channels, Depth
from taskuq.errors import InputError
from taskuq.measure._coils import rss
from taskuq.measure._fourier import broadcast_mask, ifft2c, sensitivity_window

SLOPE = 0.2
EPS = 1e-5


class _ConvBlock(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


def _conv_block(inputs: int, outputs: int) -> _ConvBlock:
    first = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
    # The positions 0 and 4 give the parameter names of the public fastMRI weights.
    return _ConvBlock(*_normed(first), nn.Identity(), *_normed(second))


class InstanceNorm(nn.Module):
    eps: Tensor | None = None  # of rescaled convolutions, see `half_unet`

    def forward(self, x: Tensor) -> Tensor:
        if self.eps is None and not torch.compiler.is_compiling():
            return F.instance_norm(x)
        # torch's own goes through another shape, for which images are copied from channels last
        # and back again.
        wide = x if x.dtype == torch.float64 else x.float()
        var, mean = torch.var_mean(wide, dim=(2, 3), keepdim=True, correction=0)
        eps = EPS if self.eps is None else self.eps
        return ((wide - mean) * torch.rsqrt(var + eps)).to(x.dtype)


def _normed(convolution: nn.Module) -> tuple[nn.Module, ...]:
    return convolution, InstanceNorm(), nn.LeakyReLU(SLOPE)


class UNet(nn.Module):
    """U-Net with average pooling, instance normalisation and transposed convolutions."""

    def __init__(self, inputs: int, outputs: int, *, width: int, pools: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(pools + 1)]
        self.pools = pools
        self.down_sample_layers = nn.ModuleList(
            _conv_block(inputs if level == 0 else widths[level - 1], widths[level])
            for level in range(pools)
        )
        self.conv = _conv_block(widths[-2], widths[-1])
        self.up_transpose_conv = nn.ModuleList(
            _ConvBlock(*_normed(nn.ConvTranspose2d(2 * n, n, 2, stride=2, bias=False)))
            for n in reversed(widths[:-1])
        )
        blocks = [_conv_block(2 * n, n) for n in reversed(widths[:-1])]
        self.up_conv = nn.ModuleList(
            [*blocks[:-1], nn.Sequential(blocks[-1], nn.Conv2d(width, outputs, 1))]
        )

    def features(self, x: Tensor) -> Tensor:
        """Return the last decoder features, (batch, channel, height, width)."""
        if min(x.shape[-2:]) < 2 ** (self.pools + 1):
            text = f"images of {x.shape[-2]}×{x.shape[-1]} are too small for {self.pools} pools"
            raise InputError(text, code="shape.mismatch")
        first = next(self.parameters())
        x = x.to(first.dtype)
        if missing := first.shape[1] - x.shape[1]:
            x = F.pad(x, (0, 0, 0, 0, 0, missing))  # channels that `half_unet` has padded
        skips = []
        for down in self.down_sample_layers:
            x = down(x)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.conv(x)
        for i, (up, block) in enumerate(zip(self.up_transpose_conv, self.up_conv, strict=True)):
            x, skip = up(x), skips.pop()
            rows, columns = skip.shape[-2] - x.shape[-2], skip.shape[-1] - x.shape[-1]
            if rows or columns:
                # Pooling drops the last row or column of an odd size; reflection gives it back.
                x = F.pad(x, (0, columns, 0, rows), mode="reflect")
            last = i == self.pools - 1
            x = (cast(nn.Sequential, block)[0] if last else block)(torch.cat([x, skip], dim=1))
        return x

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.output(self.features(x).to(self.output.weight.dtype))
        return y

    @property
    def output(self) -> nn.Conv2d:
        return cast(nn.Conv2d, cast(nn.Sequential, self.up_conv[-1])[1])


@dataclass(frozen=True)
class VarNetConfig:
    """Size of a variational network; the defaults are the paper's.

    Example:
        >>> VarNetConfig().cascades
        12
    """

    cascades: Depth = 12  #: Number of refinement steps.
    width: Channels = 18  #: Channels at the first level of each refinement U-Net.
    pools: Depth = 4  #: Number of times a refinement U-Net halves the image.
    sensitivity_width: Channels = 8  #: Channels at the first level of the sensitivity U-Net.
    sensitivity_pools: Depth = 4  #: Number of times the sensitivity U-Net halves the image.


class NormUnet(nn.Module):
    """U-Net for complex images, which are normalised to mean 0 and standard deviation 1."""

    def __init__(self, width: int, pools: int) -> None:
        super().__init__()
        self.unet = UNet(2, 2, width=width, pools=pools)

    def forward(self, images: Tensor) -> Tensor:
        """Refine complex images (image, height, width)."""
        x = torch.view_as_real(images.resolve_conj()).movedim(-1, 1)
        return torch.view_as_complex(self.refine(x).movedim(1, -1).contiguous())

    def refine(self, x: Tensor) -> Tensor:
        """Refine images as real channels, (image, 2, height, width)."""
        # A constant image (an empty coil) has no spread; the smallest float keeps it finite.
        std, mean = torch.std_mean(x, dim=(-2, -1), keepdim=True)
        std = std.clamp_min(torch.finfo(std.dtype).tiny)
        height, width = x.shape[-2:]
        least = 2 << self.unet.pools
        rows, columns = (max(-size % 16, least - size) for size in (height, width))
        top, left = rows // 2, columns // 2
        padded = F.pad((x - mean) / std, (left, columns - left, top, rows - top))
        y = self.unet(padded)[..., top : top + height, left : left + width]
        refined: Tensor = y.to(std.dtype) * std + mean
        return refined


class _SensitivityModel(nn.Module):
    """Network that estimates coil sensitivities from the central lines of k-space."""

    def __init__(self, width: int, pools: int) -> None:
        super().__init__()
        self.norm_unet = NormUnet(width, pools)

    def forward(self, kspace: Tensor, count: Tensor) -> Tensor:
        """Return sensitivities (case, coil, height, width) from the ``count`` central lines."""
        window = sensitivity_window(count, kspace.shape[-1])
        images = ifft2c(torch.where(broadcast_mask(window, kspace), kspace, 0))
        maps: Tensor = self.norm_unet(images.flatten(0, 1)).view(images.shape)
        return maps / rss(maps)[:, None].clamp_min(torch.finfo(maps.real.dtype).tiny)


class VarNetBlock(nn.Module):
    def __init__(self, width: int, pools: int) -> None:
        super().__init__()
        self.model = NormUnet(width, pools)
        self.dc_weight = nn.Parameter(torch.ones(1))

    def forward(self, refined: Tensor, measured: Tensor, lines: Tensor, maps: Tensor) -> Tensor:
        """Update ``refined``, row-wise transforms of coil images; ``lines`` is 1 where measured."""
        combined = (torch.fft.ifft(refined) * maps.conj()).sum(1)
        correction: Tensor = torch.fft.fft(self.model(combined)[:, None] * maps)
        consistent = refined - self.dc_weight * lines * (refined - measured)
        return consistent - correction


class VarNet(nn.Module):
    r"""End-to-end variational network, which returns a point estimate of the magnitude image.

    Every case of a batch may have its own mask. Coil sensitivities are estimated from the central
    lines, counted by :func:`~taskuq.measure._fourier.central_lines`. A fully sampled image is
    returned unchanged.

    References:
        Sriram et al., End-to-End Variational Networks for Accelerated MRI Reconstruction,
        MICCAI 2020.

    Args:
        config: Size of the network; the paper's has 29,936,966 parameters.

    Example:
        >>> net = VarNet(VarNetConfig(cascades=2, width=4, pools=2, sensitivity_pools=2))
        >>> kspace = torch.randn(2, 4, 16, 16, dtype=torch.complex64)
        >>> mask = torch.ones(2, 16, dtype=torch.bool)
        >>> image = net(kspace, mask, low_frequencies=torch.tensor([16, 16]))
        >>> torch.allclose(image, rss(ifft2c(kspace)))  # everything is measured
        True
    """

    def __init__(self, config: VarNetConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or VarNetConfig()
        self.sens_net = _SensitivityModel(c.sensitivity_width, c.sensitivity_pools)
        self.cascades = nn.ModuleList(VarNetBlock(c.width, c.pools) for _ in range(c.cascades))

    def forward(self, kspace: Tensor, mask: Tensor, low_frequencies: Tensor) -> Tensor:
        """Recover magnitude images (case, height, width).

        Args:
            kspace: Measured k-space, complex (case, coil, height, width), 0 where not measured.
            mask: Booleans (case, width); True is measured.
            low_frequencies: Number of central lines of each case, integers (case,).
        """
        return rss(self.maps_and_images(kspace, mask, low_frequencies)[1])

    def maps_and_images(
        self, kspace: Tensor, mask: Tensor, low_frequencies: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return sensitivities and coil images, complex (case, coil, height, width) each."""
        if kspace.ndim != 4 or not kspace.is_complex():
            shape = f"{tuple(kspace.shape)} of {kspace.dtype}"
            text = f"k-space must be complex (case, coil, height, width), got {shape}"
            raise InputError(text, code="shape.axes")
        expected = (kspace.shape[0], kspace.shape[-1])
        if mask.shape != expected or low_frequencies.shape != expected[:1]:
            text = f"mask and low_frequencies must have shapes {expected} and {expected[:1]}, got "
            text += f"{tuple(mask.shape)} and {tuple(low_frequencies.shape)}"
            raise InputError(text, code="shape.mismatch")
        maps = self.sens_net(kspace, low_frequencies)
        # Masks are the same in all rows: a Fourier transform of the rows is enough, and one whose
        # first frequency is 0 needs no shift.
        zero_filled = ifft2c(kspace)
        refined = measured = torch.fft.fft(zero_filled)
        lines = torch.fft.ifftshift(mask, dim=-1)[:, None, None].to(measured.real.dtype)
        for cascade in self.cascades:
            refined = cascade(refined, measured, lines, maps)
        whole = mask.all(-1).view(-1, 1, 1, 1)
        return maps, torch.where(whole, zero_filled, torch.fft.ifft(refined))
