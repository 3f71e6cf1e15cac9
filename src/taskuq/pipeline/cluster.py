"""The Ray engine: workers on a cluster load the networks once and write shards themselves."""

from __future__ import annotations

import math
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskuq.errors import InputError, MachineError, first_line
from taskuq.pipeline.device import pick_device
from taskuq.pipeline.engines import Flags, Work
from taskuq.pipeline.progress import Progress

# Seconds without a finished chunk after which the cluster is asked what it is waiting for.
PATIENCE = 600.0
TRIES = 3
# Seconds in which somebody must answer at an address.
REACH = 5.0


@dataclass(frozen=True)
class RayOptions:
    """How a Ray cluster is used.

    Arguments:
        address: Of a running cluster; a local one is started where None.
        workers: So many workers; as many as fit where None.
        cpus: CPUs of each worker.
        gpus: GPUs of each worker; a fraction shares one.
        chunk: Cases handed to a worker at a time.
        patience: Seconds without progress before the run gives up.
    """

    address: str | None = None
    workers: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    chunk: int = 8
    patience: float = PATIENCE

    @classmethod
    def from_flags(cls, flags: Flags) -> RayOptions:
        """Take an address and a number of workers; a worker on a GPU asks for a whole one."""
        flags.refuse_slurm()
        gpus = 1.0 if pick_device(flags.device).startswith("cuda") else 0.0
        return cls(address=flags.address, workers=flags.workers, gpus=gpus)

    def ready(self, scratch: Path) -> AbstractContextManager[None]:
        """Join a cluster, or start one; refuse one that cannot be reached or is too small."""
        return _cluster(self)

    def run(self, work: Work, todo: list[int], progress: Progress) -> None:
        """Run cases on the cluster that was joined.

        A worker that dies is replaced and its chunk is done again; nodes may join and leave.
        Requests never exceed what the cluster has, and a cluster that makes no progress ends in an
        error rather than in silence.
        """
        _Driver(_ray(), work, progress, self).run(todo)


@contextmanager
def _cluster(options: RayOptions) -> Iterator[None]:
    ray = _ray()
    started_here = not ray.is_initialized()
    if started_here:
        _require_reachable(options.address)
        try:
            ray.init(address=options.address, log_to_driver=False, include_dashboard=False)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            raise InputError(
                f"no Ray cluster answers at {options.address or 'this machine'} "
                f"({first_line(error):.120}); check the address, or leave it out to start one here"
            ) from None
    try:
        _Room(ray, options).require()
        yield
    finally:
        if started_here:
            ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError:
        raise InputError("the ray engine needs Ray; run pip install 'taskuq[ray]'") from None
    return ray


def _require_reachable(address: str | None) -> None:
    """Refuse an address at which nobody listens; Ray itself would try for a minute."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"no Ray cluster answers at {address} ({error}); check the address, or leave it out "
            "to start one here"
        ) from None


@dataclass(frozen=True)
class _Room:
    """How many workers a cluster has room for."""

    ray: Any
    options: RayOptions

    def require(self) -> int:
        """Return how many workers to start; refuse to ask for more than there is."""
        room, wanted = self._fits(self.ray.cluster_resources()), self.options.workers
        each = f"{self.options.cpus:g} CPUs and {self.options.gpus:g} GPUs"
        if room < 1:
            raise InputError(
                f"a worker needs {each}, but the cluster has {self}; ask for less or add nodes"
            )
        if wanted is not None and not 1 <= wanted <= room:
            raise InputError(
                f"{wanted} workers of {each} were asked for, but the cluster has {self}; ask for "
                f"1 to {room} workers or add nodes"
            )
        return wanted or room

    def spare(self, busy: int) -> int:
        """Return how many more workers could start now."""
        wanted = (self.options.workers or math.inf) - busy
        return int(min(wanted, self._fits(self.ray.available_resources())))

    def _fits(self, resources: dict[str, float]) -> int:
        room = resources.get("CPU", 0.0) / max(self.options.cpus, 1e-9)
        if self.options.gpus > 0:
            room = min(room, resources.get("GPU", 0.0) / self.options.gpus)
        return int(room + 1e-9)

    def __str__(self) -> str:
        found = self.ray.cluster_resources()
        return f"{found.get('CPU', 0):g} CPUs and {found.get('GPU', 0):g} GPUs"


class _Worker:
    """What runs on the cluster; Ray turns it into an actor."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def do(self, todo: list[int]) -> int:
        return self.work.do(todo)


class _Driver:
    """Hands chunks to workers and replaces those that die."""

    def __init__(self, ray: Any, work: Work, progress: Progress, options: RayOptions) -> None:
        self.ray, self.work, self.progress, self.options = ray, work, progress, options
        self.room = _Room(ray, options)
        self.shared = ray.put(work)
        self.kind = ray.remote(num_cpus=options.cpus, num_gpus=options.gpus)(_Worker)
        self.busy: dict[Any, tuple[Any, list[int]]] = {}
        self.tries: dict[int, int] = {}

    def run(self, todo: list[int]) -> None:
        # Whole batches, so that none is filled up for nothing.
        batch = self.work.size
        size = math.ceil(self.options.chunk / batch) * batch
        waiting = deque(todo[start : start + size] for start in range(0, len(todo), size))
        if not waiting:
            return
        for _ in range(min(self.room.require(), len(waiting))):
            self._hand(self.kind.remote(self.shared), waiting)
        looked = moved = time.monotonic()
        while self.busy:
            done, _ = self.ray.wait(list(self.busy), num_returns=1, timeout=5.0)
            now = time.monotonic()
            for reference in done:
                moved = now
                self._finish(reference, waiting)
            if now - looked > 10.0 and waiting:
                # Nodes may have joined since.
                looked = now
                for _ in range(min(self.room.spare(len(self.busy)), len(waiting))):
                    self._hand(self.kind.remote(self.shared), waiting)
            if now - moved > self.options.patience:
                raise InputError(
                    f"no chunk was finished for {self.options.patience:.0f} s on a cluster with "
                    f"{self.room}; check its nodes and start the same command again"
                )

    def _hand(self, worker: Any, waiting: deque[list[int]]) -> None:
        if waiting:
            chunk = waiting.popleft()
            self.busy[worker.do.remote(chunk)] = (worker, chunk)
        else:
            self.ray.kill(worker)

    def _finish(self, reference: Any, waiting: deque[list[int]]) -> None:
        worker, chunk = self.busy.pop(reference)
        try:
            count = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            # The worker lives and said why: a full disk, a set-up in which nothing works.
            kind = MachineError if isinstance(error.cause, MachineError) else InputError
            raise kind(" ".join(str(error.cause).split())[:400]) from None
        except self.ray.exceptions.RayError as error:
            self._lost(chunk, error, waiting)
            return
        for _ in range(count):
            self.progress.step()
        self._hand(worker, waiting)

    def _lost(self, chunk: list[int], error: Exception, waiting: deque[list[int]]) -> None:
        """Do a chunk again whose worker died; give its cases up after a few deaths."""
        tries = self.tries[chunk[0]] = self.tries.get(chunk[0], 0) + 1
        if tries < TRIES:
            waiting.appendleft(chunk)
        else:
            for index in chunk:
                self.work.give_up(index, error)
                self.progress.step(failed=True)
        if waiting and (self.room.spare(len(self.busy)) > 0 or not self.busy):
            self._hand(self.kind.remote(self.shared), waiting)
