"""Number of function calls and modules in each of five typical uses of the package.

python -m benchmarks.walks        # with -v, every function and its number of calls
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import taskuq as tq
from taskuq.cli.app import main as command

CONFIG = """
subset = "all"
samples = 1
[data]
kind = "npz"
path = "{path}"
[measure]
accelerations = [4]
[recover]
kind = "zero-filled"
[task]
kind = "mean-intensity"
"""
PACKAGE = str(Path(tq.__file__).parent)
CASES, SAMPLES = 2188, 8


def count(walk: Callable[[], Any]) -> Counter[tuple[str, str]]:
    """Return how often ``walk`` calls each (file, function), after a warm-up."""
    walk()
    walk()
    calls: Counter[tuple[str, str]] = Counter()

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            calls[frame.f_code.co_filename, frame.f_code.co_name] += 1

    sys.setprofile(profile)
    try:
        walk()
    finally:
        sys.setprofile(None)
    return calls


class Scanner:
    """Scanner whose measurements are constant arrays."""

    def measure(self, round: int) -> Any:
        """Return the same array in every round."""
        return np.ones(3)


def recover(measurement: Any, *, samples: int, seed: int) -> Any:
    return np.zeros((samples, 2)) + np.arange(samples)[:, None] * 1e-3


def task(images: Any) -> Any:
    return np.asarray(images).sum(axis=1)


def walks(folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name and the function of each typical use."""
    rng = np.random.default_rng(0)
    targets = rng.normal(size=CASES)
    outputs = targets[:, None] + rng.normal(size=(CASES, SAMPLES))
    rounds = np.stack([targets[:, None] + s * rng.normal(size=outputs.shape) for s in (1.0, 0.3)])
    table = tq.TaskOutputs(rounds, targets, accelerations=(4, 2))
    policy = tq.plan(table, alpha=0.1, max_width=9.0)
    images = rng.uniform(size=(3, 16, 16)).astype(np.float32)
    np.savez(folder / "images.npz", images=images, label=[0, 1, 0], group=["a", "b", "c"])
    config = folder / "run.toml"
    config.write_text(CONFIG.format(path=folder / "images.npz"))
    number = iter(range(1000))

    def run() -> tq.TaskOutputs:
        store = folder / str(next(number))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            command(["run", str(config), "-o", str(store)])
        return tq.TaskOutputs.load(store)

    yield "calibrate(lwr)", lambda: tq.calibrate(outputs, targets, alpha=0.1, score="lwr")
    yield "policy.decide", lambda: policy.decide(0, outputs[0])
    yield (
        "one round of acquire",
        lambda: tq.acquire(policy, Scanner(), recover=recover, task=task, samples=SAMPLES),
    )
    yield "run of three images", run
    yield "plan", lambda: tq.plan(table, alpha=0.1, max_width=9.0)


def main() -> None:
    """Print the number of function calls and of modules for each use."""
    with tempfile.TemporaryDirectory() as folder:
        for name, walk in walks(Path(folder)):
            calls = count(walk)
            modules = len({file for file, _ in calls})
            print(f"{name:24} {calls.total():6} calls in {modules:3} modules")
            if "-v" in sys.argv:
                for (file, function), n in calls.most_common():
                    print(f"{n:8} {file.removeprefix(PACKAGE)} {function}")


if __name__ == "__main__":
    main()
