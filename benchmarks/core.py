"""Statistics against vectorised NumPy and MAPIE: times, ratios, memory, growth.

One process, one thread, medians of repeats. Real fastMRI outputs are used if available
(2188 slices, 32 samples), a synthetic set of the same size otherwise.
"""

from __future__ import annotations

import os
import time
import tracemalloc
import warnings
from collections.abc import Callable
from math import ceil
from pathlib import Path
from statistics import median

# Before NumPy is loaded: threads would flatter whoever uses more of them.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402 after the number of threads is set

import taskuq as tq  # noqa: E402 the same
from taskuq.conformal._evaluate import _evaluate_scores  # noqa: E402 the same
from taskuq.conformal._splits import check_cases  # noqa: E402 the same

ALPHA, TRIALS, SPLIT = 0.05, 10_000, 0.7
SCORES = ("ar", "lwr", "cqr")
REAL = Path(__file__).resolve().parents[1] / "../shared/data/fastmri_outputs/meniscus_tear.npz"


def main() -> None:
    outputs, targets, source = load()
    print(f"{source}: {outputs.shape[0]} cases, {outputs.shape[1]} samples, alpha {ALPHA}")
    random_splits(outputs, targets)
    exact_evaluation(outputs, targets)
    raw_samples(10**6)
    growth()


def load() -> tuple[np.ndarray, np.ndarray, str]:
    """Return real outputs at acceleration 8, or synthetic ones of the same size."""
    if REAL.exists():
        table = tq.TaskOutputs.load(REAL)
        k = table.round_index(8)
        return table.outputs[k].astype(float), table.targets_at(k), "real fastMRI outputs, R = 8"
    return *synthetic(2188, 32), "synthetic outputs"


