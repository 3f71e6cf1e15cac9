"""Compiled inference and training steps, CUDA graphs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from taskuq.measure._coils import rss
from taskuq.measure._fourier import ifft2c, sensitivity_window
from taskuq.recover import _triton as compiled
from taskuq.recover import _triton as unet_kernels
from taskuq.recover._varnet import (
    EPS,
    SLOPE,
    NormUnet,
    UNet,
    VarNet,
    VarNetBlock,
    check_kspace,
    pad_amount,
)

# Tensor cores read channels by eights; others are copied to such a number in every convolution.
ALIGNED = 8


def weight_of(weight: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A convolution's weight on another device, in another precision, channels last."""
    moved = weight.detach().to(device, dtype)
    return moved.contiguous(memory_format=torch.channels_last)


def convolution_of(
    module: nn.Module, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """A convolution's weight and bias, on another device and in another precision."""
    assert isinstance(module, nn.Conv2d)
    assert module.bias is not None
    return weight_of(module.weight, device, dtype), module.bias.detach().to(device, dtype)


def convolve(x: Tensor, weight: Tensor, height: int, width: int) -> Tensor:
    """Convolve rows of pixels without bias, keeping the size: (image, pixel, outputs).

    Arguments:
        x: (image, pixel, channel).
        weight: (outputs, inputs, kernel, kernel), kernel 1 or 3.
        height: Rows of the image.
        width: Columns of the image.

    Example:
        >>> convolve(torch.ones(1, 6, 2), torch.ones(3, 2, 3, 3), 2, 3)[0, :, 0].tolist()
        [8.0, 12.0, 8.0, 8.0, 12.0, 8.0]
    """
    if weight.shape[-1] == 1:
        return x @ weight[:, :, 0, 0].T
    image = _to_image(x, height, width)
    return to_rows(F.conv2d(image, weight, padding=weight.shape[-1] // 2))


def to_rows(image: Tensor) -> Tensor:
    """(image, channel, height, width) as (image, pixel, channel); no copy when channels last."""
    return image.permute(0, 2, 3, 1).contiguous().flatten(1, 2)


def _to_image(x: Tensor, height: int, width: int) -> Tensor:
    """(image, pixel, channel) as (image, channel, height, width), channels last; no copy."""
    return x.view(len(x), height, width, -1).permute(0, 3, 1, 2)


def _normalise_leaky(
    x: Tensor, slope: float, *, eps: float = EPS, out: Tensor | None = None, coarse: int = 0
) -> Tensor:
    """Instance normalisation and a leaky ReLU.

    Arguments:
        x: (image, pixel, channel); its memory may be used for the result.
        slope: The slope for negative values.
        eps: What is added to variances.
        out: Where the result goes, (image, pixel, channel); a part of the channels of something
            larger may be given.
        coarse: For pixels that come as 2×2 blocks, how many blocks a row of the image has; they
            are put in order. 0 where they are in order already.

    Example:
        >>> x = torch.tensor([[[1.0], [3.0]]])
        >>> [round(v, 4) for v in _normalise_leaky(x, slope=0.2).flatten().tolist()]
        [-0.2, 1.0]
    """
    if fused := _kernels(x):
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
    """Average 2×2 blocks of pixels; a last row or column that is alone is dropped.

    Arguments:
        x: (image, pixel, channel).
        height: Rows of the image.
        width: Columns of the image.

    Example:
        >>> _pool(torch.arange(8.0).view(1, 8, 1), 2, 4).flatten().tolist()
        [2.5, 4.5]
    """
    if fused := _kernels(x):
        result: Tensor = fused.pool(x, height, width)
        return result
    return to_rows(F.avg_pool2d(_to_image(x, height, width), 2))


class _NormConv(NamedTuple):
    """What comes before an instance normalisation, and the latter's smallest variance."""

    weight: Tensor
    eps: float

    @classmethod
    def of(cls, weight: Tensor, *inputs: int) -> _NormConv:
        """Divide by a power of 2, which the normalisation undoes, so that float16 cannot overflow.

        With filters of unit norm at most, no result exceeds the norm of the whole input, and the
        inputs are normalised.

        Arguments:
            weight: In float32 or float64.
            inputs: The axes over which a filter extends.
        """
        largest = torch.linalg.vector_norm(weight, dim=inputs).max().item()
        scale = 2.0 ** math.ceil(math.log2(largest)) if largest > 0 else 1.0
        return cls(weight / scale, EPS / scale**2)

    def to(self, device: torch.device, dtype: torch.dtype) -> _NormConv:
        """On another device, in another precision, channels last."""
        moved = self.weight.to(device, dtype)
        form = torch.channels_last if moved.ndim == 4 else torch.contiguous_format
        return _NormConv(moved.contiguous(memory_format=form), self.eps)


class FusedUNet(NamedTuple):
    """The weights of a U-Net: pairs of 3×3 convolutions, the upsamplings, the last convolution.

    Numbers of channels are filled up to what tensor cores like. What fills them is 0 and stays 0.
    """

    down: tuple[tuple[_NormConv, _NormConv], ...]
    bottom: tuple[_NormConv, _NormConv]
    up: tuple[_NormConv, ...]
    joined: tuple[tuple[_NormConv, _NormConv], ...]
    output: tuple[Tensor, Tensor]
    width: int

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the convolutions."""
        return self.bottom[0].weight.dtype

    def features(self, x: Tensor) -> Tensor:
        """The features of real channels (case, channel, height, width), channels last."""
        height, width = x.shape[-2:]
        found = _to_image(self.rows(to_rows(x), height, width), height, width)
        return found[:, : self.width]

    def rows(self, x: Tensor, height: int, width: int) -> Tensor:
        """The features of rows (case, pixel, channel), filled up: (case, pixel, width or more)."""
        if missing := self.down[0][0].weight.shape[1] - x.shape[-1]:
            x = F.pad(x, (0, missing))
        skips = []
        for pair in self.down:
            # Where features go on they lie beside those that come back, in one piece of memory.
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
        """The features of real channels, and what the U-Net says, in the precision of ``x``."""
        weight, bias = self.output
        told = x.to(self.dtype, memory_format=torch.channels_last)
        features = self.features(told)
        return features, F.conv2d(features.to(weight.dtype), weight[:, : self.width], bias)


def fuse_unet(
    unet: UNet, device: torch.device, dtype: torch.dtype, *, aligned: int | None = None
) -> FusedUNet:
    """Take the weights of a U-Net.

    Arguments:
        unet: The network; it is not changed.
        device: Where it shall run.
        dtype: The precision of its convolutions; the last one is in float32 (float64 where this
            is float64).
        aligned: Channels are filled up to a multiple of this; by default of 8 on a GPU.

    Example:
        >>> unet, x = UNet(2, 2, width=4, pools=2).eval(), torch.randn(1, 2, 16, 18)
        >>> folded = fuse_unet(unet, torch.device("cpu"), torch.float32)
        >>> torch.allclose(folded.features(x), unet.features(x), atol=1e-5)
        True
    """
    if aligned is None:
        aligned = ALIGNED if device.type == "cuda" else 1

    def pair(block: nn.Module, parts: int = 1) -> tuple[_NormConv, _NormConv]:
        first, second = (m for m in block.modules() if isinstance(m, nn.Conv2d) and m.bias is None)
        # What is joined is filled up part by part.
        chunks = first.weight.detach().chunk(parts, dim=1)
        filled = torch.cat([pad_to_multiple(chunk, aligned, 0, 1) for chunk in chunks], dim=1)
        return (
            _NormConv.of(filled, 1, 2, 3).to(device, dtype),
            _NormConv.of(pad_to_multiple(second.weight.detach(), aligned, 0, 1), 1, 2, 3).to(
                device, dtype
            ),
        )

    up = []
    for block in unet.up_transpose_conv:
        (transposed,) = (m for m in block.modules() if isinstance(m, nn.ConvTranspose2d))
        # (in, out, dy, dx) as one matrix (in, dy * dx * out): each pixel becomes a 2×2 block.
        filled = pad_to_multiple(transposed.weight.detach(), aligned, 0, 1)
        up.append(_NormConv.of(filled.permute(0, 2, 3, 1).flatten(1), 0).to(device, dtype))
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
    """Zeros after the end of some axes, up to a multiple."""
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


def _kernels(x: Tensor) -> Any:
    return unet_kernels if x.is_cuda and compiled.is_available() else None


class _FusedCascade(NamedTuple):
    """One refinement: its U-Net, and how far measured lines are drawn back to the measurement."""

    unet: FusedUNet
    step: float


@dataclass(frozen=True, eq=False)
class FusedVarNet:
    """A variational network that can only recover, on one device and in one precision.

    Convolutions run in the precision it was folded in; everything else stays in float32 (float64
    where that is float64).

    Example:
        >>> from taskuq.recover._varnet import VarNetConfig
        >>> net = VarNet(VarNetConfig(cascades=2, width=4, pools=2, sensitivity_pools=2)).eval()
        >>> kspace, lines = torch.randn(1, 4, 16, 16, dtype=torch.complex64), torch.tensor([6])
        >>> mask = sensitivity_window(lines, 16)
        >>> kspace = kspace * mask
        >>> quick = _fold_varnet(net, device="cpu", dtype=torch.float32)
        >>> torch.allclose(quick(kspace, mask, lines), net(kspace, mask, lines), atol=1e-4)
        True
    """

    sensitivity: FusedUNet
    cascades: tuple[_FusedCascade, ...]

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


def _fold_varnet(net: VarNet, *, device: torch.device | str, dtype: torch.dtype) -> FusedVarNet:
    """Rearrange a variational network to recover the same images.

    Arguments:
        net: The network; it is not changed.
        device: Where to recover.
        dtype: The precision of the convolutions: float32, or bfloat16 on a GPU.

    Example:
        >>> from taskuq.recover._varnet import VarNetConfig
        >>> small = VarNet(VarNetConfig(cascades=2, width=4))
        >>> len(_fold_varnet(small, device="cpu", dtype=torch.float32).cascades)
        2
    """
    device = torch.device(device)

    def unet(part: NormUnet) -> FusedUNet:
        return fuse_unet(part.unet, device, dtype)

    cascades = []
    for block in net.cascades:
        assert isinstance(block, VarNetBlock)
        cascades.append(_FusedCascade(unet(block.model), block.dc_weight.item()))
    return FusedVarNet(unet(net.sens_net.norm_unet), tuple(cascades))


def inference_varnet(net: VarNet, dtype: torch.dtype = torch.float16) -> VarNet | FusedVarNet:
    """Return the network as it is on a CPU, and folded on a GPU.

    Arguments:
        net: The network, on the device where it shall run.
        dtype: The precision of the convolutions on a GPU.

    Example:
        >>> from taskuq.recover._varnet import VarNetConfig
        >>> net = VarNet(VarNetConfig(cascades=1, width=4))
        >>> inference_varnet(net) is net
        True
    """
    device = next(net.parameters()).device
    return _fold_varnet(net, device=device, dtype=dtype) if device.type == "cuda" else net


def _refined(unet: FusedUNet, images: Tensor) -> Tensor:
    """What :class:`NormUnet` makes of complex images (image, height, width)."""
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


def capture_graphs(*steps: Callable[[], Any]) -> list[tuple[torch.cuda.CUDAGraph, Any]]:
    """Record steps as CUDA graphs that share memory; each replay writes its result in one place.

    Arguments:
        steps: Functions that read and write tensors which stay where they are.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        # Kernels are compiled, algorithms chosen and plans made before anything is recorded.
        for step in steps:
            step()
    torch.cuda.current_stream().wait_stream(side)
    recorded: list[tuple[torch.cuda.CUDAGraph, Any]] = []
    for step in steps:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=recorded[0][0].pool() if recorded else None):
            result = step()
        recorded.append((graph, result))
    return recorded


class CudaGraph(Generic[T]):
    """A function of tensors that is recorded as a CUDA graph for the shapes it meets.

    On other devices the function runs as it is. The function must not read values back to the
    host, and its result must depend on its arguments alone.

    Arguments:
        function: Takes tensors, returns a tensor or a named tuple of tensors.
        most: How many shapes are kept; the memory of the oldest is free for the next one.

    Example:
        >>> CudaGraph(lambda x, y: x + y)(torch.ones(1), torch.ones(1))
        tensor([2.])
    """

    def __init__(self, function: Callable[..., T], *, most: int = 1) -> None:
        self.function, self.most = function, most
        self._recorded: dict[object, tuple[list[Tensor], torch.cuda.CUDAGraph, Any]] = {}

    @torch.no_grad()
    def __call__(self, *arguments: Tensor) -> T:
        """Call the function, or replay it on these arguments."""
        if not arguments[0].is_cuda:
            return self.function(*arguments)
        key = tuple((a.shape, a.dtype, a.device) for a in arguments)
        if key not in self._recorded:
            while len(self._recorded) >= self.most:
                del self._recorded[next(iter(self._recorded))]
            inputs = [a.clone() for a in arguments]
            ((graph, output),) = capture_graphs(lambda: self.function(*inputs))
            self._recorded[key] = inputs, graph, output
        inputs, graph, output = self._recorded[key]
        for buffer, argument in zip(inputs, arguments, strict=True):
            buffer.copy_(argument)
        graph.replay()
        if isinstance(output, Tensor):
            return cast(T, output.clone())
        return cast(T, type(output)(*(part.clone() for part in output)))


class GraphedFunction:
    """A function of a network; on a GPU it is recorded once and replayed, backwards too.

    A small network's thousand kernels take longer to launch than to run. The first training batch
    on a GPU, and every other of as many cases but another shape (for instance other coils), is
    recorded as a CUDA graph, and batches of the same shape are replays. Anything else, a CPU,
    evaluation or a last batch that is smaller, is computed as ever. Recording leaves the
    network's buffers as they were. A replay writes gradients where the last one's lie: they must be
    set to None in between, as optimisers do, and cannot be accumulated.

    Arguments:
        network: The network; it decides between training and evaluation.
        compute: What is computed with it. It must not wait for the GPU, nor draw random numbers.

    Example:
        >>> line = nn.Linear(1, 1)
        >>> GraphedFunction(line, lambda x: line(x).square())(torch.zeros(3, 1)).shape  # as it is
        torch.Size([3, 1])
    """

    def __init__(self, network: nn.Module, compute: Callable[..., Tensor]) -> None:
        self.network, self.compute = network, compute
        self._recorded: dict[tuple[torch.Size, ...], Any] = {}
        self._cases = 0

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Return what is computed from the inputs."""
        if not inputs[0].is_cuda or not self.network.training or not torch.is_grad_enabled():
            return self.compute(*inputs)
        self._cases = self._cases or len(inputs[0])
        if len(inputs[0]) != self._cases:
            return self.compute(*inputs)
        shapes = tuple(x.shape for x in inputs)
        if shapes not in self._recorded:
            self._recorded[shapes] = self._record(inputs)
        replayed: Tensor = self._recorded[shapes](*inputs)
        return replayed

    def _record(self, inputs: tuple[Tensor, ...]) -> Any:
        kept = [buffer.clone() for buffer in self.network.buffers()]
        examples = tuple(x.clone() for x in inputs)
        precision = torch.get_autocast_dtype("cuda")
        is_mixed = torch.is_autocast_enabled("cuda")
        # Weights in lower precision that are kept for later in a step would be kept for all steps.
        apart = torch.autocast("cuda", precision, enabled=is_mixed, cache_enabled=False)
        with warnings.catch_warnings(), apart:
            # torch warms up on a stream of its own and keeps the last graph alive while it records
            # on another; the two are joined in the recording.
            warnings.filterwarnings("ignore", "The AccumulateGrad node's stream", UserWarning)
            recorded = torch.cuda.make_graphed_callables(
                _FunctionModule(self.network, self.compute), examples, allow_unused_input=True
            )
        with torch.no_grad():
            for buffer, before in zip(self.network.buffers(), kept, strict=True):
                buffer.copy_(before)
        return recorded


class _FunctionModule(nn.Module):
    """The function as a module, so that torch finds the network's weights."""

    def __init__(self, network: nn.Module, compute: Callable[..., Tensor]) -> None:
        super().__init__()
        self.network, self.compute = network, compute

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.compute(*inputs)


class CompiledStep:
    """A function that is compiled for training batches of the size it first meets.

    Anything else, validation, the start of a flow or a last batch that is smaller, is computed as
    ever: each would be compiled again, which takes longer than it could save.

    Arguments:
        plain: The function.
        compiled: The same, compiled.

    Example:
        >>> twice = CompiledStep(lambda x: 2 * x, lambda x: x + x)
        >>> with torch.no_grad():
        ...     twice(torch.ones(1))  # as it is
        tensor([2.])
    """

    def __init__(self, plain: Callable[..., Any], compiled: Callable[..., Any]) -> None:
        self.plain, self.compiled = plain, compiled
        self._shapes: list[torch.Size] | None = None

    def __call__(self, *given: Any) -> Any:
        """Return what the function makes of its arguments."""
        if not torch.is_grad_enabled():
            return self.plain(*given)
        shapes = [x.shape for x in given if isinstance(x, Tensor)]
        if self._shapes is None:
            self._shapes = shapes
        return (self.compiled if shapes == self._shapes else self.plain)(*given)


def compile_on_first_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function for the shapes it is called with, at the first call.

    Arguments:
        function: The function.
    """
    with warnings.catch_warnings():
        # torch's compiler imports a part of torch that is deprecated.
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
        return torch.compile(function, dynamic=False)


def accelerate(
    network: nn.Module,
    compute: Callable[..., Tensor],
    *,
    is_replayed: bool = False,
    is_compiled: bool = False,
) -> Callable[..., Tensor]:
    """Return what computes the same in training, in less time.

    Arguments:
        network: The network, whose weights are trained.
        compute: What is computed with it, of tensors. It must neither wait for the GPU nor draw
            random numbers.
        is_replayed: Whether to record it on a GPU and replay it.
        is_compiled: Whether to compile it.

    Example:
        >>> line = nn.Linear(1, 1)
        >>> accelerate(line, line) is line
        True
    """
    if is_compiled:
        compute = CompiledStep(compute, compile_on_first_call(compute))
    return GraphedFunction(network, compute) if is_replayed else compute
