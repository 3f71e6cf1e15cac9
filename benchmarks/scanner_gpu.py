"""From the last line of a round to the decision, at the published size, on one GPU.

Run from the root of the repository, on a machine with an NVIDIA GPU:

    PYTHONPATH=src python3 -m benchmarks.scanner_gpu
    PYTHONPATH=src python3 -m benchmarks.scanner_gpu --toy     # anywhere, in seconds

8 coils, 320 x 320, the variational network of 12 cascades, the sampler around it and ResNet-50 with
the published head, 32 samples, random weights. Lines are handed to a slice one by one, as a service
does when they arrive; state and audit trail are written to disk before the decision counts. Where
the package ismrmrd is installed, the same is measured over loopback.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import taskuq as tq
from taskuq.decide.acquisition import acquiring
from taskuq.decide.scan import RoundRecord
from taskuq.decide.worker import Worker
from taskuq.measure.fourier import fft2c
from taskuq.measure.masks import nested_masks
from taskuq.measure.mri import added_columns
from taskuq.outputs.synthetic import SyntheticScanner, synthetic_outputs
from taskuq.recover import SamplerRecovery, build
from taskuq.recover.sampler_training import VarNetEstimates
from taskuq.runs.mrd.arriving import ArrivingSlice
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
    # So narrow that no scan stops early, and every round is seen.
    policy = tq.plan(table, alpha=0.1, max_width=1e-6, unit="case")
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


def direct(chosen: Setting, task: Any, folder: Path, slices: int) -> list[float]:
    """Seconds from the last line of each round but the full one to its decision."""
    found = []
    for number in range(slices):
        kspace, decided = kspace_of(number, chosen.shape), list[RoundRecord]()
        rates = chosen.policy.accelerations
        arriving = ArrivingSlice(chosen.columns, chosen.shape, rates, f"MR-{number}")
        rounds = acquiring(
            chosen.policy, arriving, recover=chosen.recover, task=task,
            samples=chosen.policy.samples, case=f"slice-{number}", scan_id=f"MR-{number}",
            state=folder / f"{number}.json", worker=Worker(None), on_round=decided.append,
        )  # fmt: skip
        next(rounds)
        for columns in chosen.columns:
            for column in columns:
                arriving.add(int(column), kspace[..., column])
            begun = time.perf_counter()
            next(rounds, None)
            seconds, record = time.perf_counter() - begun, decided[-1]
            if record.acceleration != 1:
                found.append(seconds)
            if record.fault:
                raise RuntimeError(record.fault)
    return found[WARM * len(RATES) :]


def over_loopback(chosen: Setting, task: Any, folder: Path, slices: int) -> list[float]:
    """The same, from the scanner's side of a connection."""
    from benchmarks.scanner import serving

    from taskuq.runs.mrd.header import ScanHeader
    from taskuq.runs.mrd.replay import StoredScan, play
    from taskuq.runs.mrd.session import Chain

    header = ScanHeader("MR", "patient", chosen.shape, slices)
    scan = StoredScan(header, {k: kspace_of(k, chosen.shape) for k in range(slices)})
    chain = Chain(chosen.policy, chosen.recover, task, chosen.columns, folder)
    with serving(chain) as service:
        latencies = play(scan, service.host, service.port).latencies
    each = np.reshape(latencies, (slices, -1))[WARM:, : len(RATES)]
    return [float(seconds) for seconds in each.ravel()]


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
    print(f"{'from the last line to the decision':<52}{'median ms':>10}{'worst ms':>10}")
    ways = {"as lines arrive": direct}
    if importlib.util.find_spec("ismrmrd") is not None:
        ways["over loopback"] = over_loopback
    for name, task in (("bfloat16", half), ("float32", chosen.task)):
        for way, measured in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                seconds = np.array(measured(chosen, task, Path(folder), slices))
            label = f"{way}, task in {name}"
            print(f"{label:<52}{1e3 * np.median(seconds):>10.1f}{1e3 * seconds.max():>10.1f}",
                  flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
