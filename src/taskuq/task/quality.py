"""Quality of a task network on given cases, by itself and under attack."""

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
    """Return rates, AUROC, reliability, ROC curve and robustness, a row for each task."""
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
    """Return mean absolute error and the share of variance explained, a row for each task."""
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
    """Return the outputs (case, task) of a network for images, or for them under attack."""
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
    r"""Return a record as lines of text, a header first and one for each part and task."""
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
