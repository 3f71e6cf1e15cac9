"""Record GPU work once and replay it: saves the launches of many small kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

T = TypeVar("T")


def record(*steps: Callable[[], Any]) -> list[tuple[torch.cuda.CUDAGraph, Any]]:
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


class Recorded(Generic[T]):
    """A function of tensors that is recorded as a CUDA graph for the shapes it meets.

    On other devices the function runs as it is. The function must not read values back to the
    host, and its result must depend on its arguments alone.

    Arguments:
        function: Takes tensors, returns a tensor or a named tuple of tensors.
        most: How many shapes are kept; the memory of the oldest is free for the next one.

    Example:
        >>> Recorded(lambda x, y: x + y)(torch.ones(1), torch.ones(1))
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
            ((graph, output),) = record(lambda: self.function(*inputs))
            self._recorded[key] = inputs, graph, output
        inputs, graph, output = self._recorded[key]
        for buffer, argument in zip(inputs, arguments, strict=True):
            buffer.copy_(argument)
        graph.replay()
        if isinstance(output, Tensor):
            return cast(T, output.clone())
        return cast(T, type(output)(*(part.clone() for part in output)))


class Replayed:
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
        >>> Replayed(line, lambda x: line(x).square())(torch.zeros(3, 1)).shape  # as it is
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
                _Computed(self.network, self.compute), examples, allow_unused_input=True
            )
        with torch.no_grad():
            for buffer, before in zip(self.network.buffers(), kept, strict=True):
                buffer.copy_(before)
        return recorded


class _Computed(nn.Module):
    """The function as a module, so that torch finds the network's weights."""

    def __init__(self, network: nn.Module, compute: Callable[..., Tensor]) -> None:
        super().__init__()
        self.network, self.compute = network, compute

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.compute(*inputs)
