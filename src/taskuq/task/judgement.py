"""Judge what a training left: on the patients that chose its weights, and on untouched ones."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from taskuq.task.attack import AttackConfig
from taskuq.task.catalog import load
from taskuq.task.quality import judge_classifier, judge_numbers
from taskuq.task.sources import Part
from taskuq.task.train import ClassifierTraining

SCHEMA = "taskuq.task/1"


def judge_trained(
    settings: ClassifierTraining, weights: Path | str, parts: tuple[Part, Part, Part]
) -> dict[str, Any]:
    """Judge trained weights on tuning patients and on patients that nothing was chosen by.

    Arguments:
        settings: What it was trained with; a network that was trained plainly is judged under the
            paper's attack, scaled to its images.
        weights: The .safetensors file.
        parts: Cases to train on, to tune on, to judge.

    Returns:
        A record with the rows of each part, and the attack.
    """
    network = load(weights).to("cuda" if torch.cuda.is_available() else "cpu")
    attack = settings.attack if settings.attack.radius > 0 else AttackConfig()
    record: dict[str, Any] = {"schema": SCHEMA, "weights": str(weights), "parts": {}}
    for name, part in zip(("tune", "judge"), parts[1:], strict=True):
        if len(part.cases) == 0:
            continue
        if network.config.output == "number":
            record["parts"][name] = judge_numbers(network, part)
        else:
            record["parts"][name] = judge_classifier(network, part, attack)
    if network.config.output == "probability":
        record["attack"] = asdict(attack)
    return record


def table(record: dict[str, Any]) -> list[str]:
    r"""A record as lines of text, one for each part and task.

    Arguments:
        record: What :func:`judge_trained` returns.

    Returns:
        The lines, a header first.

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
