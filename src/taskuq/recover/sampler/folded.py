"""A sampler rearranged for drawing: the same function on rows of pixels, channels last.

Images are (image, pixel, channel). Fused kernels take over on a GPU; the functions here define what
they compute, and are what runs on a CPU. What is known of a case comes from the network itself.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

from taskuq.recover import compiled
from taskuq.recover.folded_unet import ALIGNED, convolve, filled_up, to_rows, weight_of
from taskuq.recover.sampler import kernels
from taskuq.recover.sampler.network import DrawnLevel, Known, SamplerNet, about_share, apart

EPS = 1e-5


class FoldedLevel(NamedTuple):
    """The weights of one level of the part that draws."""

    coarser: tuple[Tensor, Tensor] | None
    first: Tensor
    second: Tensor
    second_bias: Tensor
    norms: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
    film: tuple[Tensor, Tensor]
    groups: int


class KnownRows(NamedTuple):
    """What is known of cases, as rows of pixels: for each level (first, last, loud), and all else.

    Attributes:
        levels: Maps (case, pixel, channel), the finest level first.
        mean: A residual without noise, (case, pixel, outputs).
        amplitude: By how much what noise brings is multiplied, the same shape.
        about: What is said of the measured share, (case, 2).
        size: Height and width before filling up.
    """

    levels: list[tuple[Tensor, Tensor, Tensor]]
    mean: Tensor
    amplitude: Tensor
    about: Tensor
    size: tuple[int, int]


@dataclass(frozen=True, eq=False)
class FoldedSampler:
    """A sampler on one device and in one precision.

    Convolutions run in ``dtype``; of the part that draws, sums and normalisations in float32.

    Example:
        >>> from taskuq.recover.sampler.config import SamplerConfig
        >>> net = SamplerNet(SamplerConfig(inputs=3, outputs=1, width=4, drawn=(4, 8))).eval()
        >>> told, share, noise = torch.randn(2, 3, 8, 8), torch.ones(2), torch.randn(
        ...     2, 5, net.noise_size(8, 8))
        >>> folded = fold_sampler(net, device="cpu", dtype=torch.float32)
        >>> with torch.no_grad():
        ...     quick = folded.draw(folded.know(told, share), noise)
        ...     torch.allclose(quick, net(told, share, noise), atol=1e-5)
        True
    """

    net: SamplerNet
    knowing: SamplerNet
    levels: tuple[FoldedLevel, ...]
    out: tuple[Tensor, Tensor]
    dtype: torch.dtype

    def noise_size(self, height: int, width: int) -> int:
        """How many normal numbers a sample of an image takes."""
        return self.net.noise_size(height, width)

    def know(self, told: Tensor, share: Tensor) -> KnownRows:
        """All that does not depend on noise; arguments as the sampler's."""
        mixed = self.dtype in (torch.bfloat16, torch.float16)
        with torch.autocast(told.device.type, self.dtype if mixed else None, enabled=mixed):
            return self.rows(self.knowing.know(told, share))

    def rows(self, known: Known) -> KnownRows:
        """What is known, as rows in this precision."""
        levels = [
            tuple(to_rows(part.to(self.dtype)) for part in (level.first, level.last, level.loud))
            for level in known.levels
        ]
        mean, amplitude = (to_rows(x.float()) for x in (known.mean, known.amplitude))
        about = about_share(known.share)
        return KnownRows(levels, mean, amplitude, about, known.size)  # type: ignore[arg-type]

    def draw(self, known: KnownRows, noise: Tensor) -> Tensor:
        """Residuals (case, sample, outputs, height, width) of what is known and noise.

        Arguments:
            known: What :meth:`know` made of cases.
            noise: Normal numbers (case, sample, noise_size).
        """
        with torch.autocast(noise.device.type, enabled=False):
            return self._draw(known, noise)

    def _draw(self, known: KnownRows, noise: Tensor) -> Tensor:
        cases, samples = noise.shape[:2]
        c = self.net.config
        shapes = self.net.noise_shapes(*known.size)
        of_case = known.about[:, None].expand(-1, samples, -1)
        numbers = torch.cat([of_case, noise[:, :, : c.numbers]], dim=2).flatten(0, 1)
        inner = self.net.embed_noise(numbers)
        noise, end = noise.flatten(0, 1), noise.shape[-1]
        x: Tensor | None = None
        for level, maps, shape in reversed(
            list(zip(self.levels, known.levels, shapes, strict=True))
        ):
            start = end - math.prod(shape)
            x = _level(level, x, maps, noise[:, start:end], inner, *shape[1:])
            end = start
        assert x is not None
        height, width = shapes[0][1:]
        weight, bias = self.out
        said = convolve(x, weight, height, width)[..., : c.outputs].float() + bias
        residuals = torch.addcmul(known.mean[:, None], apart(said, cases), known.amplitude[:, None])
        residuals = residuals.view(cases, samples, height, width, c.outputs).movedim(-1, 2)
        return residuals[..., : known.size[0], : known.size[1]] * c.scale


