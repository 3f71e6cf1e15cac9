"""Speed of policies: decisions, and simulation over many random splits."""

from __future__ import annotations

import time
from collections.abc import Callable
from unittest.mock import patch

import numpy as np

import taskuq as tq
from taskuq.policy import Goal, PolicySpec, simulate
from taskuq.policy._simulate import _SimulationJob
from taskuq.table import SyntheticTable, synthetic_outputs

SPLITS = 1000
# Splits in a run, and runs, where the time of one split is measured.
SOME, RUNS = 50, 6
ALPHA, WIDTH = 0.05, 0.2
# Every policy of the command's default.
PLANS = {
    "paper lwr": {"policy": "paper", "score": "lwr"},
    "paper cqr": {"policy": "paper", "score": "cqr"},
    "fixed-width spread": {"policy": "fixed-width", "statistic": "spread"},
    "fixed-width learned": {"policy": "fixed-width", "statistic": "learned"},
    "adaptive lwr": {"policy": "adaptive", "score": "lwr"},
    "adaptive cqr": {"policy": "adaptive", "score": "cqr"},
    "anytime lwr": {"policy": "anytime", "score": "lwr"},
    "anytime cqr": {"policy": "anytime", "score": "cqr"},
}
LEARNING = [
    ("case", "fixed-width"), ("case", "adaptive"), ("case", "anytime"),
    ("group", "fixed-width"), ("group", "adaptive"), ("group", "anytime"),
    ("whole-group", "fixed-width"), ("whole-group", "adaptive"),
]  # fmt: skip


def main() -> None:
    table = synthetic_outputs(SyntheticTable(), seed=0)
    print(f"Policies on a synthetic table: {table}\n")
    print(f"{'policy':<22}{'decide, ms per case':>22}{f'{SPLITS} splits, s':>22}")
    goal, total = Goal(max_width=WIDTH), 0.0
    for name, options in PLANS.items():
        policy = tq.plan(table, alpha=ALPHA, max_width=WIDTH, unit="case", **options)
        last = table.rounds - 1
        decide = _median(lambda: policy.decide(last, table.outputs[:, 0]), repeats=200)  # noqa: B023  # called at once
        detail = {k: v for k, v in options.items() if k != "policy"}
        spec = PolicySpec(options["policy"], ALPHA, goal, **detail)
        seconds = _judge(table, spec, SPLITS)
        total += seconds
        print(f"{name:<22}{1e3 * decide:>22.3f}{seconds:>22.2f}")
    print(f"{'all':<44}{total:>22.2f}")
    print("\nPolicies fitted on each calibration fold, and a fixed one: CPU ms per split\n")
    print(f"{'unit':<14}{'policy':<16}{'fitted':>10}{'fixed (lwr)':>14}")
    for unit, kind in LEARNING:
        spec, fixed = PolicySpec(kind, ALPHA, goal), PolicySpec("adaptive", ALPHA, goal, "lwr")
        learning, plain = (_per_split(table, each, unit) for each in (spec, fixed))
        print(f"{unit:<14}{kind:<16}{learning:>10.2f}{plain:>14.2f}")


def _per_split(table: tq.TaskOutputs, spec: PolicySpec, unit: str) -> float:
    """Return the CPU time per simulated split in ms, without computing standard errors."""

    def seconds(trials: int) -> float:
        start = time.process_time()
        simulate(table, [spec], splits=trials, unit=unit)
        return time.process_time() - start

    with patch.object(_SimulationJob, "_jackknife_folds", lambda *arguments, **options: None):
        once = min(seconds(1) for _ in range(RUNS))
        return 1e3 * (min(seconds(SOME) for _ in range(RUNS)) - once) / (SOME - 1)


def _judge(table: tq.TaskOutputs, spec: PolicySpec, trials: int) -> float:
    start = time.perf_counter()
    simulate(table, [spec], splits=trials, unit="case")
    return time.perf_counter() - start


def _median(call: Callable[[], object], repeats: int) -> float:
    """Return the median time of a call in seconds, after warm-up calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times[repeats // 10 :]))


if __name__ == "__main__":
    main()
