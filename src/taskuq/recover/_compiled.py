"""Fused networks for inference, CUDA graphs and compiled training steps."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from taskuq.measure._coils import rss
from taskuq.measure._fourier import ifft2c, sensitivity_window
from taskuq.recover._triton import kernels_for
from taskuq.recover._varnet import EPS, SLOPE, UNet, VarNet, VarNetBlock, check_kspace, pad_amount

# Tensor cores read channels by eights; others are copied to such a number in every convolution.
ALIGNED = 8


def weight_of(weight: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    return weight.detach().to(device, dtype).contiguous(memory_format=torch.channels_last)


def convolution_of(
    module: nn.Module, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    assert isinstance(module, nn.Conv2d)
    assert module.bias is not None
    return weight_of(module.weight, device, dtype), module.bias.detach().to(device, dtype)


def convolve(x: Tensor, weight: Tensor, height: int, width: int) -> Tensor:
    """Convolve rows of pixels without bias, keeping the size; return (image, pixel, outputs)."""
    if weight.shape[-1] == 1:
        return x @ weight[:, :, 0, 0].T
    image = _to_image(x, height, width)
    return to_rows(F.conv2d(image, weight, padding=weight.shape[-1] // 2))


def to_rows(image: Tensor) -> Tensor:
    """Reshape (image, channel, height, width) to rows (image, pixel, channel)."""
    return image.permute(0, 2, 3, 1).contiguous().flatten(1, 2)


def _to_image(x: Tensor, height: int, width: int) -> Tensor:
    return x.view(len(x), height, width, -1).permute(0, 3, 1, 2)


def _normalise_leaky(
    x: Tensor, slope: float, *, eps: float = EPS, out: Tensor | None = None, coarse: int = 0
) -> Tensor:
    if fused := kernels_for(x):
        if out is None:
            out = torch.empty_like(x) if coarse else x
        result: Tensor = fused.normalise_leaky(x, slope, eps, out, coarse)
        return result
    wide = x if x.dtype == torch.float64 else x.float()
    var, mean = torch.var_mean(wide, dim=1, keepdim=True, correction=0)
    y = F.leaky_relu((wide - mean) * torch.rsqrt(var + eps), slope).to(x.dtype)
    if coarse:
        y = y.view(len(y), -1, coarse, 2, 2, y.shape[-1]).transpose(2, 3).flatten(1, 4)
    return y if out is None else out.copy_(y)


def _pool(x: Tensor, height: int, width: int) -> Tensor:
    """Average 2×2 blocks of pixels; an odd last row or column is dropped."""
    if fused := kernels_for(x):
        result: Tensor = fused.pool(x, height, width)
        return result
    return to_rows(F.avg_pool2d(_to_image(x, height, width), 2))


class _NormConv(NamedTuple):
    """Convolution followed by instance normalisation."""

    weight: Tensor
    eps: float

    @classmethod
    def of(
        cls, weight: Tensor, inputs: tuple[int, ...], *, device: torch.device, dtype: torch.dtype
    ) -> _NormConv:
        """Divide weights by a power of 2, cancelled by the normalisation, to avoid overflow."""
        largest = torch.linalg.vector_norm(weight, dim=inputs).max().item()
        scale = 2.0 ** math.ceil(math.log2(largest)) if largest > 0 else 1.0
        form = torch.channels_last if weight.ndim == 4 else torch.contiguous_format
        moved = (weight / scale).to(device, dtype).contiguous(memory_format=form)
        return cls(moved, EPS / scale**2)


class FusedUNet(NamedTuple):
    """U-Net weights arranged for inference."""

    down: tuple[tuple[_NormConv, _NormConv], ...]
    bottom: tuple[_NormConv, _NormConv]
    up: tuple[_NormConv, ...]
    joined: tuple[tuple[_NormConv, _NormConv], ...]
    output: tuple[Tensor, Tensor]
    width: int

    @property
    def dtype(self) -> torch.dtype:
        return self.bottom[0].weight.dtype

    def features(self, x: Tensor) -> Tensor:
        """Return the features of channels (case, channel, height, width), with channels last."""
        height, width = x.shape[-2:]
        return _to_image(self.rows(to_rows(x), height, width), height, width)[:, : self.width]

    def rows(self, x: Tensor, height: int, width: int) -> Tensor:
        """Return features of rows (case, pixel, channel), with padded channels."""
        if missing := self.down[0][0].weight.shape[1] - x.shape[-1]:
            x = F.pad(x, (0, missing))
        skips = []
        for pair in self.down:
            # Skipped and upsampled features share one piece of memory.
            outputs = len(pair[1].weight)
            both = x.new_empty((len(x), x.shape[1], 2 * outputs))
            skip = _block(x, pair, height, width, out=both[..., outputs:])
            skips.append((both, height, width))
            x, height, width = _pool(skip, height, width), height // 2, width // 2
        x = _block(x, self.bottom, height, width)
        for upsample, pair in zip(self.up, self.joined, strict=True):
            both, *size = skips.pop()
            _upsample(x, upsample, height, width, size, out=both[..., : both.shape[-1] // 2])
            height, width = size
            x = _block(both, pair, height, width)
        return x

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of real channels and the output, in the precision of ``x``."""
        weight, bias = self.output
        features = self.features(x.to(self.dtype, memory_format=torch.channels_last))
        return features, F.conv2d(features.to(weight.dtype), weight[:, : self.width], bias)


