"""Scanner service on this machine: latency and memory.

    python -m benchmarks scanner                               # latency and memory
    python -m benchmarks.scanner latency                       # or one of them
    OMP_NUM_THREADS=2 python -m benchmarks.scanner published   # on a GPU

latency replays synthetic patients over loopback to a service with the bundled networks, until it
has decided on 100 rounds of 32 samples. memory replays 1000 small slices. published replays slices
of 8 coils and 320 x 320 from a separate process to a service on a GPU, whose networks have the
published size and random weights.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import taskuq as tq
from taskuq.measure import MaskConfig, fft2c, nested_masks
from taskuq.measure._mri import added_columns
from taskuq.service._mrd import ScanHeader
from taskuq.service._replay import _StoredScan, replay_scan, simulate_atlas_scans
from taskuq.service._server import LOOPBACK, Service, freeze_gc
from taskuq.service._session import ServiceModel
from taskuq.table import SyntheticTable, TaskOutputs, synthetic_outputs

RATES, SIZE, FIRST, SEED = (16.0, 8.0, 4.0, 2.0), 128, 3000, 1
ROUNDS, SLICES = 100, 1000
# Seconds from one line to the next: gradient echoes are not much faster.
EVERY = 0.002


@dataclass
class Timed:
    """Wrapper of a recovery method or task that records the time of each call."""

    part: Callable[..., Any]
    seconds: list[float] = field(default_factory=list)

    def __call__(self, *given: Any, **options: Any) -> Any:
        """Call the component and record the time."""
        begun = time.perf_counter()
        found = self.part(*given, **options)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - begun)
        return found


@contextmanager
def serving(model: ServiceModel) -> Iterator[Service]:
    """Run a service over loopback on a free port."""
    service = Service(model, port=0)
    freeze_gc()
    service.start()
    try:
        yield service
    finally:
        service.stop()
        gc.unfreeze()


def networks() -> tuple[Any, Any]:
    """Return the bundled recovery method and task."""
    from taskuq.experiments._demo import _bundled_networks

    found = _bundled_networks()
    return found.sampler, found.task


def row(name: str, seconds: list[float]) -> None:
    """Print the median and the maximum of the times, in milliseconds."""
    print(f"{name:<44}{1e3 * np.median(seconds):>10.1f}{1e3 * max(seconds):>10.1f}", flush=True)


def latency(rounds: int = ROUNDS) -> None:
    """Print the latency from the last line of a round to the decision, by component."""
    recover, task = map(Timed, networks())
    found: list[float] = []
    masks = MaskConfig(accelerations=RATES).masks(SIZE)
    table = TaskOutputs.load("atlas-sampler")
    policy = tq.plan(table, alpha=0.1, max_width=0.2)
    with tempfile.TemporaryDirectory() as folder:
        model = ServiceModel(policy, recover, task, added_columns(masks), Path(folder))
        with serving(model) as service:
            for scan in simulate_atlas_scans(rounds, SEED, FIRST, 8):
                found += replay_scan(scan, LOOPBACK, service.port, tr=EVERY).latencies
                if len(found) >= rounds:
                    break
    print(f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, 8 coils, {SIZE} x {SIZE}, "
          "p = 32, over loopback")  # fmt: skip
    print(f"{f'{rounds} rounds':<44}{'median ms':>10}{'worst ms':>10}")
    row("recovery", recover.seconds[:rounds])
    row("task", task.seconds[:rounds])
    row("from the last line to the decision", found[:rounds])
    rest = [a - b - c for a, b, c in zip(found, recover.seconds, task.seconds, strict=True)]
    row("of that not recovery and task", rest[:rounds])


def published(slices: int = 27, warm: int = 2) -> None:
    """Print the latency with networks of the published size; the first slices are a warm-up."""
    from taskuq.recover import SamplerRecovery, build
    from taskuq.recover.sampler._train import VarNetEstimator
    from taskuq.task import build as build_task

    if not torch.cuda.is_available():
        print("no GPU here: this benchmark needs one", file=sys.stderr)
        return
    torch.manual_seed(0)
    net, estimating = (build(kind, preset="paper").cuda() for kind in ("sampler", "varnet"))
    classifier = build_task("classifier", preset="paper").eval().cuda()

    def half(images: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return classifier(images).float()

    table = synthetic_outputs(SyntheticTable(volumes=5, samples=32), seed=0)
    # No threshold is beyond infinity: no scan stops before its end.
    policy = replace(
        tq.plan(table, alpha=0.1, max_width=0.1, unit="case"), thresholds=(np.inf,) * len(RATES)
    )
    columns = added_columns(nested_masks(320, RATES, seed=0))
    print(f"{torch.cuda.get_device_name()}, 8 coils, 320 x 320, p = 32, over loopback")
    print(f"{f'{(slices - warm) * len(RATES)} rounds':<44}{'median ms':>10}{'worst ms':>10}")
    for name, judge in (("bfloat16", half), ("float32", classifier)):
        recover, task = Timed(SamplerRecovery(net, VarNetEstimator(estimating))), Timed(judge)
        scanner = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        with (
            tempfile.TemporaryDirectory() as folder,
            scanner,
            serving(ServiceModel(policy, recover, task, columns, Path(folder))) as service,
        ):
            found = scanner.submit(_played, service.port, slices).result()
        if not len(found) == len(task.seconds) == slices * (len(RATES) + 1):
            raise RuntimeError(f"{len(found)} latencies of {slices} scans to the end")
        # The round in which everything is measured is not counted.
        each = np.reshape([found, recover.seconds, task.seconds], (3, slices, -1))[:, warm:, :-1]
        row(f"from the last line to the decision, {name}", each[0].ravel().tolist())
        row("of that recovery and task", (each[1] + each[2]).ravel().tolist())


def _played(port: int, slices: int) -> list[float]:
    """Return the latencies of slices replayed to a service."""
    kspace = {k: _smooth(k, (8, 320, 320)) for k in range(slices)}
    scan = _StoredScan(ScanHeader("MR", "patient", (8, 320, 320), slices), kspace)
    return replay_scan(scan, LOOPBACK, port, tr=EVERY).latencies


def _smooth(seed: int, shape: tuple[int, int, int]) -> Any:
    """Return the k-space of a smooth image with noise."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(2, shape[0], 8, 8, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=shape[1:], mode="bicubic")
    noise = 0.02 * torch.randn(2, *shape, generator=generator)
    return fft2c(torch.complex(*(smooth + noise))).numpy()


