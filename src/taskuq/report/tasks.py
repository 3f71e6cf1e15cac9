"""The figures of a task network: its ROC curve and its reliability."""

from __future__ import annotations

from typing import Any

from taskuq.report.figure import Figure, Series

PARTS = {"tune": "tuning", "judge": "judged"}


def task_figures(record: dict[str, Any]) -> list[Figure]:
    """Return the figures that the record of a task network supports.

    Arguments:
        record: What :func:`taskuq.task.quality.judge_trained` returns.

    Returns:
        For each task a ROC curve and a reliability curve; regression has none.

    Example:
        >>> row = {"task": "lesion", "auroc": 0.75, "cases": 4, "groups": 2,
        ...        "roc": {"false": [0.0, 0.5, 1.0], "true": [0.0, 1.0, 1.0]},
        ...        "reliability": [{"mean": 0.2, "positive": 0.1, "cases": 4}]}
        >>> [figure.name for figure in task_figures({"parts": {"judge": [row]}})]
        ['roc-lesion', 'reliability-lesion']
    """
    parts = record["parts"]
    tasks = [row["task"] for row in next(iter(parts.values()), []) if "roc" in row]
    return [draw(parts, k, task) for k, task in enumerate(tasks) for draw in (_roc, _reliability)]


def _roc(parts: dict[str, Any], k: int, task: str) -> Figure:
    series = tuple(
        Series(
            f"{PARTS[part]}, AUROC {rows[k]['auroc']:.3f}",
            tuple(rows[k]["roc"]["false"]),
            tuple(rows[k]["roc"]["true"]),
        )
        for part, rows in parts.items()
    )
    return Figure(
        name=f"roc-{task}",
        caption=f"How many findings ({task}) are seen at the price of how many false alarms.",
        x_label="false positive rate",
        y_label="true positive rate",
        series=(*series, Series("chance", (0.0, 1.0), (0.0, 1.0))),
    )


def _reliability(parts: dict[str, Any], k: int, task: str) -> Figure:
    series = tuple(
        Series(
            PARTS[part],
            tuple(bin_["mean"] for bin_ in rows[k]["reliability"]),
            tuple(bin_["positive"] for bin_ in rows[k]["reliability"]),
        )
        for part, rows in parts.items()
    )
    return Figure(
        name=f"reliability-{task}",
        caption=f"How often the finding ({task}) is there, against the probability that was said.",
        x_label="mean output",
        y_label="share with the finding",
        series=(*series, Series("as said", (0.0, 1.0), (0.0, 1.0))),
    )
