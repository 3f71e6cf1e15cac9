"""Claim about image quality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taskuq.errors import InputError
from taskuq.experiments import _claims as claims
from taskuq.experiments._claims import ClaimInputs, ClaimSettings, Experiment
from taskuq.report._records import experiment_record
from taskuq.report.figures._imaging import against_acceleration, quality_figures

CLAIM = (
    "Image quality falls as R grows; the variational network is slightly better than the flow's "
    "posterior mean in PSNR and SSIM, and the flow is better in FID."
)
BASE = "zero-filled"
CORRELATION = "spread_error_correlation"


def _recovery_quality(inputs: ClaimInputs, settings: ClaimSettings) -> dict[str, Any]:
    """Convert a quality record into the paper's table, with the gain over zero-filling."""
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
    outcome = _found(rows)
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
                    "spread-error correlation",
                ],
                "rows": [
                    [
                        r["acceleration"], r["method"], r["psnr"]["mean"],
                        r["psnr"]["standard_error"], r["ssim"]["mean"], r["ssim"]["standard_error"],
                        _psnr_gain(r, rows), r.get("fid"), r.get(CORRELATION),
                    ]
                    for r in rows
                ],
            }
        ],
        **outcome,
    )  # fmt: skip


def _rows(record: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    try:
        assert record is not None
        rows = [dict(row) for row in record["results"]]
        for row in rows:
            row["acceleration"], row["method"] = float(row["acceleration"]), str(row["method"])
            for name in ("psnr", "ssim"):
                row[name] = {key: row[name][key] for key in ("mean", "standard_error")}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"the quality record is not complete ({error!r:.60}); make it with taskuq quality",
            code="file.format",
        ) from None
    return rows


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
    """Return the verdict, the finding and the key number."""
    methods = {name: of for name, of in _methods(rows).items() if name != BASE}
    parts, gains_over_base, gained = {}, [], None
    for name, of in methods.items():
        # From the fastest scan to the slowest quality must rise.
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


EXPERIMENT = Experiment(_recovery_quality, ("quality",), "image quality of recoveries")
