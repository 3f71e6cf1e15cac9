"""Count the Python calls of five warm walks through the package.

    python -m benchmarks.walks

Prints, for each walk, the calls of functions of this package and the modules they are in.
"""

import contextlib
import io
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

import taskuq as tq
try:
    from taskuq.cli.app import main
except ImportError:
    from taskuq.commands.app import main

CONFIG = """
part = "all"
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


def count(walk):
    """Calls and modules of one warm call of a walk."""
    walk()
    walk()
    calls = Counter()

    def profile(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            calls[frame.f_code.co_filename, frame.f_code.co_name] += 1

    sys.setprofile(profile)
    try:
        walk()
    finally:
        sys.setprofile(None)
    return sum(calls.values()), len({file for file, _ in calls}), calls


class Scanner:
    """Scanner whose measurements are numbers."""

    def measure(self, round):
        return np.ones(3)


def walks(folder):
    """Yield the name and the function of each walk."""
    N = 2188
    rng = np.random.default_rng(0)
    targets = rng.normal(size=N)
    outputs = targets[:, None] + rng.normal(size=(N, 8))
    rounds = np.stack([targets[:, None] + s * rng.normal(size=(N, 8)) for s in (1.0, 0.3)])
    table = tq.TaskOutputs(rounds, targets, accelerations=(4, 2))
    policy = tq.plan(table, alpha=0.1, max_width=9.0)
    number = iter(range(1000))

    config = folder / "run.toml"
    images = rng.uniform(size=(3, 16, 16)).astype(np.float32)
    np.savez(folder / "images.npz", images=images, label=[0, 1, 0], group=["a", "b", "c"])
    config.write_text(CONFIG.format(path=folder / "images.npz"))

    def run():
        store = folder / str(next(number))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            main(["run", str(config), "-o", str(store)])
        return tq.TaskOutputs.load(store)

    yield "calibrate(lwr)", lambda: tq.calibrate(outputs, targets, alpha=0.1, score="lwr")
    yield "policy.decide", lambda: policy.decide(0, outputs[0])
    yield "one round of acquire", lambda: tq.acquire(
        policy, Scanner(), recover=lambda y, *, samples, seed: np.zeros((samples, 2)) + np.arange(samples)[:, None] * 1e-3,
        task=lambda x: np.asarray(x).sum(axis=1), samples=8,
    )
    yield "run of three images", run
    yield "plan", lambda: tq.plan(table, alpha=0.1, max_width=9.0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        for walk, call in walks(Path(name)):
            calls, modules, detail = count(call)
            print(f"{walk:24} {calls:6} calls in {modules:3} modules")
            if "-v" in sys.argv:
                for (file, fn), n in detail.most_common(): print("     ", n, file.removeprefix(PACKAGE), fn)
