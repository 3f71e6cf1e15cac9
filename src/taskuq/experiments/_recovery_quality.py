"""Claim about image quality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from taskuq._io import complete_record, open_npz
from taskuq.conformal._calibrate import calibrate
from taskuq.errors import InputError
from taskuq.experiments import _claims as claims
from taskuq.experiments._claims import ClaimInputs, ClaimSettings, Experiment, StoredExample
from taskuq.interval import BoolArray, FloatArray
from taskuq.report._records import experiment_record
from taskuq.report.figures._imaging import (
    Example,
    against_acceleration,
    example_figure,
    quality_figures,
)
from taskuq.table._table import TaskOutputs

CLAIM = (
    "Image quality falls as R grows; the variational network is slightly better than the flow's "
    "posterior mean in PSNR and SSIM, and the flow is better in FID."
)
BASE = "zero-filled"
CORRELATION = "spread_error_correlation"
DISTANCES = ("lpips", "dists")


def _recovery_quality(inputs: ClaimInputs, settings: ClaimSettings) -> dict[str, Any]:
    rows = _rows(inputs.quality)
    figures = [
        *quality_figures({"results": rows}),
        against_acceleration(
            [(r, _psnr_gain(r, rows)) for r in rows if r["method"] != BASE],
            name="gain-over-zero-filled",
            caption="PSNR above that of the zero-filled image, in dB, against acceleration.",
            y_label="gain (dB)",
        ),
        against_acceleration(
            [(r, r[CORRELATION]) for r in rows if CORRELATION in r],
            name="spread-error-correlation",
            caption="Correlation between the pixel-wise spread of posterior samples and the error "
            "of their mean, against acceleration; 1 would predict every error.",
            y_label="correlation",
        ),
    ]
    outcome, distances = _found(rows), [d for d in DISTANCES if any(d in r for r in rows)]
    return experiment_record(
        "recovery-quality",
        "Image quality of reconstructions",
        CLAIM,
        str(outcome.pop("finding")),
        {
            "methods": list(_methods(rows)),
            "accelerations": sorted({r["acceleration"] for r in rows}),
        },
        [figure for figure in figures if not figure.is_empty],
        [
            {
                "name": "quality",
                "caption": "PSNR and SSIM of whole volumes (of the posterior mean, for a flow), "
                "their gain over zero-filling, FID of single images, and the correlation of "
                "pixel-wise spread and error. Errors are standard errors over volumes.",
                "columns": [
                    "R", "method", "PSNR", "± PSNR", "SSIM", "± SSIM", "PSNR gain", "FID",
                    "spread-error correlation", *(name.upper() for name in distances),
                ],
                "rows": [
                    [
                        r["acceleration"], r["method"], r["psnr"]["mean"],
                        r["psnr"]["standard_error"], r["ssim"]["mean"], r["ssim"]["standard_error"],
                        _psnr_gain(r, rows), r.get("fid"), r.get(CORRELATION),
                        *(r[name]["mean"] if name in r else None for name in distances),
                    ]
                    for r in rows
                ],
            }
        ],
        **outcome,
    )  # fmt: skip


def _rows(record: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    assert record is not None
    with complete_record("the quality record", "record", "make it with taskuq quality"):
        rows = [dict(row) for row in record["results"]]
        for row in rows:
            row["acceleration"], row["method"] = float(row["acceleration"]), str(row["method"])
            for name in ("psnr", "ssim"):
                row[name] = {k: _number(row[name][k]) for k in ("mean", "standard_error")}
            row |= {name: _number(row[name]) for name in ("fid", CORRELATION) if name in row}
    return rows


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _methods(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[float, Mapping[str, Any]]]:
    methods: dict[str, dict[float, Mapping[str, Any]]] = {}
    for row in rows:
        methods.setdefault(row["method"], {})[row["acceleration"]] = row
    return methods


def _psnr_gain(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> float | None:
    base = _methods(rows).get(BASE, {}).get(row["acceleration"])
    if base is None or row["method"] == BASE:
        return None
    mine, zero = row["psnr"]["mean"], base["psnr"]["mean"]
    return None if mine is None or zero is None else mine - zero


def _found(rows: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
    methods = {name: of for name, of in _methods(rows).items() if name != BASE}
    parts, gains_over_base, gained = {}, [], None
    for name, of in methods.items():
        levels = [of[R]["psnr"]["mean"] for R in sorted(of)]
        known = [v for v in levels if v is not None]
        if len(known) > 1:
            parts[f"the quality of {name} falls as R grows"] = claims.is_decreasing(known)
        gains = [g for r in of.values() if (g := _psnr_gain(r, rows)) is not None]
        if gains:
            gains_over_base.append(
                f"{name} is {claims.format_range(gains, 1)} dB above zero-filling"
            )
            gained = gained or f"{name} +{claims.format_range(gains, 1)} dB"
    for measure, better in (("psnr", "varnet"), ("ssim", "varnet"), ("fid", "flow")):
        pairs = _pairs(methods, measure)
        wins = sum((v > f) if measure != "fid" else (f < v) for v, f in pairs)
        if pairs:
            of_all = "" if wins == len(pairs) else f" ({wins} of {len(pairs)})"
            parts[f"the {better} is better in {measure.upper()} at every R{of_all}"] = not of_all
    wrong = [f"that {part}" for part, right in parts.items() if not right]
    but = [f"not confirmed: {claims.listing(wrong)}"] if wrong else []
    but += [] if any("fid" in r for r in rows) else ["FID was not measured"]
    outcome = claims.verdict(parts.values())
    found = (
        claims.listing(gains_over_base) if gains_over_base else "there is nothing to compare with"
    )
    return {
        "finding": claims.finding(outcome, found, "; ".join(but)), "verdict": outcome,
        "number": gained,
        "criterion": "Quality falls as R grows; at every R the variational network is better in "
        "PSNR and SSIM, and the flow in FID.",
    }  # fmt: skip


def _pairs(methods: Mapping[str, Any], measure: str) -> list[tuple[float, float]]:
    def value(row: Mapping[str, Any]) -> float | None:
        found = row.get(measure)
        return found["mean"] if isinstance(found, Mapping) else found

    varnet, flow = methods.get("varnet", {}), methods.get("flow", {})
    pairs = [(value(varnet[R]), value(flow[R])) for R in varnet if R in flow]
    return [(v, f) for v, f in pairs if v is not None and f is not None]


MOST_EXAMPLES = 2


def _examples(inputs: ClaimInputs, settings: ClaimSettings) -> dict[str, Any]:
    table = inputs.table
    shown = list(inputs.examples or stored_examples(table, inputs.point))
    if settings.cases:
        known = {one.case: one for one in shown}
        if missing := [name for name in settings.cases if name not in known]:
            text = f"no image of case {missing[0]} is stored; choose from {', '.join(known)}"
            raise InputError(text, code="choice.unknown")
        shown = [known[name] for name in settings.cases]
    else:
        # Cases with an annotation first, then those whose output is least certain.
        shown.sort(key=lambda one: (one.box is None, -float(np.std(one.outputs[0]))))
        shown = shown[:MOST_EXAMPLES]
    rates = [float(R) for R in settings.accelerations or table.accelerations]
    rounds = [table.round_index(R) for R in rates]
    groups = {one.group for one in shown} if table.group is not None else set()
    names = np.arange(table.cases).astype(str) if table.case is None else table.case.astype(str)
    own = np.isin(names, [one.case for one in shown])
    if table.group is not None:
        own |= np.isin(table.group.astype(str), list(groups))
    figures, rows, narrower = [], [], 0
    for one in shown:
        intervals = _intervals(table, own, one.outputs, rounds, "cqr", settings.alpha)
        point = None
        if one.point is not None and one.point_outputs is not None:
            source = table if inputs.point is None else inputs.point
            outputs = one.point_outputs[:, None]
            point = _intervals(source, own, outputs, rounds, "ar", settings.alpha)
        example = Example(
            one.case, one.truth, rates, one.mean[rounds], one.sd[rounds], intervals, one.target,
            None if one.point is None else one.point[rounds], point, one.box,
        )  # fmt: skip
        figures.append(example_figure(example, table.task_names[0], settings.alpha))
        for name, ends in (("CQR, samples", intervals), ("AR, point network", point)):
            if ends is not None:
                z = one.target
                rows += [
                    [one.case, R, name, float(low), float(high), z, bool(low <= z <= high)]
                    for R, (low, high) in zip(rates, ends, strict=True)
                ]
        widths = np.diff(intervals)[:, 0].clip(0)
        narrower += bool(widths[-1] <= widths[0])
    return experiment_record(
        "examples",
        "Example reconstructions and intervals",
        "The prediction intervals shrink as the posterior samples become more consistent; maps of "
        "the pixel-wise standard deviation are difficult to connect to the task.",
        f"Shown for {claims.listing(one.case for one in shown)}, at R = "
        f"{', '.join(f'{R:g}' for R in rates)}; in {narrower} of {len(shown)} cases the interval "
        "is no wider in the last round than in the first.",
        {**settings.used("alpha"), "accelerations": rates, "cases": [one.case for one in shown]},
        figures,
        [
            {
                "name": "intervals",
                "caption": f"Intervals at level {1 - settings.alpha:g}, calibrated on all other "
                "groups of the table.",
                "columns": ["case", "R", "method", "lower", "upper", "true image", "covered"],
                "rows": rows,
            }
        ],
        number=f"{len(shown)} cases",
    )


def _intervals(
    table: TaskOutputs, own: BoolArray, outputs: FloatArray, rounds: Sequence[int], score: str,
    alpha: float,
) -> FloatArray:  # fmt: skip
    rest, found = table.select(cases=np.flatnonzero(~own)), []
    for k in rounds:
        bound = calibrate(
            rest, alpha=alpha, score=score, acceleration=float(table.accelerations[k])
        )
        interval = bound(outputs[k][None])
        found.append((float(interval.lower[0]), float(interval.upper[0])))
    return np.array(found, dtype=float)


def stored_examples(table: TaskOutputs, point: TaskOutputs | None) -> list[StoredExample]:
    assert table.images_path is not None
    images, others = _images(table.images_path), {}
    if point is not None and point.images_path is not None:
        others = _images(point.images_path)
    boxes = _boxes(table, list(images))
    names = [str(i) for i in range(table.cases)] if table.case is None else table.case.tolist()
    place = {str(name): i for i, name in enumerate(names)}
    found = []
    for case, of in images.items():
        if case not in place or of["truth"].ndim != 2:
            continue
        i = place[case]
        group = "" if table.group is None else str(table.group[i])
        outputs, target = table.outputs[:, i], float(np.asarray(table.targets_at(0))[i])
        one = StoredExample(
            case, group, of["truth"], of["mean"], of["sd"], np.asarray(outputs, float), target,
            box=boxes.get(case),
        )  # fmt: skip
        if point is not None and case in others:
            own = np.asarray(point.outputs[:, i, 0], float)
            one = replace(one, point=others[case]["mean"], point_outputs=own)
        found.append(one)
    return found


def _images(path: Path) -> dict[str, dict[str, FloatArray]]:
    with open_npz(path, "images") as file:
        arrays = {name: np.asarray(file[name]) for name in ("case", "truth", "mean", "sd")}
    names = arrays.pop("case")
    return {str(c): {k: v[i] for k, v in arrays.items()} for i, c in enumerate(names)}


def _boxes(table: TaskOutputs, cases: list[str]) -> dict[str, tuple[slice, slice]]:
    data = dict(table.provenance.get("configuration", {}).get("data") or {})
    if not data:
        return {}
    from taskuq._config import from_registry
    from taskuq.data._readers import READERS

    try:
        return from_registry(READERS, data, "data").boxes(cases)
    except InputError:  # moved or deleted data; images are shown without a box
        return {}


EXAMPLES = Experiment(_examples, ("images",), "example reconstructions and intervals")
EXPERIMENT = Experiment(_recovery_quality, ("quality",), "image quality of recoveries")
