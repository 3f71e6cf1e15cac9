"""Classifier metrics: AUROC, rates and reliability."""

from __future__ import annotations

from typing import Any

import numpy as np

from taskuq.errors import InputError
from taskuq.interval import FloatArray


def auroc(outputs: Any, labels: Any) -> float:
    """Return the area under the ROC curve; ties between outputs count one half."""
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


def classification_rates(outputs: Any, labels: Any) -> dict[str, float]:
    z, y = _checked(outputs, labels)
    called = z > 0.5
    hits = int((called & y).sum())
    return {
        "accuracy": float((called == y).mean()),
        "precision": hits / int(called.sum()) if called.any() else float("nan"),
        "recall": hits / int(y.sum()),
    }


def reliability(outputs: Any, labels: Any, bins: int = 10) -> list[dict[str, float]]:
    """Return the mean output, fraction of positives and number of cases in each non-empty bin."""
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
    columns = np.asarray(labels).reshape(len(labels), -1)
    found = np.unique(columns)
    if not np.isin(found, (0, 1)).all():
        text = f"labels of the {what} are {found[:4].tolist()}; give 0 (absent) and 1 (present)"
        raise InputError(text, code="value.invalid")
    for column in columns.T:
        if len(np.unique(column)) < 2:
            message = f"all labels of the {what} are {column[0]:g}; add others or use another split"
            raise InputError(message, code="units.few")


def _checked(outputs: Any, labels: Any) -> tuple[FloatArray, np.ndarray]:
    z, y = np.asarray(outputs, dtype=float), np.asarray(labels)
    if z.ndim != 1 or z.shape != y.shape:
        message = f"outputs {z.shape} and labels {y.shape} must have one entry per case"
        raise InputError(message, code="shape.mismatch")
    if not np.isfinite(z).all():
        raise InputError("outputs are NaN or infinite; check the network", code="value.nonfinite")
    require_classes(y, "evaluated cases")
    return z, y.astype(bool)
