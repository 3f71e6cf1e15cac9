"""From the last line of a round to the decision, at the published size, on one GPU.

Run from the root of the repository, on a machine with an NVIDIA GPU:

    OMP_NUM_THREADS=2 PYTHONPATH=src python3 -m benchmarks.scanner_gpu
    PYTHONPATH=src python3 -m benchmarks.scanner_gpu --toy     # anywhere, in seconds

8 coils, 320 x 320, the variational network of 12 cascades, the sampler around it and ResNet-50 with
the published head, 32 samples, random weights. Lines are handed to a slice one by one, as a service
does when they arrive; state and audit trail are written to disk before the decision counts. Where
the package ismrmrd is installed, the same is measured from the scanner's side of a connection over
loopback, a process of its own that sends a line every 2 ms. Every scan goes to its end;
the round in which everything is measured is not counted. Of each latency it is said what recovery
and task take, from the call to the outputs on the host, and what is left.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

# As the command does before torch is loaded: threads that wait do not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from numpy.typing import NDArray

import taskuq as tq
from taskuq.decide.acquisition import acquiring
from taskuq.decide.audit import read_trail
from taskuq.decide.worker import Worker
from taskuq.measure.fourier import fft2c
from taskuq.measure.masks import nested_masks
from taskuq.measure.mri import added_columns
from taskuq.outputs.synthetic import SyntheticScanner, synthetic_outputs
from taskuq.recover import SamplerRecovery, build
from taskuq.recover.sampler_training import VarNetEstimates
from taskuq.runs.mrd.arriving import ArrivingSlice, with_canvases
from taskuq.runs.mrd.service import settle
from taskuq.task import build as build_task

RATES, SLICES, WARM = (16.0, 8.0, 4.0, 2.0), 25, 2


@dataclass(frozen=True)
class Setting:
    """Networks of a size, and the policy they decide with."""

    recover: Any
    task: Any
    policy: tq.Policy
    shape: tuple[int, int, int]
    columns: list[Any]


def setting(is_toy: bool) -> Setting:
    """The published networks on the GPU, or tiny ones on the CPU."""
    torch.manual_seed(0)
    device, preset = ("cpu", "tiny") if is_toy else ("cuda", "paper")
    samples, shape = (4, (2, 32, 32)) if is_toy else (32, (8, 320, 320))
    net, estimating = (build(kind, preset=preset).to(device) for kind in ("sampler", "varnet"))
    table = synthetic_outputs(SyntheticScanner(volumes=5, samples=samples), seed=0)
    # No threshold is beyond infinity: whatever networks say, no scan stops before its end.
    planned = tq.plan(table, alpha=0.1, max_width=0.1, unit="case")
    policy = replace(planned, thresholds=(np.inf,) * len(RATES))
    masks = nested_masks(shape[2], RATES, rng=np.random.default_rng(0))
    return Setting(
        recover=SamplerRecovery(net, VarNetEstimates(estimating)),
        task=build_task("classifier", preset=preset).eval().to(device),
        policy=policy,
        shape=shape,
        columns=added_columns(masks),
    )


def kspace_of(seed: int, shape: tuple[int, int, int]) -> Any:
    """The k-space of a smooth image with noise."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(2, shape[0], 8, 8, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=shape[1:], mode="bicubic")
    noise = 0.02 * torch.randn(2, *shape, generator=generator)
    return fft2c(torch.complex(*(smooth + noise))).numpy()


@dataclass
class Timed:
    """A recovery and a task, and the seconds from the call of one to the outputs of the other.

    The GPU is waited for at the end alone, where the outputs are read anyway.
    """

    recover: Any
    task: Any
    seconds: list[float] = field(default_factory=list)
    begun: float = 0.0

    def recovered(self, measurement: Any, **options: Any) -> Any:
        """Recover."""
        self.begun = time.perf_counter()
        return self.recover(measurement, **options)

    def judged(self, images: Any) -> Any:
        """Run the task."""
        outputs = self.task(images)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self.begun)
        return outputs


def direct(chosen: Setting, timed: Timed, folder: Path, slices: int) -> list[float]:
    """Seconds from the last line of each round to its decision, slice by slice."""
    found = []
    for number in range(slices):
        kspace = kspace_of(number, chosen.shape)
        rates = chosen.policy.accelerations
        arriving = ArrivingSlice(chosen.columns, chosen.shape, rates, f"MR-{number}")
        with_canvases([arriving], [])
        rounds = acquiring(
            chosen.policy, arriving, recover=timed.recovered, task=timed.judged,
            samples=chosen.policy.samples, case=f"slice-{number}", scan_id=f"MR-{number}",
            state=folder / f"{number}.json", worker=Worker(None),
        )  # fmt: skip
        awaited = next(rounds, None)
        for k, columns in enumerate(chosen.columns):
            if awaited is None or awaited[0] != k:
                raise RuntimeError(f"round {k} of slice {number} is not waited for, got {awaited}")
            for column in columns:
                arriving.add(int(column), kspace[..., column])
            begun = time.perf_counter()
            awaited = next(rounds, None)
            found.append(time.perf_counter() - begun)
    return found


