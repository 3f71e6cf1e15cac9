"""Claim about masks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from taskuq.experiments._claims import ClaimInputs, ClaimSettings, Experiment, finding, verdict
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
from taskuq.report.figures._imaging import masks_figure

CLAIM = (
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
        CLAIM,
        finding(verdict(outcomes), "; ".join(sentences)),
        {"accelerations": list(rates), "width": int(first.shape[1])}
        | (settings.used("seed") if "rule" in sets else {}),
        [masks_figure(first, rates)],
        [_table(name, masks, rates) for name, (masks, rates) in sets.items()],
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


def _table(name: str, masks: BoolArray, rates: Any) -> dict[str, Any]:
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


EXPERIMENT = Experiment(_sampling_masks, ("masks",), "sampling masks")
