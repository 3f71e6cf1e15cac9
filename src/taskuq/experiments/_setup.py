"""Claims about the setup of the experiment: masks, data splits and classifier."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from taskuq._io import complete_record
from taskuq.conformal._splits import fold_sizes
from taskuq.errors import InputError
from taskuq.experiments._claims import (
    ClaimInputs,
    ClaimSettings,
    Experiment,
    SubsetMembers,
    finding,
    listing,
    units,
    verdict,
)
from taskuq.interval import BoolArray
from taskuq.measure._masks import (
    acs_width,
    acs_widths,
    center_lines,
    masks_from_text,
    nested_masks,
    published_masks,
)
from taskuq.report._records import experiment_record
from taskuq.report.figures import Figure
from taskuq.report.figures._imaging import masks_figure, roc, task_figures

MASKS_CLAIM = (
    "The masks are nested: each contains all lines of the masks at higher acceleration. Each "
    "measures one line in R, and the fully sampled centre widens from round to round (9, 16, 24 "
    "and 32 of 320 lines)."
)
PUBLISHED = (16.0, 8.0, 4.0, 2.0)


def _sampling_masks(inputs: ClaimInputs, settings: ClaimSettings) -> dict[str, Any]:
    sets = {}
    if (used := _used(inputs)) is not None:
        sets["masks"] = used
    if not sets or inputs.published:
        sets |= {
            "published": (published_masks(PUBLISHED), PUBLISHED),
            "rule": (nested_masks(320, PUBLISHED, seed=settings.seed), PUBLISHED),
        }
    sentences, outcomes = [], []
    for name, (masks, rates) in sets.items():
        nested = all(bool((a <= b).all()) for a, b in pairwise(masks))
        width = masks.shape[1]
        counts = [round(width / R) for R in rates]
        centers = [acs_width(m) for m in masks]
        # A run may be longer than designed where a line next to it happens to be measured.
        designed = acs_widths(width, rates, counts)
        whole = [
            bool(m[center_lines(width, c)].all()) for m, c in zip(masks, designed, strict=True)
        ]
        outcomes += [nested, masks.sum(axis=1).tolist() == counts, all(whole)]
        outcomes.append(all(b >= a for a, b in pairwise(centers)))
        sentences.append(
            f"{_CALLED[name]} are {'nested' if nested else 'not nested'} and have contiguous "
            f"centres of {', '.join(map(str, centers))} lines"
            + ("" if all(whole) else f", where {', '.join(map(str, designed))} are designed")
        )
    first, rates = next(iter(sets.values()))
    return experiment_record(
        "masks",
        "Sampling masks",
        MASKS_CLAIM,
        finding(verdict(outcomes), "; ".join(sentences)),
        {"accelerations": list(rates), "width": int(first.shape[1])}
        | (settings.used("seed") if "rule" in sets else {}),
        [masks_figure(first, rates)],
        [_masks_table(name, masks, rates) for name, (masks, rates) in sets.items()],
        verdict=verdict(outcomes),
        criterion="All masks are nested, measure one line in R, and have a contiguous centre of "
        "the paper's size that widens from round to round.",
        # Other masks must not be taken for the paper's.
        number=f"{'' if 'masks' in sets else 'the paper: '}"
        f"{', '.join(str(int(m.sum())) for m in first)} of {first.shape[1]} lines",
    )


def _used(inputs: ClaimInputs) -> tuple[BoolArray, tuple[float, ...]] | None:
    if inputs.masks is not None:
        return np.asarray(inputs.masks, dtype=bool), inputs.mask_accelerations
    table = inputs.samples or inputs.point
    made = {} if table is None else table.provenance.get("configuration", {})
    if "masks" not in made:
        return None
    return masks_from_text(made["masks"]), tuple(made["measure"]["accelerations"])


_CALLED = {
    "masks": "the masks of the run",
    "published": "the published masks",
    "rule": "masks made by the rule of the text",
}


def _masks_table(name: str, masks: BoolArray, rates: Any) -> dict[str, Any]:
    width, rows = masks.shape[1], []
    earlier = (np.zeros_like(masks[0]), *masks[:-1])
    for before, mask, R in zip(earlier, masks, rates, strict=True):
        center, new = acs_width(mask), mask & ~before
        outside = np.flatnonzero(new & ~center_lines(width, center))
        far = float(np.abs(outside - width // 2).mean()) if outside.size else None
        rows.append([float(R), int(mask.sum()), width, center, int(new.sum()), far])
    return {
        "name": name,
        "caption": f"Lines of {_CALLED[name]}: the contiguous centre, the lines that each round "
        "adds, and their mean distance from the centre if they lie outside it.",
        "columns": ["R", "lines", "of", "centre", "new", "mean distance"],
        "rows": rows,
    }


MASKS = Experiment(_sampling_masks, ("masks",), "sampling masks")


SPLITS_CLAIM = (
    "70 % of the evaluated images calibrate and 30 % test, drawn at random by image: 1531 and 657 "
    "of the paper's 2188."
)


def _data_splits(inputs: ClaimInputs, settings: ClaimSettings) -> dict[str, Any]:
    table = inputs.table
    group = np.arange(table.cases) if table.group is None else np.asarray(table.group)
    whole = SubsetMembers("calibrate and test", group, table.label)
    rows = [_part_row(part) for part in (*inputs.parts, whole)]
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
        SPLITS_CLAIM,
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


def _part_row(part: SubsetMembers) -> list[Any]:
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


DATA_SPLITS = Experiment(_data_splits, ("samples",), "folds for calibration and test")


CLASSIFIER_CLAIM = (
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
        found = _from_record(inputs.task)
        rows += found[0]
        figures += found[1]
    first = dict(zip(("part", "cases", "positive", *MEASURES), rows[0], strict=True))
    known = [name for name in ("auroc", "accuracy") if first[name] is not None]
    seen = listing(f"{_measure_name(name)} {first[name]:.3f}" for name in known)
    return experiment_record(
        "classifier-quality",
        "The task network as a classifier",
        CLASSIFIER_CLAIM,
        f"Measured: {seen} on {first['cases']} {first['part']}, {first['positive']} with the "
        "finding, deciding at 0.5.",
        {"table": repr(inputs.samples), "threshold": 0.5},
        figures,
        [
            {
                "name": "classifier",
                "caption": "The task network on true images. Robust values are under attack.",
                "columns": ["cases of", "cases", "with finding", *map(_measure_name, MEASURES)],
                "rows": rows,
            }
        ],
        number=f"{_measure_name(known[0])} {first[known[0]]:.3f}" if known else None,
    )


def _measure_name(measure: str) -> str:
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


def _from_record(record: Mapping[str, Any]) -> tuple[list[list[Any]], list[Figure]]:
    called = {"tune": "tuning cases", "judge": "test cases"}
    with complete_record("the task record", "classifier record", "use taskuq train classifier"):
        rows = [
            [called.get(part, part), row["cases"], row.get("positive")]
            + [None if row.get(name) is None else float(row[name]) for name in MEASURES]
            for part, of in record["parts"].items()
            for row in of
        ]
        if not rows:
            raise InputError("the task record has no part; train again", code="file.format")
        return rows, task_figures(dict(record))


CLASSIFIER_QUALITY = Experiment(
    _classifier_quality, ("classifier",), "the task network as a classifier"
)
