"""Networks in half precision, compiled regions and CUDA graphs."""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache, partial, wraps
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils._triton import has_triton

from taskuq.recover._varnet import EPS, InstanceNorm, NormUnet, UNet, VarNet

logger = logging.getLogger(__name__)

# Tensor cores read channels by eights; others are copied to such a number in every convolution.
ALIGNED = 8
# Shapes for which one region may be compiled.
SHAPES = 64


def half_unet(unet: UNet, dtype: torch.dtype, *, aligned: int = ALIGNED) -> UNet:
    """Copy a U-Net to lower precision, with zero-padded channels; outputs agree up to rounding.

    To avoid overflow in float16, weights are divided by powers of 2; normalisation cancels these.
    """
    unet = deepcopy(unet).requires_grad_(False)
    joined = {block if i < unet.pools - 1 else block[0] for i, block in enumerate(unet.up_conv)}  # type: ignore[index]
    for block in unet.modules():
        layers = list(getattr(block, "layers", ()))
        for i, (conv, norm) in enumerate(pairwise(layers)):
            if not isinstance(norm, InstanceNorm):
                continue
            is_transposed = isinstance(conv, nn.ConvTranspose2d)
            # Concatenated channels are padded part by part.
            parts = conv.weight.chunk(2 if block in joined and i == 0 else 1, dim=1)
            weight = torch.cat([_pad_to_multiple(part, aligned) for part in parts], dim=1)
            largest = torch.linalg.vector_norm(weight, dim=(0 if is_transposed else 1, 2, 3)).max()
            scale = 2.0 ** math.ceil(math.log2(largest.item())) if largest > 0 else 1.0
            conv.weight = _weight(weight / scale, dtype)
            norm.eps = weight.new_tensor(EPS / scale**2)
    weight = unet.output.weight
    weight = nn.functional.pad(weight, (0, 0, 0, 0, 0, -weight.shape[1] % aligned))
    unet.output.weight = _weight(weight, weight.dtype)
    return unet


def _pad_to_multiple(weight: Tensor, multiple: int) -> Tensor:
    outputs, inputs = (-n % multiple for n in weight.shape[:2])
    return nn.functional.pad(weight, (0, 0, 0, 0, 0, inputs, 0, outputs))


def _weight(weight: Tensor, dtype: torch.dtype) -> nn.Parameter:
    lower = weight.detach().to(dtype, memory_format=torch.channels_last)
    return nn.Parameter(lower, requires_grad=False)


def half_convolutions(network: nn.Module, dtype: torch.dtype) -> None:
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.weight = _weight(module.weight, dtype)
            if module.bias is not None:
                module.bias = nn.Parameter(module.bias.to(dtype), requires_grad=False)


def half_varnet(net: VarNet, dtype: torch.dtype) -> VarNet:
    quick = deepcopy(net).requires_grad_(False).eval()
    for part in quick.modules() if dtype != torch.float32 else ():
        if isinstance(part, NormUnet):
            part.unet = half_unet(part.unet, dtype)
    return quick


def inference_varnet(
    net: VarNet, dtype: torch.dtype = torch.float16, *, compiled: bool = True
) -> VarNet:
    """Return a variational network for inference; on a GPU, compiled and in lower precision."""
    if next(net.parameters()).device.type != "cuda":
        return net
    quick = half_varnet(net, dtype)
    if compiled:
        compile_methods(quick, NormUnet.refine)
    return quick


@lru_cache
def compile_region(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function once for all modules and shapes, or leave it uncompiled on failure."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(cache) / "taskuq" / "compiled"))
    if not has_triton():
        logger.warning("Triton is missing; %s runs uncompiled", function.__qualname__)
        return function
    compiled: Callable[..., Any] | None = compile_on_first_call(function)

    @wraps(function)
    def region(*arguments: Any) -> Any:
        nonlocal compiled
        if compiled is None:
            return function(*arguments)
        try:
            with torch._dynamo.config.patch(recompile_limit=SHAPES):
                return compiled(*arguments)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            logger.warning("%s runs uncompiled: %.200s", function.__qualname__, error)
            compiled = None
            return function(*arguments)

    return region


def compile_methods(network: nn.Module, *methods: Callable[..., Any]) -> None:
    """Compile methods of a network's modules; modules of one class share the compiled code."""
    for method in methods:
        owner, _, name = method.__qualname__.rpartition(".")
        for module in network.modules():
            if type(module).__name__ == owner:
                setattr(module, name, partial(compile_region(method), module))


T = TypeVar("T")
Step = Callable[..., Tensor]


def capture_graphs(*steps: Callable[[], Any]) -> list[tuple[torch.cuda.CUDAGraph, Any]]:
    side, cudnn = torch.cuda.Stream(), torch.backends.cudnn  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    before, cudnn.benchmark = cudnn.benchmark, True
    try:
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
    finally:
        cudnn.benchmark = before
    return graphs


class CudaGraph(Generic[T]):
    """Function captured as one CUDA graph per input shape."""

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