def fold_sampler(
    net: SamplerNet, *, device: torch.device | str, dtype: torch.dtype
) -> FoldedSampler:
    """Rearrange a sampler to draw the same samples.

    Arguments:
        net: The sampler, on that device.
        device: Where to draw.
        dtype: The precision of the convolutions: float32, or bfloat16 on a GPU.

    Example:
        >>> from taskuq.recover.sampler.config import SamplerConfig
        >>> net = SamplerNet(SamplerConfig(width=4, drawn=(4, 8)))
        >>> len(fold_sampler(net, device="cpu", dtype=torch.float32).levels)
        2
    """
    device = torch.device(device)
    levels = tuple(_fold_level(level, device, dtype) for level in net.levels)  # type: ignore[arg-type]
    assert net.out.bias is not None
    weight = weight_of(filled_up(net.out.weight.detach(), ALIGNED, 0), device, dtype)
    # Convolutions of this size run on tensor cores, which read channels last.
    knowing = deepcopy(net).to(dtype).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    bias = net.out.bias.detach().float().to(device)
    return FoldedSampler(net, knowing, levels, (weight, bias), dtype)


def _fold_level(level: DrawnLevel, device: torch.device, dtype: torch.dtype) -> FoldedLevel:
    def plain(*tensors: Tensor | None) -> tuple[Any, ...]:
        return tuple(t.detach().float().to(device) for t in tensors if t is not None)

    coarser = None
    if level.coarser is not None:
        matrix = level.coarser.weight.detach()[:, :, 0, 0].T.to(device, dtype).contiguous()
        assert level.coarser.bias is not None
        coarser = matrix, level.coarser.bias.detach().to(device, dtype)
    first = filled_up(level.first.weight.detach(), ALIGNED, 1)
    norms = tuple(plain(norm.weight, norm.bias) for norm in level.norms)  # type: ignore[arg-type]
    return FoldedLevel(
        coarser=coarser,
        first=weight_of(first, device, dtype),
        second=weight_of(level.second.weight, device, dtype),
        second_bias=plain(level.second.bias)[0],
        norms=norms,  # type: ignore[arg-type]
        film=plain(level.film.weight, level.film.bias),
        groups=level.norms[0].groups,  # type: ignore[arg-type]
    )


def _level(
    level: FoldedLevel,
    x: Tensor | None,
    maps: tuple[Tensor, Tensor, Tensor],
    noise: Tensor,
    inner: Tensor,
    height: int,
    width: int,
) -> Tensor:
    first, last, loud = maps
    below = None
    if x is not None:
        assert level.coarser is not None
        matrix, bias = level.coarser
        below = torch.addmm(bias, x.flatten(0, 1), matrix).view(len(x), x.shape[1], -1)
    inputs = blend(below, noise, loud, level.first.shape[1], width)
    stretch, shift = F.linear(inner.float(), *level.film).chunk(2, dim=1)
    (weight, bias), last_norm = level.norms
    # The normalisation's own factor and offset, stretched and shifted.
    factor, offset = weight * (1 + stretch), torch.addcmul(shift, bias, 1 + stretch)
    raw = convolve(inputs, level.first, height, width)
    hidden = finish(raw, first, factor, offset, groups=level.groups, width=width)
    raw = convolve(hidden, level.second, height, width)
    return finish(
        raw, level.second_bias, *last_norm, groups=level.groups, width=width, after=last,
        below=below,
    )  # fmt: skip