def fuse_unet(
    unet: UNet, device: torch.device, dtype: torch.dtype, *, aligned: int | None = None
) -> FusedUNet:
    if aligned is None:
        aligned = ALIGNED if device.type == "cuda" else 1
    fold = partial(_NormConv.of, device=device, dtype=dtype)

    def pair(block: nn.Module, parts: int = 1) -> tuple[_NormConv, _NormConv]:
        first, second = (m for m in block.modules() if isinstance(m, nn.Conv2d) and m.bias is None)
        # Concatenated channels are padded part by part.
        chunks = first.weight.detach().chunk(parts, dim=1)
        padded = torch.cat([pad_to_multiple(chunk, aligned, 0, 1) for chunk in chunks], dim=1)
        other = pad_to_multiple(second.weight.detach(), aligned, 0, 1)
        return fold(padded, (1, 2, 3)), fold(other, (1, 2, 3))

    up = []
    for block in unet.up_transpose_conv:
        (transposed,) = (m for m in block.modules() if isinstance(m, nn.ConvTranspose2d))
        # (in, out, dy, dx) as one matrix (in, dy * dx * out): each pixel becomes a 2×2 block.
        padded = pad_to_multiple(transposed.weight.detach(), aligned, 0, 1)
        up.append(fold(padded.permute(0, 2, 3, 1).flatten(1), (0,)))
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    weight, bias = convolution_of(unet.output, device, exact)
    return FusedUNet(
        down=tuple(pair(block) for block in unet.down_sample_layers),
        bottom=pair(unet.conv),
        up=tuple(up),
        joined=tuple(pair(block, parts=2) for block in unet.up_conv),
        output=(pad_to_multiple(weight, aligned, 1), bias),
        width=weight.shape[1],
    )


def pad_to_multiple(weight: Tensor, multiple: int, *axes: int) -> Tensor:
    for axis in axes:
        shape = list(weight.shape)
        shape[axis] = -shape[axis] % multiple
        weight = torch.cat([weight, weight.new_zeros(shape)], dim=axis)
    return weight


def _block(
    x: Tensor, pair: tuple[_NormConv, _NormConv], height: int, width: int, out: Tensor | None = None
) -> Tensor:
    first, second = pair
    x = _normalise_leaky(convolve(x, first.weight, height, width), SLOPE, eps=first.eps)
    raw = convolve(x, second.weight, height, width)
    return _normalise_leaky(raw, SLOPE, eps=second.eps, out=out)


def _upsample(
    x: Tensor, by: _NormConv, height: int, width: int, size: list[int], out: Tensor
) -> None:
    blocks = (x @ by.weight).view(len(x), 4 * x.shape[1], -1)
    if size == [2 * height, 2 * width]:
        _normalise_leaky(blocks, SLOPE, eps=by.eps, out=out, coarse=width)
        return
    # Pooling drops the last row or column of an odd size; reflection gives it back.
    doubled = _normalise_leaky(blocks, SLOPE, eps=by.eps, coarse=width)
    image = _to_image(doubled, 2 * height, 2 * width)
    missing = (0, size[1] - 2 * width, 0, size[0] - 2 * height)
    out.copy_(to_rows(F.pad(image, missing, mode="reflect")))


