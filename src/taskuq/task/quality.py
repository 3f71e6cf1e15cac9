"""How good a task network is on given cases, by itself and under attack."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from taskuq.data.splits import Part
from taskuq.errors import InputError
from taskuq.interval import FloatArray
from taskuq.task.attack import AttackConfig, attacked
from taskuq.task.cases import TaskCases, collate, unit_scale
from taskuq.task.classifier import Classifier, evaluating
from taskuq.task.metrics import auroc, rates, reliability, roc_curve


def judge_classifier(
    network: Classifier, part: Part, attack: AttackConfig | None = None, *, batch: int = 256
) -> list[dict[str, Any]]:
    """Return rates, AUROC, reliability, ROC curve and robustness, a row for each task.

    Arguments:
        network: The task network, on the device to judge it on.
        part: Cases to judge it on.
        attack: An attack under which to judge it once more; None leaves that out.
        batch: Images at a time.

    Example:
        >>> from taskuq.data.arrays import ArrayDataset
        >>> from taskuq.task import build
        >>> data = ArrayDataset(rng.random((4, 32, 32)), label=[0, 1, 0, 1], group="each")
        >>> part = Part(data, np.array([[0.0], [1.0], [0.0], [1.0]]))
        >>> (row,) = judge_classifier(build("classifier", preset="tiny"), part)
        >>> row["task"], row["cases"], row["groups"]
        ('finding', 4, 4)
    """
    if network.config.output != "probability":
        raise InputError(
            "the network gives numbers; judge_classifier judges probabilities",
            code="option.conflict",
        )
    clean = task_outputs(network, part, batch=batch)
    harmed = None
    if attack is not None and attack.radius > 0:
        harmed = task_outputs(network, part, attack, batch=batch)
    tasks = []
    for k, name in enumerate(network.config.tasks):
        z, y = clean[:, k], part.targets[:, k]
        false, true = roc_curve(z, y)
        row: dict[str, Any] = {
            "task": name,
            "cases": len(y),
            "groups": len(np.unique(part.cases.groups)),
            "positive": int(y.sum()),
            **{key: _plain(value) for key, value in rates(z, y).items()},
            "auroc": auroc(z, y),
            "reliability": reliability(z, y),
            "roc": {"false": false.tolist(), "true": true.tolist()},
        }
        if harmed is not None:
            row["robust_accuracy"] = rates(harmed[:, k], y)["accuracy"]
            row["robust_auroc"] = auroc(harmed[:, k], y)
        tasks.append(row)
    return tasks


def judge_numbers(network: Classifier, part: Part, *, batch: int = 256) -> list[dict[str, Any]]:
    """Return mean absolute error and the share of variance explained, a row for each task.

    Arguments:
        network: The task network.
        part: Cases to judge it on.
        batch: Images at a time.

    Example:
        >>> from taskuq.data.arrays import ArrayDataset
        >>> from taskuq.task import build
        >>> data = ArrayDataset(rng.random((2, 32, 32)), label=[0, 1], group="each")
        >>> part = Part(data, np.array([[0.0], [1.0]]))
        >>> (row,) = judge_numbers(build("classifier", preset="tiny"), part)
        >>> sorted(row)
        ['cases', 'error', 'explained', 'groups', 'task']
    """
    z = task_outputs(network, part, batch=batch)
    rows = []
    for k, name in enumerate(network.config.tasks):
        error, y = z[:, k] - part.targets[:, k], part.targets[:, k]
        variance = float(y.var())
        rows.append(
            {
                "task": name,
                "cases": len(y),
                "groups": len(np.unique(part.cases.groups)),
                "error": float(np.abs(error).mean()),
                "explained": 1 - float((error**2).mean()) / variance if variance else None,
            }
        )
    return rows


def task_outputs(
    network: Classifier, part: Part, attack: AttackConfig | None = None, *, batch: int = 256
) -> FloatArray:
    """Return the outputs (case, task) of a network for images, or for them under attack.

    Arguments:
        network: The task network; asked in evaluation mode.
        part: The cases.
        attack: The attack; None leaves the images alone.
        batch: Images at a time.

    Example:
        >>> from taskuq.data.arrays import ArrayDataset
        >>> from taskuq.task import build
        >>> data = ArrayDataset(rng.random((3, 32, 32)), label=[0, 1, 0], group="each")
        >>> part = Part(data, np.array([[0.0], [1.0], [0.0]]))
        >>> task_outputs(build("classifier", preset="tiny"), part).shape
        (3, 1)
    """
    device, cases, outputs = network.shift.device, TaskCases(part.cases, part.targets), []
    with evaluating(network):
        for first in range(0, len(cases), batch):
            chosen = range(first, min(first + batch, len(cases)))
            together = collate([cases[0, index] for index in chosen])
            images = unit_scale(together["image"].to(device))
            if attack is not None:
                images = attacked(network, images, together["target"].to(device), attack)
            with torch.no_grad():
                outputs.append(network.outputs(network.raw(images)).double().cpu().numpy())
    return np.concatenate(outputs)


def _plain(value: float) -> float | None:
    """JSON has no NaN: a rate of nothing is missing."""
    return None if math.isnan(value) else value


SCHEMA = "taskuq.task/1"


def table(record: dict[str, Any]) -> list[str]:
    r"""Return a record as lines of text, a header first and one for each part and task.

    Arguments:
        record: What :func:`taskuq.task.classifier_training.judge_trained` returns.

    Example:
        >>> row = {"task": "lesion", "cases": 100, "groups": 20, "auroc": 0.95, "accuracy": 0.9,
        ...        "precision": None, "recall": 0.85, "robust_accuracy": 0.7}
        >>> print("\n".join(table({"parts": {"judge": [row]}})))
        part   task         cases groups   AUROC accuracy precision  recall  attacked
        judge  lesion         100     20   0.950    0.900         -   0.850     0.700
    """
    rows = [(part, row) for part, found in record["parts"].items() for row in found]
    names = ["auroc", "accuracy", "precision", "recall", "robust_accuracy"]
    heads = [" AUROC", "accuracy", "precision", " recall", " attacked"]
    if rows and "error" in rows[0][1]:
        names, heads = ["error", "explained"], ["mean error", "explained"]
    lines = [f"{'part':6s} {'task':12s} cases groups  " + " ".join(heads)]
    for part, row in rows:
        values = [_number(row.get(n), len(h)) for n, h in zip(names, heads, strict=True)]
        counts = f"{row['cases']:5d} {row['groups']:6d}"
        lines.append(f"{part:6s} {row['task']:12s} {counts}  " + " ".join(values))
    return lines


def _number(value: float | None, width: int) -> str:
    return f"{'-':>{width}s}" if value is None else f"{value:{width}.3f}"
