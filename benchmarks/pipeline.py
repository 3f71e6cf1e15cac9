"""Overhead of the pipeline on one core, on Ray, and with many workers.

python -m benchmarks pipeline             # against a plain loop, and Ray with two workers
python -m benchmarks.pipeline --scaling   # 1 to 64 sleeping workers, plotted in docs/figures
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import taskuq as tq
from taskuq.pipeline import RayOptions

RATES = (16.0, 8.0, 4.0, 2.0)
FIGURES = Path(__file__).resolve().parents[1] / "docs/figures"


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def against_a_loop(repeats: int = 7) -> None:
    """Print the time of a pipeline relative to a plain loop, for zero-filled atlas images."""
    from taskuq.data import Atlas, PatientDistribution
    from taskuq.measure import MultiCoilMRI, nested_masks
    from taskuq.pipeline._executor import reference_image
    from taskuq.recover import ZeroFilled
    from taskuq.task import MeanIntensity

    atlas = Atlas(25, 0, coils=8, plan=PatientDistribution(size=128, slices=8))
    images = [atlas[i].image for i in range(len(atlas))]
    measure = MultiCoilMRI(nested_masks(128, RATES, seed=0), RATES)
    recover, task = ZeroFilled(), MeanIntensity()

    def loop() -> None:
        for image in images:
            float(task(reference_image(image)[None]))
            for R in RATES:
                float(task(recover(measure(image, R), samples=32, seed=0)))

    def pipeline() -> None:
        tq.Pipeline(measure, recover, task).run(
            images, accelerations=RATES, samples=32, seed=0, progress=False
        )

    pipeline()
    # Turn by turn, so that whatever else the machine does falls on both.
    pairs = [(seconds(loop), seconds(pipeline)) for _ in range(repeats)]
    plain, ours = (median(times) for times in zip(*pairs, strict=True))
    ratio = median(b / a for a, b in pairs)
    print(f"{len(images)} atlas cases, {len(RATES)} rounds, zero-filled, mean intensity")
    print(f"  plain loop {plain:6.2f} s   pipeline {ours:6.2f} s   ratio {ratio:.3f}")


def measure(image: np.ndarray, acceleration: float) -> np.ndarray:
    return image


class Sleep:
    """Recovery that sleeps for a given time, like one that waits for a remote GPU."""

    def __init__(self, pause: float, meeting: Path | None = None, workers: int = 0) -> None:
        self.pause, self.start, self.driver = pause, time.time(), os.getpid()
        self.meeting, self.workers = meeting, workers

    def __call__(self, measurement: np.ndarray, *, samples: int, seed: int) -> np.ndarray:
        """Sleep, and return the end time and the process id."""
        if self.meeting is not None and os.getpid() != self.driver:
            # All workers begin together, however long their processes take to start.
            (self.meeting / str(os.getpid())).touch()
            while len(os.listdir(self.meeting)) < self.workers:
                time.sleep(0.2)
            time.sleep(3.0)
            self.meeting = None
        time.sleep(self.pause)
        return np.array([[time.time() - self.start, os.getpid()]])


def numbers(images: np.ndarray) -> np.ndarray:
    return images


class Busy:
    """Recovery that keeps a core busy for a given time."""

    def __init__(self, pause: float) -> None:
        self.pause = pause

    def __call__(self, measurement: np.ndarray, *, samples: int, seed: int) -> np.ndarray:
        """Compute for the given CPU time, and return zeros."""
        end = time.process_time() + self.pause
        while time.process_time() < end:
            pass
        return np.zeros((1, 2))


def join_ray(cpus: int) -> Any:
    import ray

    # Before Ray starts its processes, which pass it on to their workers.
    os.environ |= {"PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False)
    return ray


def run_on(workers: int, recover: Sleep | Busy, cases: int) -> tq.TaskOutputs:
    return tq.Pipeline(measure, recover, numbers).run(
        np.zeros((cases, 2)), accelerations=(2.0,), samples=1, seed=0, progress=False,
        engine=RayOptions(workers=workers, chunk=1),
    )  # fmt: skip


def plain_loop(recover: Sleep | Busy, batches: int) -> None:
    for _ in range(batches):
        recover(np.zeros(2), samples=1, seed=0)


def two_loops(recover: Sleep | Busy, batches: int) -> None:
    """Run half of the batches in each of two processes, without a pipeline."""
    context = get_context("spawn")
    loops = [context.Process(target=plain_loop, args=(recover, batches // 2)) for _ in range(2)]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join()


def on_ray(pause: float = 0.2, batches: int = 200) -> None:
    """Compare two Ray workers with two plain processes, including start-up times.

    Other load on the machine slows down both.
    """
    ray = join_ray(2)
    print(f"Ray, 2 workers, {batches} batches of {pause} s, {pause * batches / 2:g} s at the least")
    for name, recover in (("sleeping", Sleep(pause)), ("busy", Busy(pause))):
        plain = seconds(lambda recover=recover: two_loops(recover, batches))
        ours = seconds(lambda recover=recover: run_on(2, recover, batches))
        print(f"  {name:9s} two loops {plain:6.2f} s   Ray {ours:6.2f} s   "
              f"ratio {ours / plain:.3f}", flush=True)  # fmt: skip
    ray.shutdown()


def scaling(pause: float = 1.0, each: int = 10) -> None:
    """Plot the batch rate relative to the ideal rate for 1 to 64 sleeping workers."""
    from taskuq.report.figures import Figure, Series, draw_all

    counts, shares = (1, 2, 4, 8, 16, 32, 64), []
    for workers in counts:
        ray = join_ray(workers)
        start = time.time()
        with tempfile.TemporaryDirectory() as meeting:
            recover = Sleep(pause, Path(meeting), workers)
            table = run_on(workers, recover, workers * each)
        finished, worker = table.outputs[0, :, 0, :].T
        rate = steady_rate(finished, worker, workers)
        shares.append(rate * pause / workers)
        print(f"  {workers:3d} workers {rate:7.2f} batches/s, {100 * shares[-1]:5.1f} % of ideal, "
              f"{time.time() - start:5.1f} s with the start", flush=True)  # fmt: skip
        ray.shutdown()
    figure = Figure(
        "pipeline-scaling",
        f"Up to {counts[-1]} workers that take {pause:g} s for a batch, the driver keeps all of "
        f"them busy for at least {100 * min(shares):.0f} % of their time.",
        "workers", "share of the ideal rate", (Series("measured", counts, tuple(shares)),),
        x_scale="log2", reference=(("ideal", 1.0),),
    )  # fmt: skip
    print(*draw_all(figure, [FIGURES / f"{figure.name}.svg"]))


def steady_rate(finished: np.ndarray, worker: np.ndarray, workers: int) -> float:
    """Return the batches per second while all workers are busy."""
    # The driver's own first case is not one of theirs.
    theirs = worker != os.getpid()
    finished, worker = finished[theirs], worker[theirs]
    everyone = np.unique(worker)
    assert len(everyone) == workers
    # The first batch of each includes loading what writes shards.
    begin = max(np.sort(finished[worker == one])[1] for one in everyone)
    end = min(finished[worker == one].max() for one in everyone)
    return float(((finished > begin) & (finished <= end)).sum() / (end - begin))


def main() -> None:
    if "--scaling" in sys.argv:
        scaling()
        return
    against_a_loop()
    on_ray()


if __name__ == "__main__":
    main()