def noisy(measurement: Any, *, samples: int, seed: int) -> Tensor:
    """Return noisy zero-filled images: a fast stand-in for a recovery method."""
    generator = torch.Generator().manual_seed(seed)
    picture: Tensor = measurement.preview
    return picture + 0.1 * torch.randn((samples, *picture.shape), generator=generator)


def brightness(images: Tensor) -> Tensor:
    """Return a sigmoid of the mean intensity at the image centre: a fast stand-in for a task."""
    return torch.sigmoid(images[..., 8:24, 8:24].mean((-2, -1)) - 1)


def small_scan(number: int, slices: int = 8, size: int = 32) -> _StoredScan:
    """Return a scan whose slices are small images of white noise."""
    generator = torch.Generator().manual_seed(number)
    noise = torch.randn(2, slices, 2, size, size, generator=generator)
    kspace = {k: fft2c(torch.complex(*noise[:, k])).numpy() for k in range(slices)}
    name = f"small-{number}"
    return _StoredScan(ScanHeader(name, name, (2, size, size), slices), kspace)


def small_chain(folder: Path, size: int = 32) -> ServiceModel:
    """Return a service model with policy, recovery method and task for small scans."""
    table = synthetic_outputs(SyntheticTable(volumes=5, samples=4), seed=0)
    policy = tq.plan(table, alpha=0.1, max_width=0.1, unit="case")
    masks = nested_masks(size, RATES, seed=0)
    return ServiceModel(policy, noisy, brightness, added_columns(masks), folder)


def resident() -> float:
    """Return the resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def memory(slices: int = SLICES, shown: int = 5) -> list[float]:
    """Print memory and thread count while slices are replayed; return the memory values in MiB."""
    found = []
    with tempfile.TemporaryDirectory() as folder, serving(small_chain(Path(folder))) as service:
        for number in range(slices // 8):
            replay_scan(small_scan(number), LOOPBACK, service.port)
            if (number + 1) % max(1, slices // 8 // shown) == 0:
                gc.collect()
                found.append(resident())
                print(f"{8 * (number + 1):>6} slices: {found[-1]:7.1f} MiB, "
                      f"{threading.active_count()} threads", flush=True)  # fmt: skip
    return found


PARTS: dict[str, Callable[[], Any]] = {
    "latency": latency, "memory": memory, "published": published
}  # fmt: skip


def main() -> None:
    for name in [word for word in sys.argv[1:] if word in PARTS] or list(PARTS)[:2]:
        PARTS[name]()


if __name__ == "__main__":
    main()
