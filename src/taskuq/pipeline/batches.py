"""Cases that run together: how many fit, and what happens when they do not."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from taskuq.errors import InputError, is_out_of_memory
from taskuq.pipeline.cases import Cases, image_mark
from taskuq.pipeline.chain import CaseOutputs, Chain
from taskuq.pipeline.device import batch_memory, release_memory
from taskuq.pipeline.log import RunLog
from taskuq.protocols import BatchRecover

# A network holds some 64 numbers for each pixel of an image it reads (ResNet-50 the most).
NUMBERS = 64
# On an H200 the sampler gains nothing beyond 16 cases at a time.
MOST = 16
# Images read ahead of those that are being recovered, at least.
AHEAD = 4

# The number of a case, and what running it gave: its numbers, or why there are none.
Ran = tuple[int, CaseOutputs | Exception]
# The number of a case, its image and the fingerprint of that.
_Item = tuple[int, Any, str]


def batch_size(
    recover: Any,
    image: Any,
    *,
    samples: int,
    cases: int,
    device: str | None = None,
    batch: int | None = None,
) -> int:
    """Return how many cases run at once; it depends on the run and the device, not on the moment.

    Arguments:
        recover: The recovery; without a method ``batch`` cases run one by one.
        image: One of the images.
        samples: Posterior samples per case and round.
        cases: All cases of the run, also those already finished.
        device: Where networks run.
        batch: What the user asks for; chosen by memory where None.

    Example:
        >>> class Flow:
        ...     def __call__(self, measurement, *, samples, seed): ...
        ...     def batch(self, measurements, *, samples, seeds): ...
        >>> batch_size(Flow(), np.ones((320, 320)), samples=32, cases=100)
        2
        >>> batch_size(Flow(), np.ones((128, 128)), samples=32, cases=100)
        15
    """
    if batch is not None and batch < 1:
        raise InputError(f"batch must be at least 1, got {batch}")
    if not isinstance(recover, BatchRecover):
        return 1
    if batch is None:
        shape = tuple(image.shape)
        # Networks on coil images hold a real and an imaginary channel for each coil.
        copies = max(samples, 2 * math.prod(shape[:-2]))
        need = 4 * NUMBERS * copies * math.prod(shape[-2:])
        batch = max(1, min(MOST, int(batch_memory(device) / need)))
    # Equal batches, so that few cases are run for nothing in the last one.
    return math.ceil(cases / math.ceil(cases / batch))


class Batches:
    """Runs cases together, and in smaller batches once memory has run out.

    Arguments:
        chain: Measurement, recovery and task.
        cases: All cases.
        log: Told when memory has run out.
        seen: Images that have been read already, by the number of their case.
    """

    def __init__(
        self,
        chain: Chain,
        cases: Cases,
        log: RunLog | None = None,
        seen: Mapping[int, Any] | None = None,
    ) -> None:
        self.chain, self.cases, self.log = chain, cases, log
        self.seen = dict(seen or {})

    def run(self, todo: Sequence[int]) -> Iterator[Ran]:
        """Yield the numbers of each case, or why there are none, batch by batch.

        Arguments:
            todo: The numbers of the cases to run.
        """
        together: list[_Item] = []
        for index, reading in self._read_ahead(todo):
            try:
                # Here, not in the thread that reads: GPU work cannot be recorded while another
                # thread sets aside memory on the same device.
                read, mark = reading.result()
                image = self.chain.place(read)
            except Exception as error:  # a file that cannot be read is the failure of its case
                yield index, error
                continue
            if together and np.shape(together[0][1]) != np.shape(image):
                yield from self._together(together)
                together = []
            together.append((index, image, mark))
            if len(together) >= self.chain.size:
                yield from self._together(together)
                together = []
        yield from self._together(together)

    def _read_ahead(self, todo: Sequence[int]) -> Iterator[tuple[int, Future[Any]]]:
        """Yield cases with their images, which a second thread reads while others are recovered."""
        ahead = max(AHEAD, 2 * self.chain.size)
        with ThreadPoolExecutor(max_workers=1) as reader:
            waiting: deque[tuple[int, Future[Any]]] = deque()
            for index in todo:
                waiting.append((index, reader.submit(self._image, index)))
                if len(waiting) > ahead:
                    yield waiting.popleft()
            while waiting:
                yield waiting.popleft()

    def _image(self, index: int) -> tuple[Any, str]:
        image = self.seen.pop(index) if index in self.seen else self.cases.image(index)
        return image, image_mark(image)

    def _together(self, items: list[_Item]) -> Iterator[Ran]:
        """Run images of one shape.

        A case that makes its batch fail is found by halving the batch; the others do not suffer.
        """
        waiting = [items] if items else []
        before = self.chain.size
        while waiting:
            part = waiting.pop()
            if len(part) > self.chain.size:
                waiting += [part[self.chain.size :], part[: self.chain.size]]
                continue
            error = None
            try:
                found = self.chain.scan(
                    [image for _, image, _ in part], [self.cases.case[i] for i, _, _ in part]
                )
            except Exception as reason:  # one bad case must not end a run of hours
                # Without its frames, which hold on to the memory that ran out.
                error = reason.with_traceback(None)
            if error is None:
                for (index, _, mark), numbers in zip(part, found, strict=True):
                    if isinstance(numbers, CaseOutputs):
                        yield index, replace(numbers, image=mark)
                    else:
                        yield index, numbers
            elif is_out_of_memory(error) and self.chain.size > 1:
                self.chain = replace(self.chain, size=self.chain.size // 2)
                release_memory()
                waiting.append(part)
            elif len(part) > 1:
                middle = len(part) // 2
                waiting += [part[middle:], part[:middle]]
            else:
                yield part[0][0], error
        if self.chain.size < before and self.log is not None:
            self.log.write("out of memory", batch=self.chain.size)
