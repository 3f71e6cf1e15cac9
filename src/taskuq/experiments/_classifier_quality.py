"""Claim about the classifier."""

from __future__ import annotations

from typing import Any

import numpy as np

from taskuq.errors import InputError
from taskuq.experiments._claims import ClaimInputs, ClaimSettings, Experiment, listing
from taskuq.report._records import experiment_record
from taskuq.report.figures import Figure
from taskuq.report.figures._imaging import roc, task_figures

CLAIM = (
    "The classifier suffices as a task: relatively high recall, low precision, AUROC 0.922 on the "
    "paper's validation images."
)
MEASURES = ("accuracy", "precision", "recall", "auroc", "robust_accuracy", "robust_auroc")


def _classifier_quality(inputs: ClaimInputs, settings: ClaimSettings) -> dict[str, Any]:
    rows, figures = [], []
    if inputs.lacks(("classes",)) is None:
        row, figure = _from_table(inputs)
        rows.append(row)
        figures.append(figure)
    if inputs.task is not None:
        rows += _from_record(inputs)
        figures += task_figures(dict(inputs.task))
    first = dict(zip(("part", "cases", "positive", *MEASURES), rows[0], strict=True))
    known = [name for name in ("auroc", "accuracy") if first[name] is not None]
    seen = listing(f"{_called(name)} {first[name]:.3f}" for name in known)
    return experiment_record(
        "classifier-quality",
        "The task network as a classifier",
        CLAIM,
        f"Measured: {seen} on {first['cases']} {first['part']}, {first['positive']} with the "
        "finding, deciding at 0.5.",
        {"table": repr(inputs.samples), "threshold": 0.5},
        figures,
        [
            {
                "name": "classifier",
                "caption": "The task network on true images. Robust values are under attack.",
                "columns": ["cases of", "cases", "with finding", *map(_called, MEASURES)],
                "rows": rows,
            }
        ],
        number=f"{_called(known[0])} {first[known[0]]:.3f}" if known else None,
    )


def _called(measure: str) -> str:
    return measure.replace("_", " ").replace("auroc", "AUROC")


def _from_table(inputs: ClaimInputs) -> tuple[list[Any], Figure]:
    # Its package loads torch, which the other experiments do without.
    from taskuq.task._metrics import auroc, classification_rates, roc_curve

    table = inputs.table
    assert table.label is not None
    y = (table.label == np.unique(table.label)[1]).astype(float)
    z = np.asarray(table.targets_at(0))
    found = {**classification_rates(z, y), "auroc": auroc(z, y)}
    false, true = roc_curve(z, y)
    figure = roc(
        {"true images": (false.tolist(), true.tolist())},
        name="roc-table",
        caption=f"ROC curve on the true images of the table (AUROC {found['auroc']:.3f}).",
    )
    part = "cases to calibrate and test on"
    return [part, table.cases, int(y.sum()), *(found.get(m) for m in MEASURES)], figure


def _from_record(inputs: ClaimInputs) -> list[list[Any]]:
    called = {"tune": "tuning cases", "judge": "test cases"}
    try:
        assert inputs.task is not None
        return [
            [called.get(part, part), row["cases"], *map(row.get, ("positive", *MEASURES))]
            for part, of in inputs.task["parts"].items()
            for row in of
        ]
    except (KeyError, TypeError, AttributeError) as error:
        text = f"the task record is incomplete ({error!r:.60}); use taskuq train classifier"
        raise InputError(text, code="file.format") from None


EXPERIMENT = Experiment(_classifier_quality, ("classifier",), "the task network as a classifier")
