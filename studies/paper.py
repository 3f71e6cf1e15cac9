"""Tables of docs/results/paper.md, from results of ``taskuq experiment all`` or ``taskuq demo``.

    python -m studies.paper RUN_DIR                                       # prints the tables
    python -m studies.paper RUN_DIR --into docs/results/paper.md --as atlas

The second form replaces the blocks ``<!-- atlas lengths -->`` to ``<!-- end of atlas lengths -->``
and writes the tables of all experiments as CSV files to the folder ``atlas`` next to the document.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

NOT_TESTED = "not tested"
CLAIMS_FILE = "claims.csv"
Row = dict[str, Any]
Records = dict[str, dict[str, Any]]
# Figures and tables of the paper, their statements, and the experiments that test them.
CLAIMS = (
    (
        "interval length against R",
        "shorter at smaller R, and shorter for LWR and CQR than for AR",
        "interval-length",
    ),
    ("interval length against p", "LWR is much more sensitive to small p than CQR", "sample-count"),
    ("empirical coverage at R = 8", "the mean is very close to 0.95", "coverage-law"),
    ("class and size coverage at R = 8", "close to 0.95; lowest for AR", "conditional-coverage"),
    (
        "multi-round table",
        "mean R is 2.00 (AR), 5.16 (LWR), 6.76 (CQR); coverage 0.99",
        "paper-protocol",
    ),
    (
        "(not in the paper)",
        "mean R is higher for LWR and CQR than for AR, and highest for fixed-width, which covers "
        "1 − α",
        "multi-round",
    ),
    ("masks", "nested; centres of 9, 16, 24, 32 lines", "masks"),
    ("images in each fold", "1531 calibration images, 656 test images", "data-splits"),
    ("PSNR, SSIM, FID", "VarNet has higher PSNR and SSIM than the flow", "recovery-quality"),
    ("classifier", "accuracy 0.775, AUROC 0.922", "classifier-quality"),
)


def read_records(folder: Path) -> Records:
    """Read experiment results, from the JSON files of a run or the CSV files of ``write_csv``."""
    if (folder / CLAIMS_FILE).exists():
        with (folder / CLAIMS_FILE).open(newline="") as file:
            records: Records = {row["name"]: {**row, "tables": []} for row in csv.DictReader(file)}
        for name, record in records.items():
            for path in sorted(folder.glob(f"{name}--*.csv")):
                with path.open(newline="") as file:
                    columns, *lines = csv.reader(file)
                table = {"name": path.stem.partition("--")[2], "columns": columns}
                record["tables"].append({**table, "rows": [[*map(_value, row)] for row in lines]})
        return records
    found = (json.loads(path.read_text()) for path in sorted(folder.rglob("*.json")))
    known = {experiment for *_, experiment in CLAIMS}
    return {r["name"]: r for r in found if isinstance(r, dict) and r.get("name") in known}


def _value(text: str) -> float | str | None:
    try:
        return float(text) if text else None
    except ValueError:
        return text


def write_csv(records: Records, folder: Path) -> None:
    """Write the outcome of each claim and the tables of all experiments as CSV files."""
    folder.mkdir(parents=True, exist_ok=True)
    verdicts = [[name, verdict(record)] for name, record in records.items()]
    _write_rows(folder / CLAIMS_FILE, [["name", "verdict"], *verdicts])
    for name, record in records.items():
        for table in record["tables"]:
            if table["name"] != "summary":
                path = folder / f"{name}--{table['name']}.csv"
                _write_rows(path, [table["columns"], *table["rows"]])


def _write_rows(path: Path, rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def rows(record: dict[str, Any], table: str) -> list[Row]:
    """Return the rows of a named table as dictionaries, or [] if there is no such table."""
    for one in record["tables"]:
        if one["name"] == table:
            return [dict(zip(one["columns"], row, strict=True)) for row in one["rows"]]
    return []


def verdict(record: dict[str, Any] | None) -> str:
    """Return the outcome of a claim, e.g. 'supported', from the result of an experiment."""
    return (record or {}).get("verdict") or NOT_TESTED


def shown(value: Any, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def markdown(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with the given column heads and rows."""
    head, *body = (f"| {' | '.join(line)} |" for line in (columns, *lines))
    return "\n".join([head, "|---" * len(columns) + "|", *body])


def claims(records: Records) -> str:
    """Return a table of the paper's claims and the outcome of each."""
    lines = [
        [item, statement, f"`{experiment}`", verdict(records.get(experiment))]
        for item, statement, experiment in CLAIMS
    ]
    return markdown(["paper", "claim", "experiment", "result"], lines)


