"""False alarms of a monitor on exchangeable streams, and delays until it detects a change.

``python -m benchmarks false_alarms`` draws 1000 streams of 200 calibration cases and 10,000 new
cases, and counts the streams with an alarm (evidence of at least 1/delta). After a change, it
counts the cases until the alarm. ``python -m benchmarks.false_alarms drift`` changes the contrast
of the images in the example of docs/how-to/scanner.md, and prints coverage and delays.
"""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import taskuq as tq
from taskuq.policy._policy import monitor_statistics
from taskuq.scan._monitor import BETS, _total_wealth, _update_wealth

RUNS, CASES, CALIBRATION = 1000, 10_000, 200
DELTAS = (0.1, 0.05, 0.01)


def ranks(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the rank of each value (run, case) among the values of its run so far."""
    found = np.empty(values.shape, dtype=np.int64)
    for run, row in enumerate(values):
        order = np.empty(0)
        for start in range(0, len(row), 500):
            # A block at a time: below in earlier blocks, and below in its own.
            block = row[start : start + 500]
            below = np.searchsorted(order, block)
            own = np.tril(block[:, None] > block[None, :], -1).sum(axis=1)
            found[run, start : start + 500] = 1 + below + own
            order = np.sort(np.concatenate([order, block]))
    return found


def largest(values: NDArray[np.float64], calibration: int) -> NDArray[np.float64]:
    """Return the running maximum of the monitor's evidence at each new case, (run, case)."""
    rank = ranks(values)
    capital = np.zeros((len(values), BETS))
    found = np.empty((len(values), values.shape[1] - calibration))
    for k in range(found.shape[1]):
        r = rank[:, calibration + k]
        capital = _update_wealth(capital, k, r, r, calibration + k + 1)
        found[:, k] = _total_wealth(capital, k + 1)
    return np.maximum.accumulate(found, axis=1)


def missed(policy: tq.Policy, table: tq.TaskOutputs) -> NDArray[np.bool_]:
    """Return a mask, true for cases whose reported interval does not contain the target."""
    x, z = np.asarray(table.outputs), np.asarray(table.targets)
    lost, going = np.zeros(table.cases, dtype=bool), np.ones(table.cases, dtype=bool)
    for k in range(table.rounds):
        decision = policy.decide(k, x[: k + 1])
        stops = going & decision.stops
        lost |= stops & ~decision.interval.contains(z)
        going &= ~stops
    return lost


def drift(streams: int = 201, units: int = 300, delta: float = 0.1) -> None:
    """Print coverage and the number of units until an alarm, for each change of image contrast.

    Every stream has its own calibration patients.
    """
    guide = Path(__file__).parents[1] / "docs/how-to/scanner.md"
    code = re.findall(r"```python\n(.*?)```", guide.read_text("utf-8"), flags=re.S)[:3]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        names: dict[str, Any] = {}
        for block in code:
            exec(block, names)
    policy, patient, rates = names["policy"], names["patient"], names["ACCELERATIONS"]

    def table_of(contrast: float, seeds: range) -> tq.TaskOutputs:
        images = [contrast * patient(seed) for seed in seeds]
        found: tq.TaskOutputs = names["pipeline"].run(
            images, case=[str(seed) for seed in seeds], accelerations=rates,
            samples=names["SAMPLES"], seed=0, task_range=(0, 1), progress=False,
        )  # fmt: skip
        return found

    earlier, seeds = table_of(1.0, range(20_000, 24_000)), range(10_000, 12_400)
    first, n = np.asarray(earlier.outputs)[0, ..., None], names["table"].cases
    targets = table_of(1.0, seeds).targets
    for contrast in (1.0, 0.9, 0.8, 0.7, 0.5, 1.25):
        table, rng, found = table_of(contrast, seeds), np.random.default_rng(0), []
        lost = missed(policy, replace(table, targets=targets)).mean()
        for _ in range(streams):
            chosen = rng.permutation(earlier.cases)[:n]
            seen = monitor_statistics(first[chosen], np.arange(n), ["task"])
            monitor = tq.Monitor(replace(policy, monitor_reference=seen), delta=delta)
            for case in rng.permutation(table.cases)[:units]:
                monitor.update(table.outputs[:1, case])
                if monitor.alarm:
                    break
            found.append(monitor.alarm_after or np.inf)
        most = np.quantile(found, 0.9, method="higher")
        print(
            f"contrast x {contrast:g}: coverage {1 - lost:.2f}, alarm after {np.median(found):g} "
            f"units in the median, {most:g} in nine of ten, ever in "
            f"{100 * np.isfinite(found).mean():.0f} %"
        )


def main() -> None:
    """Print the number of streams with an alarm, and the delays until an alarm."""
    rng, begun = np.random.default_rng(0), time.perf_counter()
    top = largest(rng.standard_normal((RUNS, CALIBRATION + CASES)), CALIBRATION)[:, -1]
    for delta in DELTAS:
        print(f"delta {delta:g}: {int((top >= 1 / delta).sum())} of {RUNS} exchangeable streams "
              f"of {CASES} cases alarm")  # fmt: skip
    print(f"{time.perf_counter() - begun:.0f} s")
    for before in (0, 1000):
        for shift in (0.5, 1.0, 2.0):
            values = rng.standard_normal((100, CALIBRATION + before + 2000))
            values[:, CALIBRATION + before :] += shift
            late = largest(values, CALIBRATION)[:, before:] >= 100
            delay = np.where(late.any(axis=1), late.argmax(axis=1) + 1, np.inf)
            most = np.quantile(delay, 0.9, method="higher")
            print(
                f"a shift of {shift:g} standard deviations after {before} cases: detected after "
                f"{np.median(delay):g} cases in the median, {most:g} in nine of ten streams"
            )


if __name__ == "__main__":
    drift() if sys.argv[1:] == ["drift"] else main()
