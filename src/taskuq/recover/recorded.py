"""Record GPU work once and replay it: saves the launches of many small kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Recorded:
    """A function of tensors that is recorded as a CUDA graph for the shapes it meets.

    On other devices the function runs as it is. The function must not read values back to the
    host, and its result must depend on its arguments alone.

    Arguments:
        function: Takes tensors, returns a tensor.

    Example:
        >>> import torch
        >>> Recorded(lambda x, y: x + y)(torch.ones(1), torch.ones(1))
        tensor([2.])
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function
        self._key: tuple[object, ...] = ()
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []
        self._output: Tensor | None = None

    @torch.no_grad()
    def __call__(self, *arguments: Tensor) -> Tensor:
        """Call the function, or replay it on these arguments."""
        if not arguments[0].is_cuda:
            return self.function(*arguments)
        key = tuple((a.shape, a.dtype, a.device) for a in arguments)
        if key != self._key:
            self._record(arguments)
            self._key = key
        assert self._graph is not None
        assert self._output is not None
        for buffer, argument in zip(self._inputs, arguments, strict=True):
            buffer.copy_(argument)
        self._graph.replay()
        return self._output.clone()

    def _record(self, arguments: tuple[Tensor, ...]) -> None:
        self._graph, self._output = None, None
        self._inputs = [a.clone() for a in arguments]
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            # Algorithms are chosen and plans made before anything is recorded.
            self.function(*self._inputs)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._output = self.function(*self._inputs)
