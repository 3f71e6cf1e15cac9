"""Tables of docs/results/samplers.md: image quality and calibration of posterior samples.

    python -m studies.samplers [QUALITY.json TABLE] [--into docs/results/samplers.md]

QUALITY.json is written by ``taskuq quality``, TABLE holds task outputs of posterior samples; the
defaults are the bundled files of the atlas.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from studies.paper import markdown, put, shown

import taskuq as tq

BUNDLED = Path(tq.__file__).parent / "table/bundled/atlas-quality.json"


def quality(record: Path = BUNDLED) -> str:
    """Return a table of PSNR and SSIM by method and acceleration."""
    found = json.loads(record.read_text())["results"]
    methods = list(dict.fromkeys(row["method"] for row in found))
    cells = {
        (
            row["acceleration"],
            row["method"],
        ): f"{row['psnr']['mean']:.1f}, {row['ssim']['mean']:.3f}"
        for row in found
    }
    rates = sorted({rate for rate, _ in cells}, reverse=True)
    return markdown(["R", *methods], [[f"{R:g}", *(cells[R, m] for m in methods)] for R in rates])


def spread(record: Path = BUNDLED) -> str:
    """Return a table of the ratio of sample spread to error, for each method that draws samples."""
    found = [r for r in json.loads(record.read_text())["results"] if "spread_error_ratio" in r]
    lines = [
        [f"{r['acceleration']:g}", r["method"], shown(r["spread_error_ratio"], 2),
         shown(r["spread_error_correlation"], 2)]
        for r in found
    ]  # fmt: skip
    return markdown(["R", "method", "spread / error", "rank correlation"], lines)


def calibration(table: tq.TaskOutputs | None = None) -> str:
    """Return a table of CRPS, bias and other diagnostics of the task outputs in each round."""
    diagnosis = tq.diagnose(tq.TaskOutputs.load("atlas-sampler") if table is None else table)
    lines = [
        [one.round or "–", *(f"{e.value:.3g} ± {e.se:.1g}" for e in
         (one.crps, one.outside, one.spread_over_error, one.bias)), one.verdict]
        for one in diagnosis.results
        if one.label is None
    ]  # fmt: skip
    columns = ["round", "CRPS", "outside all samples", "spread / error", "bias", "diagnosis"]
    return markdown(columns, lines)


def main(arguments: list[str]) -> None:
    """Print the tables, or put them into a document."""
    into = Path(arguments.pop()) if "--into" in arguments else None
    paths = [one for one in arguments if one != "--into"]
    record, table = (Path(paths[0]), tq.TaskOutputs.load(paths[1])) if paths else (BUNDLED, None)
    tables = {
        "quality": quality(record), "spread": spread(record), "calibration": calibration(table)
    }  # fmt: skip
    for name, text in tables.items():
        if into is None:
            print(f"{text}\n")
        else:
            put(text, into, name)


if __name__ == "__main__":
    main(sys.argv[1:])