def over_loopback(chosen: Setting, timed: Timed, folder: Path, slices: int) -> list[float]:
    """The same, from the scanner's side of a connection: a process that shares nothing."""
    from benchmarks.scanner import serving

    from taskuq.runs.mrd.session import Chain

    chain = Chain(chosen.policy, timed.recovered, timed.judged, chosen.columns, folder)
    scanner = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    with serving(chain) as service, scanner:
        return scanner.submit(_scanned, service.port, chosen.shape, slices).result()


def _scanned(port: int, shape: tuple[int, int, int], slices: int) -> list[float]:
    """Play slices against a service, and return how long decisions took."""
    from benchmarks.scanner import EVERY

    from taskuq.runs.mrd.header import ScanHeader
    from taskuq.runs.mrd.replay import StoredScan, play
    from taskuq.runs.mrd.service import LOOPBACK

    header = ScanHeader("MR", "patient", shape, slices)
    scan = StoredScan(header, {k: kspace_of(k, shape) for k in range(slices)})
    return play(scan, LOOPBACK, port, every=EVERY).latencies


def milliseconds(
    measure: Callable[..., list[float]], chosen: Setting, task: Any, slices: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Measure in one way; fail where a round is missing, or could not be decided.

    Returns:
        From the last line to the decision, and of that recovery and task, (slice, round): without
        the first slices, and without the round in which everything is measured.
    """
    timed = Timed(chosen.recover, task)
    settle()  # as a service does before it listens
    with tempfile.TemporaryDirectory() as folder:
        latencies = measure(chosen, timed, Path(folder), slices)
        told = read_trail(Path(folder) / "log.jsonl")
    rounds = [R for _ in range(slices) for R in (*RATES, 1.0)]
    if [line["acceleration"] for line in told] != rounds or any(line["fault"] for line in told):
        raise RuntimeError(
            f"{slices} scans to the end are {len(rounds)} rounds, and the audit trail tells of "
            f"{len(told)}: {[line['reason'] for line in told if line['stop'] or line['fault']]}"
        )
    if not len(latencies) == len(timed.seconds) == len(rounds):
        raise RuntimeError(f"{len(latencies)} latencies of {len(rounds)} rounds were measured")
    each = np.reshape([latencies, timed.seconds], (2, slices, -1))
    whole, computing = 1e3 * each[:, WARM:, :-1]
    return whole, computing


def main() -> None:
    is_toy = "--toy" in sys.argv
    if not is_toy and not torch.cuda.is_available():
        print("no GPU here: this benchmark needs one, or --toy", file=sys.stderr)
        return
    chosen, slices = setting(is_toy), WARM + (2 if is_toy else SLICES)
    kind = "cpu" if is_toy else "cuda"

    def half(images: Any) -> Any:
        with torch.autocast(kind, torch.bfloat16):
            return chosen.task(images).float()

    where = kind if is_toy else torch.cuda.get_device_name()
    print(f"{where}, torch {torch.__version__}, slices {chosen.shape}, "
          f"p = {chosen.policy.samples}, {(slices - WARM) * len(RATES)} rounds")  # fmt: skip
    columns = ("median ms", "worst ms", "recovery and task", "the rest")
    print("from the last line to the decision".ljust(42) + "".join(f"{c:>18}" for c in columns))
    ways = {"as lines arrive": direct}
    if importlib.util.find_spec("ismrmrd") is not None:
        ways["over loopback"] = over_loopback
    for name, task in (("bfloat16", half), ("float32", chosen.task)):
        for way, measure in ways.items():
            whole, computing = milliseconds(measure, chosen, task, slices)
            middle = (np.median(whole), whole.max(), np.median(computing))
            numbers = (*middle, np.median(whole - computing))
            label = f"{way}, task in {name}"
            print(label.ljust(42) + "".join(f"{x:>18.1f}" for x in numbers))
            each = ", ".join(
                f"{x:.1f} at R = {R:g}" for x, R in zip(np.median(whole, 0), RATES, strict=True)
            )
            print(f"    medians {each}")
            worst = [np.unravel_index(k, whole.shape) for k in np.argsort(whole, axis=None)[:-4:-1]]
            told = ", ".join(
                f"{whole[at]:.1f} at R = {RATES[at[1]]:g} of slice {at[0]} ({computing[at]:.1f})"
                for at in worst
            )
            print(f"    worst (recovery and task) {told}", flush=True)


if __name__ == "__main__":
    main()