def blend(below: Tensor | None, noise: Tensor, loud: Tensor, filled: int, width: int) -> Tensor:
    """What the first convolution of a level reads: the coarser level, and noise.

    Arguments:
        below: The coarser level, (case * sample, pixel / 4, channel), or None; it is doubled.
        noise: (case * sample, map * pixel).
        loud: How loud each noise map is, (case, pixel, map).
        filled: Channels of the result; those beyond are 0.
        width: Columns of the image.

    Example:
        >>> blend(torch.ones(1, 1, 1), torch.ones(1, 4), torch.full((1, 4, 1), 3.0), 3, 2)[0, 0]
        tensor([1., 3., 0.])
    """
    if fused := _kernels(noise):
        result: Tensor = fused.blend(below, noise, loud, filled, width)
        return result
    cases, pixels, count = loud.shape
    maps = apart(noise.view(len(noise), count, pixels), cases).mT * loud[:, None]
    parts = [maps.flatten(0, 1).to(loud.dtype)]
    if below is not None:
        parts.insert(0, _doubled(below, width))
    joined = torch.cat(parts, dim=-1)
    return F.pad(joined, (0, filled - joined.shape[-1]))


def finish(
    x: Tensor,
    add: Tensor,
    stretch: Tensor,
    shift: Tensor,
    *,
    groups: int,
    width: int,
    after: Tensor | None = None,
    below: Tensor | None = None,
) -> Tensor:
    r"""Group normalisation, stretched and shifted, a SiLU, and what is added before and after.

    .. math:: \mathrm{silu}\big(a\, \mathrm{norm}(x + c) + b\big) + d + u

    Arguments:
        x: (case * sample, pixel, channel); its memory may be used for the result.
        add: :math:`c`, a bias (channel,) or a map (case, pixel, channel).
        stretch: :math:`a`, (channel,) or (case * sample, channel).
        shift: :math:`b`, the same shape.
        groups: Of channels.
        width: Columns of the image.
        after: :math:`d`, a map (case, pixel, channel), or None.
        below: :math:`u`, the coarser level (case * sample, pixel / 4, channel), or None; it is
            doubled.

    Example:
        >>> x, one, none = torch.tensor([[[1.0], [3.0]]]), torch.ones(1), torch.zeros(1)
        >>> finish(x, none, one, none, groups=1, width=2).flatten().tolist()
        [-0.26..., 0.73...]
    """
    if fused := _kernels(x):
        result: Tensor = fused.finish(x, add, stretch, shift, after, below, groups, width, EPS)
        return result
    wide = _beside(x.float(), add) if add.ndim == 3 else x.float() + add
    grouped = wide.view(len(x), x.shape[1], groups, -1)
    var, mean = torch.var_mean(grouped, dim=(1, 3), keepdim=True, correction=0)
    normed = ((grouped - mean) * torch.rsqrt(var + EPS)).view(x.shape)
    y = F.silu(normed * stretch.unsqueeze(-2) + shift.unsqueeze(-2))
    if after is not None:
        y = _beside(y, after)
    if below is not None:
        y = y + _doubled(below, width)
    return y.to(x.dtype)


def _beside(samples: Tensor, cases: Tensor) -> Tensor:
    return (apart(samples, len(cases)) + cases[:, None]).flatten(0, 1)


def _doubled(below: Tensor, width: int) -> Tensor:
    """Each pixel as a 2×2 block: (image, pixel / 4, channel) to (image, pixel, channel)."""
    image = below.view(len(below), -1, width // 2, below.shape[-1])
    return image.repeat_interleave(2, dim=1).repeat_interleave(2, dim=2).flatten(1, 2)


def _kernels(x: Tensor) -> Any:
    return kernels if x.is_cuda and compiled.is_available() else None
