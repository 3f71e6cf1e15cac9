"""Diagnostics: CRPS, rank histogram, spread over error, AUROC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from taskuq._arrays import as_outputs_and_targets
from taskuq.errors import InputError
from taskuq.interval import FloatArray


def crps(outputs: Any, targets: Any) -> FloatArray:
    """Return the fair continuous ranked probability score of each case; smaller is better."""
    x, z = _samples(outputs, targets)
    p = x.shape[1]
    # Of the sorted samples the j-th is larger than j others and smaller than the rest.
    weights = (2 * np.arange(p) + 1 - p) / (p * (p - 1))
    return np.asarray(np.abs(x - z[:, None]).mean(axis=1) - np.sort(x, axis=1) @ weights)


def _rank_histogram(outputs: Any, targets: Any) -> FloatArray:
    """Return the share of cases whose target has 0, 1, ..., p samples below it; flat is perfect."""
    x, z = _samples(outputs, targets)
    below, equal = ((compare(x, z[:, None])).sum(axis=1) for compare in (np.less, np.equal))
    change = np.zeros(x.shape[1] + 2)
    np.add.at(change, below, 1 / (equal + 1))
    np.add.at(change, below + equal + 1, -1 / (equal + 1))
    # What is taken away again leaves a rounding error.
    return np.asarray(np.maximum(change.cumsum()[:-1], 0) / len(z))


def _rank_histogram_deviation(histogram: FloatArray) -> float:
    """Return the total variation of a rank histogram from uniform."""
    return float(np.abs(histogram - 1 / len(histogram)).sum() / 2)


def _outside_fraction(outputs: Any, targets: Any) -> FloatArray:
    """Flag cases whose target lies outside all samples."""
    x, z = _samples(outputs, targets)
    return np.asarray((z < x.min(axis=1)) | (z > x.max(axis=1)), dtype=float)


def _group_statistics(
    statistic: Callable[[FloatArray], FloatArray], parts: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return statistics and standard errors over groups."""
    total, n = parts.sum(axis=0), len(parts)
    value = np.asarray(statistic(total))
    if n < 2:
        return value, np.full_like(value, np.nan)
    without = np.array([statistic(parts[np.arange(n) != g].sum(axis=0)) for g in range(n)])
    return value, np.asarray(without.std(axis=0) * (n - 1) ** 0.5)


def _samples(outputs: Any, targets: Any) -> tuple[FloatArray, FloatArray]:
    x, z = as_outputs_and_targets(outputs, targets, None)
    if x.ndim != 2 or x.shape[1] < 2:
        raise InputError(f"outputs have shape {x.shape}; give (case, sample), two samples at least")
    return x.astype(float), z


def auroc(outputs: Any, labels: Any) -> float:
    """Return the probability that a case with the finding scores above one without it."""
    from scipy.stats import rankdata

    z, y = _checked(outputs, labels)
    positives = int(y.sum())
    ranks = rankdata(z)[y].sum() - positives * (positives + 1) / 2
    return float(ranks / (positives * (len(y) - positives)))


def roc_curve(outputs: Any, labels: Any) -> tuple[FloatArray, FloatArray]:
    """Return false and true positive rates at every threshold, from (0, 0) to (1, 1)."""
    z, y = _checked(outputs, labels)
    order = np.argsort(-z, kind="stable")
    z, y = z[order], y[order]
    # Cases with the same output pass a threshold together.
    ends = np.flatnonzero(np.append(np.diff(z) != 0, True))
    true, false = np.cumsum(y)[ends], np.cumsum(~y)[ends]
    return np.append(0.0, false / (~y).sum()), np.append(0.0, true / y.sum())


def classification_rates(outputs: Any, labels: Any, threshold: float = 0.5) -> dict[str, float]:
    """Return accuracy, precision and recall at a threshold."""
    z, y = _checked(outputs, labels)
    called = z > threshold
    hits = int((called & y).sum())
    return {
        "accuracy": float((called == y).mean()),
        "precision": hits / int(called.sum()) if called.any() else float("nan"),
        "recall": hits / int(y.sum()),
    }


def reliability(outputs: Any, labels: Any, bins: int = 10) -> list[dict[str, float]]:
    """Return mean probability, share of positives and number of cases of each bin that has any."""
    z, y = _checked(outputs, labels)
    index = np.minimum((z * bins).astype(int), bins - 1)
    return [
        {
            "mean": float(z[index == k].mean()),
            "positive": float(y[index == k].mean()),
            "cases": int((index == k).sum()),
        }
        for k in range(bins)
        if (index == k).any()
    ]


def require_classes(labels: Any, what: str) -> None:
    """Refuse labels other than 0 and 1, and a set in which one of them is missing."""
    columns = np.asarray(labels).reshape(len(labels), -1)
    found = np.unique(columns)
    if not np.isin(found, (0, 1)).all():
        odd = [f"{value:g}" for value in found if value not in (0, 1)]
        raise InputError(
            f"labels of the {what} hold {', '.join(odd[:3])}; give 0 (absent) and 1 (present)",
            code="value.invalid",
        )
    for column in columns.T:
        if len(np.unique(column)) < 2:
            raise InputError(
                f"all {len(column)} labels of the {what} are {column[0]:g}; give patients with and "
                "without the finding, or another split",
                code="units.few",
            )


def _checked(outputs: Any, labels: Any) -> tuple[FloatArray, np.ndarray]:
    z, y = np.asarray(outputs, dtype=float), np.asarray(labels)
    if z.ndim != 1 or z.shape != y.shape:
        raise InputError(
            f"{z.shape} outputs for {y.shape} labels; give one of each for each case",
            code="shape.mismatch",
        )
    if not np.isfinite(z).all():
        raise InputError(
            "outputs hold NaN or infinite values; repair the network first", code="value.nonfinite"
        )
    require_classes(y, "judged cases")
    return z, y.astype(bool)
