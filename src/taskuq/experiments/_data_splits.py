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
    """Count cases, groups and findings in each part of the data and in each fold."""
    table = inputs.table
    group = np.arange(table.cases) if table.group is None else np.asarray(table.group)
    whole = SubsetMembers("calibrate and test", group, table.label)
    rows = [_row(part) for part in inputs.parts]
    rows.append(_row(whole, has_groups=table.group is not None))
    n, m = fold_sizes(table.cases)
    folds: list[list[Any]] = [["case", "calibrate", n, None], ["case", "test", m, None]]
    sentence = f"{table.cases} cases give {n} to calibrate and {m} to test"
    if any(unit.is_group for unit in units(inputs)):
        sizes = np.unique(group, return_counts=True)[1]
        shared = sum(_shared(int(size), n, table.cases) for size in sizes)
        k, rest = fold_sizes(len(sizes))
        folds += [
            ["group", "calibrate", float(k * sizes.mean()), k],
            ["group", "test", float(rest * sizes.mean()), rest],
        ]
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


def _row(part: SubsetMembers, *, has_groups: bool = True) -> list[Any]:
    cases = len(part.group)
    groups = len(np.unique(part.group)) if has_groups else None
    classes = None if part.label is None else np.unique(part.label)
    if part.label is None or classes is None or len(classes) > 2:
        return [part.name, cases, groups, None, None]
    # The larger of two classes is the finding; a part without any has only the smaller.
    positive = (
        int((part.label.astype(str) == "1").sum())
        if len(classes) < 2
        else int((part.label == classes[-1]).sum())
    )
    return [part.name, cases, groups, positive, positive / cases]


def _shared(size: int, n: int, total: int) -> float:
    j = np.arange(size)
    inside = np.prod(np.clip(n - j, 0, None) / (total - j))
    outside = np.prod(np.clip(total - n - j, 0, None) / (total - j))
    return float(1 - inside - outside)


EXPERIMENT = Experiment(_data_splits, ("samples",), "who calibrates and who tests")