@dataclass(frozen=True, eq=False)
class FusedVarNet:
    sensitivity: FusedUNet
    cascades: tuple[tuple[FusedUNet, float], ...]  # with data-consistency weights

    def __call__(self, kspace: Tensor, mask: Tensor, low_frequencies: Tensor) -> Tensor:
        return rss(self.maps_and_images(kspace, mask, low_frequencies)[1])

    def maps_and_images(
        self, kspace: Tensor, mask: Tensor, low_frequencies: Tensor
    ) -> tuple[Tensor, Tensor]:
        check_kspace(kspace, mask, low_frequencies)
        zero_padded = ifft2c(kspace)
        measured = torch.fft.fft(zero_padded)
        lines = torch.fft.ifftshift(mask, dim=-1)[:, None, None].to(measured.real.dtype)
        window = torch.fft.ifftshift(sensitivity_window(low_frequencies, mask.shape[-1]), dim=-1)
        images = torch.fft.ifft(measured * window[:, None, None])
        maps = _refined(self.sensitivity, images.flatten(0, 1)).view(images.shape)
        maps = maps / rss(maps)[:, None].clamp_min(torch.finfo(maps.real.dtype).tiny)
        # The inverse transform's own factor is part of the sensitivities.
        combining = maps.conj().resolve_conj() / kspace.shape[-1]
        refined, target = measured, measured * lines
        for unet, step in self.cascades:
            combined = (torch.fft.ifft(refined, norm="forward") * combining).sum(1)
            correction = torch.fft.fft(_refined(unet, combined)[:, None] * maps)
            refined = refined * (1 - step * lines)
            refined = refined.add_(target, alpha=step).sub_(correction)
        whole = mask.all(-1).view(-1, 1, 1, 1)
        return maps, torch.where(whole, zero_padded, torch.fft.ifft(refined))


def fuse_varnet(net: VarNet, *, device: torch.device | str, dtype: torch.dtype) -> FusedVarNet:
    device = torch.device(device)
    blocks = cast(Iterable[VarNetBlock], net.cascades)
    cascades = [(fuse_unet(b.model.unet, device, dtype), b.dc_weight.item()) for b in blocks]
    return FusedVarNet(fuse_unet(net.sens_net.norm_unet.unet, device, dtype), tuple(cascades))


def inference_varnet(net: VarNet, dtype: torch.dtype = torch.float16) -> VarNet | FusedVarNet:
    device = next(net.parameters()).device
    return fuse_varnet(net, device=device, dtype=dtype) if device.type == "cuda" else net


def _refined(unet: FusedUNet, images: Tensor) -> Tensor:
    x = torch.view_as_real(images.contiguous())
    height, width = x.shape[1:3]
    std, mean = torch.std_mean(x, dim=(1, 2), keepdim=True)
    std = std.clamp_min(torch.finfo(std.dtype).tiny)
    x = ((x - mean) / std).to(unet.dtype)
    rows, columns = (pad_amount(size, len(unet.down)) for size in (height, width))
    top, left = rows // 2, columns // 2
    if rows or columns:
        x = F.pad(x, (0, 0, left, columns - left, top, rows - top))
    features = unet.rows(x.flatten(1, 2), height + rows, width + columns)
    weight, bias = unet.output
    y = torch.addmm(bias, features.flatten(0, 1).to(weight.dtype), weight[:, :, 0, 0].T)
    y = y.view(len(x), height + rows, width + columns, 2)
    y = y[:, top : top + height, left : left + width]
    return torch.view_as_complex((y * std + mean).contiguous())


T = TypeVar("T")
Step = Callable[..., Tensor]


def capture_graphs(*steps: Callable[[], Any]) -> list[tuple[torch.cuda.CUDAGraph, Any]]:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        # Kernels are compiled, algorithms chosen and plans made before anything is captured.
        for step in steps:
            step()
    torch.cuda.current_stream().wait_stream(side)
    graphs: list[tuple[torch.cuda.CUDAGraph, Any]] = []
    for step in steps:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=graphs[0][0].pool() if graphs else None):
            result = step()
        graphs.append((graph, result))
    return graphs


