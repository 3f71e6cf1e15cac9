"""The U-Net that conditions the flow and refines the variational network."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

from taskuq.errors import InputError

SLOPE = 0.2
EPS = 1e-5


class Block(nn.Module):
    """Layers in a row, under the name that the public fastMRI networks give them.

    Arguments:
        layers: The layers.
    """

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers."""
        y: Tensor = self.layers(x)
        return y


def _conv_block(inputs: int, outputs: int) -> Block:
    """Two 3×3 convolutions, each followed by instance normalisation and a leaky ReLU."""
    first = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
    # The positions 0 and 4 give the parameter names of the public fastMRI weights.
    return Block(*_normed(first), nn.Identity(), *_normed(second))


class InstanceNorm(nn.Module):
    """Channels of each image with mean 0 and variance 1 over its pixels.

    Example:
        >>> InstanceNorm()(torch.tensor([[[[1.0, 3.0]]]])).round().tolist()
        [[[[-1.0, 1.0]]]]
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (image, channel, height, width)."""
        if not torch.compiler.is_compiling():
            return F.instance_norm(x)
        # torch's own goes through another shape, for which images are copied from channels last
        # and back again.
        wide = x if x.dtype == torch.float64 else x.float()
        var, mean = torch.var_mean(wide, dim=(2, 3), keepdim=True, correction=0)
        return ((wide - mean) * torch.rsqrt(var + EPS)).to(x.dtype)


def _normed(convolution: nn.Module) -> tuple[nn.Module, ...]:
    return convolution, InstanceNorm(), nn.LeakyReLU(SLOPE)


class UNet(nn.Module):
    r"""A U-Net with average pooling, instance normalisation and transposed convolutions.

    Width doubles at each of the ``pools`` halvings. Parameter names are those of the public
    fastMRI networks, so that their weights load.

    References:
        Ronneberger et al., U-Net, MICCAI 2015.
        Zbontar et al., fastMRI, arXiv:1811.08839.

    Arguments:
        inputs: Channels in.
        outputs: Channels out.
        width: Channels of the first level.
        pools: How many times the image is halved.

    Example:
        >>> unet = UNet(inputs=2, outputs=2, width=4, pools=2)
        >>> unet(torch.zeros(1, 2, 16, 18)).shape
        torch.Size([1, 2, 16, 18])
        >>> unet.features(torch.zeros(1, 2, 16, 18)).shape  # before the last 1×1 convolution
        torch.Size([1, 4, 16, 18])
    """

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
            Block(*_normed(nn.ConvTranspose2d(2 * n, n, 2, stride=2, bias=False)))
            for n in reversed(widths[:-1])
        )
        blocks = [_conv_block(2 * n, n) for n in reversed(widths[:-1])]
        self.up_conv = nn.ModuleList(
            [*blocks[:-1], nn.Sequential(blocks[-1], nn.Conv2d(width, outputs, 1))]
        )

    def features(self, x: Tensor) -> Tensor:
        """The output of the last decoder block, (batch, width, height, width of the image)."""
        if min(x.shape[-2:]) < 2 ** (self.pools + 1):
            raise InputError(
                f"images of {x.shape[-2]}×{x.shape[-1]} are too small for {self.pools} halvings; "
                f"give at least {2 ** (self.pools + 1)} pixels a side, or fewer pools"
            )
        skips = []
        for down in self.down_sample_layers:
            x = down(x)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.conv(x)
        for i, (up, block) in enumerate(zip(self.up_transpose_conv, self.up_conv, strict=True)):
            skip = skips.pop()
            x = self._match(up(x), skip)
            x = (block if i < self.pools - 1 else self._last[0])(torch.cat([x, skip], dim=1))
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, height, width) to (batch, outputs, height, width)."""
        y: Tensor = self.output(self.features(x))
        return y

    @property
    def output(self) -> nn.Module:
        """The last 1×1 convolution."""
        return self._last[1]

    @property
    def _last(self) -> nn.Sequential:
        last = self.up_conv[-1]
        assert isinstance(last, nn.Sequential)
        return last

    @staticmethod
    def _match(x: Tensor, skip: Tensor) -> Tensor:
        # Pooling drops the last row or column of an odd size; reflection gives it back.
        rows, columns = skip.shape[-2] - x.shape[-2], skip.shape[-1] - x.shape[-1]
        return F.pad(x, (0, columns, 0, rows), mode="reflect") if rows or columns else x