def synthetic(cases: int, samples: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    truth = rng.random(cases)
    spread = rng.uniform(0.02, 0.2, cases)
    outputs = rng.standard_normal((cases, samples))
    outputs *= spread[:, None]
    outputs += (truth + spread * rng.standard_normal(cases))[:, None]
    return outputs, truth


def seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Return the median time of repeats after a warm-up run."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return median(times)


def random_splits(outputs: np.ndarray, targets: np.ndarray) -> None:
    """All three scores on the same random splits; the time to draw splits is included."""
    cases = check_cases(outputs, targets, calibration_fraction=SPLIT)

    def ours() -> object:
        return _evaluate_scores(
            cases, SCORES, alpha=ALPHA, splits=TRIALS, seed=np.random.default_rng(1)
        )

    found = ours()
    t_ours = seconds(ours)
    t_numpy = seconds(lambda: numpy_trials(outputs, targets, TRIALS), repeats=3)
    few = 100
    t_mapie = mapie_trials(outputs, targets, few) / few * TRIALS
    reference = numpy_trials(outputs, targets, TRIALS)
    print(f"\n(a) {TRIALS} random splits, {', '.join(SCORES)} together")
    table(
        ("", "seconds", "times ours"),
        ("taskuq", f"{t_ours:.3f}", "1"),
        ("vectorised NumPy", f"{t_numpy:.2f}", f"{t_numpy / t_ours:.1f}"),
        (f"MAPIE, from {few} splits", f"{t_mapie:.1f}", f"{t_mapie / t_ours:.0f}"),
    )
    for result in found:  # the same numbers, up to the splits drawn
        other = reference[result.score]
        print(f"    {result.score}: coverage {result.coverage.mean:.4f} and {other[0]:.4f}, "
              f"width {result.width.mean:.5f} and {other[1]:.5f}")  # fmt: skip


def summaries(outputs: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Lower anchor, upper anchor and scale of each score, by NumPy."""
    mean, spread = outputs.mean(axis=1), outputs.std(axis=1)
    low, high = np.quantile(outputs, [ALPHA / 2, 1 - ALPHA / 2], axis=1)
    one = np.ones_like(mean)
    return {"ar": (mean, mean, one), "lwr": (mean, mean, spread), "cqr": (low, high, one)}


def numpy_trials(
    outputs: np.ndarray, targets: np.ndarray, trials: int
) -> dict[str, tuple[float, float]]:
    """Reference: permutations in blocks, shared by the scores, and a partition per block."""
    rng = np.random.default_rng(1)
    N = len(targets)
    n = int(SPLIT * N)
    k = ceil((1 - ALPHA) * (n + 1))
    families = summaries(outputs)
    with np.errstate(divide="ignore"):
        scores = {
            name: np.maximum(low - targets, targets - high) / scale
            for name, (low, high, scale) in families.items()
        }
    totals = {name: [0.0, 0.0] for name in families}
    block = 500
    for start in range(0, trials, block):
        count = min(block, trials - start)
        order = rng.permuted(np.tile(np.arange(N), (count, 1)), axis=1)
        fold, test = order[:, :n], order[:, n:]
        for name, (low, high, scale) in families.items():
            q = np.partition(scores[name][fold], k - 1, axis=1)[:, k - 1]
            covered = (scores[name][test] <= q[:, None]).mean(axis=1)
            width = np.maximum((high - low)[test] + 2 * q[:, None] * scale[test], 0).mean(axis=1)
            totals[name][0] += covered.sum()
            totals[name][1] += width.sum()
    return {name: (c / trials, w / trials) for name, (c, w) in totals.items()}


def mapie_trials(outputs: np.ndarray, targets: np.ndarray, trials: int) -> float:
    """Return the seconds of MAPIE for some splits and three scores.

    LWR is the absolute score of scaled targets, which spares MAPIE a model of the spread.
    """
    try:
        from mapie.regression import ConformalizedQuantileRegressor, SplitConformalRegressor
        from sklearn.base import BaseEstimator, RegressorMixin
    except ImportError:
        return float("nan")

    class Column(RegressorMixin, BaseEstimator):
        fitted_ = True

        def __init__(self, column: int = 0) -> None:
            self.column = column

        def fit(self, X: np.ndarray, y: np.ndarray) -> Column:
            return self

        def predict(self, X: np.ndarray) -> np.ndarray:
            return X[:, self.column]

    families = summaries(outputs)
    mean, _, spread = families["lwr"]
    safe = np.where(spread > 0, spread, 1.0)
    low, high, _ = families["cqr"]
    quantiles = np.stack([low, high, (low + high) / 2], axis=1)
    rng = np.random.default_rng(1)
    n = int(SPLIT * len(targets))

    def split_conformal(x: np.ndarray, y: np.ndarray, fold: np.ndarray, test: np.ndarray) -> None:
        model = SplitConformalRegressor(Column(), confidence_level=1 - ALPHA, prefit=True)
        model.conformalize(x[fold, None], y[fold])
        _, interval = model.predict_interval(x[test, None])
        ((interval[:, 0, 0] <= y[test]) & (y[test] <= interval[:, 1, 0])).mean()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        for _ in range(trials):
            order = rng.permutation(len(targets))
            fold, test = order[:n], order[n:]
            split_conformal(mean, targets, fold, test)
            split_conformal(mean / safe, targets / safe, fold, test)
            cqr = ConformalizedQuantileRegressor(
                [Column(0), Column(1), Column(2)], confidence_level=1 - ALPHA, prefit=True
            )
            cqr.conformalize(quantiles[fold], targets[fold])
            _, interval = cqr.predict_interval(quantiles[test], symmetric_correction=True)
            ((interval[:, 0, 0] <= targets[test]) & (targets[test] <= interval[:, 1, 0])).mean()
        return time.perf_counter() - start


def exact_evaluation(outputs: np.ndarray, targets: np.ndarray) -> None:
    print("\n(b) evaluate_exact, milliseconds for one score")
    rows = [("", "unclipped", "clipped to [0, 1]")]
    clipped = np.clip(targets, 0, 1)
    for score in (*SCORES, "mlwr", "learned"):
        times = [
            1e3
            * seconds(
                lambda score=score, range_=range_: tq.evaluate_exact(
                    outputs, clipped, alpha=ALPHA, score=score, task_range=range_
                ),
                repeats=9 if score != "learned" else 3,
            )
            for range_ in (None, (0, 1))
        ]
        rows.append((score, *(f"{t:.2f}" for t in times)))
    table(*rows)


def raw_samples(cases: int) -> None:
    """Calibrate and predict from raw samples, against the summaries by NumPy."""
    outputs, targets = synthetic(cases, 32)

    def ours(score: str) -> Callable[[], object]:
        return lambda: tq.calibrate(outputs, targets, alpha=ALPHA, score=score)(outputs)

    by_numpy = {
        "ar": lambda: outputs.mean(axis=1),
        "lwr": lambda: (outputs.mean(axis=1), outputs.std(axis=1)),
        "cqr": lambda: np.quantile(outputs, [ALPHA / 2, 1 - ALPHA / 2], axis=1),
        "mlwr": lambda: (outputs.mean(axis=1), outputs.var(axis=1, ddof=1)),
    }
    t_all = seconds(lambda: summaries(outputs), repeats=3)
    print(f"\n(c) calibrate and predict from raw samples {outputs.shape} float64, seconds")
    print(f"    NumPy's mean, std and two quantiles take {t_all:.3f}")
    rows = [("", "taskuq", "all of NumPy's / ours", "its own / ours", "peak memory / input")]
    for score in (*SCORES, "mlwr"):
        t_ours = seconds(ours(score))
        t_own = seconds(by_numpy[score], repeats=3)
        peak = peak_over_input(ours(score), outputs.nbytes)
        ratios = (f"{t_all / t_ours:.1f}", f"{t_own / t_ours:.1f}", f"{peak:.2f}")
        rows.append((score, f"{t_ours:.3f}", *ratios))
    table(*rows)


def peak_over_input(work: Callable[[], object], size: int) -> float:
    """Peak memory as a multiple of the input, the input itself included."""
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return 1 + peak / size


def growth() -> None:
    print("\n(d) growth, milliseconds: calibrate + predict (lwr), evaluate_exact, 1000 splits")
    rows = [("cases", "calibrate + predict", "evaluate_exact", "evaluate")]
    for cases in (10**3, 10**4, 10**5, 10**6):
        outputs, targets = synthetic(cases, 32)
        repeats = 3 if cases < 10**6 else 1
        works = (
            lambda x=outputs, z=targets: tq.calibrate(x, z, alpha=ALPHA, score="lwr")(x),
            lambda x=outputs, z=targets: tq.evaluate_exact(x, z, alpha=ALPHA, score="lwr"),
            lambda x=outputs, z=targets: tq.evaluate(
                x, z, alpha=ALPHA, score="lwr", splits=1000, seed=np.random.default_rng(0)
            ),
        )
        rows.append((f"{cases}", *(f"{1e3 * seconds(work, repeats):.2f}" for work in works)))
    table(*rows)


def table(*rows: tuple[str, ...]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        head, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("    " + row[0].ljust(len(head)) + "  " + "  ".join(rest), flush=True)


if __name__ == "__main__":
    main()
