"""Claim about data splits."""

from __future__ import annotations

from typing import Any

import numpy as np

from taskuq.conformal._splits import fold_sizes
from taskuq.experiments._claims import ClaimInputs, ClaimSettings, Experiment, SubsetMembers, units
from taskuq.report._records import experiment_record

CLAIM = (
    "70 % of the evaluated images calibrate and 30 % test, drawn at random by image: 1531 and 657 "
    "of the paper's 2188."
)


def _data_splits(inputs: ClaimInputs, settings: ClaimSettings) -> dict[str, Any]:
    table = inputs.table
    group = np.arange(table.cases) if table.group is None else np.asarray(table.group)
    whole = SubsetMembers("calibrate and test", group, table.label)
    rows = [_row(part) for part in (*inputs.parts, whole)]
    if table.group is None:
        rows[-1][2] = None
    n, m = fold_sizes(table.cases)
    folds: list[list[Any]] = [["case", "calibrate", n, None], ["case", "test", m, None]]
    sentence = f"{table.cases} cases give {n} to calibrate and {m} to test"
    if any(unit.is_group for unit in units(inputs)):
        sizes = np.unique(group, return_counts=True)[1]
        shared = sum(_shared(int(size), n, table.cases) for size in sizes)
        k, rest = fold_sizes(len(sizes))
        parts = (("calibrate", k), ("test", rest))
        folds += [["group", fold, float(count * sizes.mean()), count] for fold, count in parts]
        sentence += (
            f". Split by case, on average {shared:.1f} of {len(sizes)} groups have cases in both "
            f"folds, so test cases are not independent of calibration; split by group, {k} groups "
            f"calibrate and {rest} test"
        )
    return experiment_record(
        "data-splits",
        "Data splits",
        CLAIM,
        f"Counted: {sentence}.",
        {"table": repr(table)},
        [],
        [
            {
                "name": "parts",
                "caption": "Cases, groups and cases with the finding in each part of the data.",
                "columns": ["part", "cases", "groups", "with finding", "share with finding"],
                "rows": rows,
            },
            {
                "name": "folds",
                "caption": "Folds of a random split of the evaluated cases; by group the number of "
                "cases is a mean.",
                "columns": ["split by", "fold", "cases", "groups"],
                "rows": folds,
            },
        ],
        number=f"{n} calibrate, {m} test",
    )


def _row(part: SubsetMembers) -> list[Any]:
    cases, groups = len(part.group), len(np.unique(part.group))
    if part.label is None or len(classes := np.unique(part.label)) > 2:
        return [part.name, cases, groups, None, None]
    # The larger of two classes is the finding; a part without any has only the smaller.
    is_one = part.label.astype(str) == "1" if len(classes) < 2 else part.label == classes[-1]
    return [part.name, cases, groups, int(is_one.sum()), int(is_one.sum()) / cases]


def _shared(size: int, n: int, total: int) -> float:
    j = np.arange(size)
    inside = np.prod(np.clip(n - j, 0, None) / (total - j))
    outside = np.prod(np.clip(total - n - j, 0, None) / (total - j))
    return float(1 - inside - outside)


EXPERIMENT = Experiment(_data_splits, ("samples",), "who calibrates and who tests")