def _pivot(found: list[Row], along: str, value: str, by: str = "score") -> str:
    """Return a Markdown table: a row per value of ``by``, a column per value of ``along``."""
    heads = list(dict.fromkeys(row[along] for row in found))
    cells = {(row[by], row[along]): shown(row[value]) for row in found}
    names = dict.fromkeys(row[by] for row in found)
    columns = [by, *(f"{along} = {h:g}" if isinstance(h, float) else str(h) for h in heads)]
    return markdown(columns, [[str(n), *(cells.get((n, h), "–") for h in heads)] for n in names])


def lengths(records: Records) -> str:
    """Return a table of mean lengths of clipped intervals by score and R, for splits by group."""
    return _pivot(rows(records["interval-length"], "by-group"), "R", "length")


def sample_lengths(records: Records) -> str:
    """Return a table of the mean length of unclipped intervals by number of posterior samples."""
    found = rows(records["sample-count"], "by-case")
    return _pivot([{**r, "p": float(r["p"])} for r in found], "p", "unclipped length")


def coverage(records: Records) -> str:
    """Return a table of the mean coverage of each score, over splits by case and by group."""
    record = records["coverage-law"]
    by_group = {r["score"]: r["coverage"] for r in rows(record, "by-group")}
    lines = [
        [r["score"], shown(r["coverage"], 4), shown(by_group.get(r["score"]), 4)]
        for r in rows(record, "by-case")
    ]
    return markdown(["score", "by case", "by group"], lines)


def protocol(records: Records) -> str:
    """Return a table of mean R, coverage and error for the paper's multi-round protocol."""
    lines = [
        [r["score"], *(f"{shown(r[name])} ± {shown(r[sd])}" for name, sd in PROTOCOL.items())]
        for r in rows(records["paper-protocol"], "protocol")
    ]
    return markdown(["score", *PROTOCOL], lines)


PROTOCOL = {
    "average R": "sd R",
    "coverage": "sd coverage",
    "max centre error": "sd max centre error",
}
POLICIES = ("paper lwr", "paper cqr", "fixed-width spread", "fixed-width learned")


def policies(records: Records) -> str:
    """Return a table of the mean acceleration and coverage of each policy, for splits by group."""
    goals: dict[tuple[float, float], Row] = {}
    for row in rows(records["multi-round"], "by-group"):
        goals.setdefault((row["alpha"], row["max width"]), {})[row["policy"]] = row
    lines = [
        [f"{alpha:g}, {width:g}", *(stopped(by_name.get(name)) for name in POLICIES)]
        for (alpha, width), by_name in goals.items()
    ]
    return markdown(["α, τ", *POLICIES], lines)


def stopped(row: Row | None) -> str:
    return "–" if row is None else f"{row['average R']:.2f} ({row['coverage']:.3f})"


TABLES: dict[str, tuple[str | None, Callable[[Records], str]]] = {
    "claims": (None, claims),
    "lengths": ("interval-length", lengths),
    "samples": ("sample-count", sample_lengths),
    "coverage": ("coverage-law", coverage),
    "protocol": ("paper-protocol", protocol),
    "policies": ("multi-round", policies),
}


def tables(records: Records) -> dict[str, str]:
    """Return all tables of the page, except those of experiments without results."""
    return {
        name: make(records)
        for name, (experiment, make) in TABLES.items()
        if experiment is None or experiment in records
    }


def block(document: str, name: str) -> str | None:
    """Return the content of a named block of a document, or None if there is no such block."""
    _, found, rest = document.partition(f"<!-- {name} -->\n")
    return rest.partition(f"<!-- end of {name} -->")[0].strip("\n") if found else None


def put(text: str, document: Path, name: str) -> None:
    """Replace the content of a named block of a document by ``text``."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, found, rest = document.read_text().partition(begin)
    if not found or end not in rest:
        raise SystemExit(f"{document} has no block {name}")
    document.write_text(f"{before}{begin}\n{text}\n\n{end}{rest.partition(end)[2]}")


def main(arguments: list[str] | None = None) -> None:
    """Print the tables of a run, or write them into a document and as CSV files."""
    given = arguments or []
    if len(given) == 5 and given[1] == "--into" and given[3] == "--as":
        records, document = read_records(Path(given[0])), Path(given[2])
        for name, text in tables(records).items():
            put(text, document, f"{given[4]} {name}")
        write_csv(records, document.parent / given[4])
    elif len(given) == 1:
        print("\n\n".join(tables(read_records(Path(given[0]))).values()))
    else:
        print("python -m studies.paper RUN_DIR [--into docs/results/paper.md --as NAME]")


if __name__ == "__main__":
    main(sys.argv[1:])