class CudaGraph(Generic[T]):
    """Function captured as a CUDA graph per input shape."""

    def __init__(self, function: Callable[..., T], *, most: int = 1) -> None:
        self.function, self.most = function, most
        self._graphs: dict[object, tuple[list[Tensor], torch.cuda.CUDAGraph, Any]] = {}

    @torch.no_grad()
    def __call__(self, *arguments: Tensor) -> T:
        if not arguments[0].is_cuda:
            return self.function(*arguments)
        key = tuple((a.shape, a.dtype, a.device) for a in arguments)
        if key not in self._graphs:
            while len(self._graphs) >= self.most:
                del self._graphs[next(iter(self._graphs))]
            inputs = [a.clone() for a in arguments]
            ((graph, output),) = capture_graphs(lambda: self.function(*inputs))
            self._graphs[key] = inputs, graph, output
        inputs, graph, output = self._graphs[key]
        for buffer, argument in zip(inputs, arguments, strict=True):
            buffer.copy_(argument)
        graph.replay()
        if isinstance(output, Tensor):
            return cast(T, output.clone())
        return cast(T, type(output)(*(part.clone() for part in output)))


class GraphedFunction:
    def __init__(self, network: nn.Module, compute: Callable[..., Tensor]) -> None:
        self.network, self.compute = network, compute
        self._graphs: dict[tuple[torch.Size, ...], Any] = {}
        self._cases = 0

    def __call__(self, *inputs: Tensor) -> Tensor:
        captured = inputs[0].is_cuda and self.network.training and torch.is_grad_enabled()
        if captured:
            self._cases = self._cases or len(inputs[0])
        if not captured or len(inputs[0]) != self._cases:
            return self.compute(*inputs)
        shapes = tuple(x.shape for x in inputs)
        if shapes not in self._graphs:
            self._graphs[shapes] = self._capture(inputs)
        output: Tensor = self._graphs[shapes](*inputs)
        return output

    def _capture(self, inputs: tuple[Tensor, ...]) -> Any:
        buffers = [buffer.clone() for buffer in self.network.buffers()]
        examples = tuple(x.clone() for x in inputs)
        precision, mixed = torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")
        # Weights in lower precision, cached for one step, would be cached for all steps.
        autocast = torch.autocast("cuda", precision, enabled=mixed, cache_enabled=False)
        with warnings.catch_warnings(), autocast:
            # torch warms up on another stream than it captures on; the capture joins the two.
            warnings.filterwarnings("ignore", "The AccumulateGrad node's stream", UserWarning)
            graphed = torch.cuda.make_graphed_callables(
                _FunctionModule(self.network, self.compute), examples, allow_unused_input=True
            )
        with torch.no_grad():
            for buffer, before in zip(self.network.buffers(), buffers, strict=True):
                buffer.copy_(before)
        return graphed


class _FunctionModule(nn.Module):
    def __init__(self, network: nn.Module, compute: Callable[..., Tensor]) -> None:
        super().__init__()
        self.network, self.compute = network, compute

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.compute(*inputs)


class CompiledStep:
    """Training function compiled for one batch size."""

    def __init__(self, plain: Callable[..., Any], compiled: Callable[..., Any]) -> None:
        self.plain, self.compiled = plain, compiled
        self._shapes: list[torch.Size] | None = None

    def __call__(self, *arguments: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.plain(*arguments)
        shapes = [x.shape for x in arguments if isinstance(x, Tensor)]
        self._shapes = self._shapes or shapes
        return (self.compiled if shapes == self._shapes else self.plain)(*arguments)


def compile_on_first_call(function: Callable[..., Any]) -> Callable[..., Any]:
    with warnings.catch_warnings():
        # torch's compiler imports a part of torch that is deprecated.
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
        return torch.compile(function, dynamic=False)


def accelerate(
    network: nn.Module, compute: Step, *, cuda_graphs: bool = False, compiled: bool = False
) -> Step:
    if compiled:
        compute = CompiledStep(compute, compile_on_first_call(compute))
    return GraphedFunction(network, compute) if cuda_graphs else compute
