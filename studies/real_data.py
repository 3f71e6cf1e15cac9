"""The tables of docs/results/real-data.md, from the records of its runs.

    python -m studies.real_data RUNS                         # prints them
    python -m studies.real_data RUNS --into docs/results/real-data.md

RUNS has one folder of ``taskuq experiment all`` for each task network: lgg-adversarial and
lgg-plain. The second form replaces what stands between ``<!-- lengths -->`` and
``<!-- end of lengths -->``, and the same for samples and scans.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from studies.paper import Row, put, rows

NETWORKS = ("adversarial", "plain")
UNITS = {"slice": "by-case", "patient": "by-group"}
SCORES = ("ar", "lwr", "cqr", "mlwr", "learned")
POLICIES = ("paper lwr", "paper cqr", "fixed-width spread")


def lengths(records: dict[str, Any]) -> str:
    """Mean length of intervals, cut to the range."""
    lines = ["| task network | unit | R | AR | LWR | CQR | mLWR | learned |", "|---" * 8 + "|"]
    for network, record in records.items():
        for unit, table in UNITS.items():
            found = {(r["R"], r["score"]): r["length"] for r in rows(record, table)}
            for R in sorted({R for R, _ in found}, reverse=True):
                values = " | ".join(f"{found[R, score]:.3f}" for score in SCORES)
                lines.append(f"| {network} | {unit} | {R:g} | {values} |")
    return "\n".join(lines)


def samples(records: dict[str, Any]) -> str:
    """Mean length before it is cut, with many samples and with few."""
    lines = ["| task network | LWR | CQR | mLWR |", "|---" * 4 + "|"]
    for network, record in records.items():
        found = {(r["p"], r["score"]): r["length not cut"] for r in rows(record, UNITS["slice"])}
        most, least = max(p for p, _ in found), min(p for p, _ in found)
        values = " | ".join(
            f"{found[most, score]:.2f} → {found[least, score]:.2f}"
            for score in ("lwr", "cqr", "mlwr")
        )
        lines.append(f"| {network} | {values} |")
    return "\n".join(lines)


def scans(records: dict[str, Any]) -> str:
    """Average acceleration and coverage of stopping rules."""
    head = "| task network | unit | α | τ | paper LWR | paper CQR | fixed-width | ratio |"
    lines = [head, "|---" * 8 + "|"]
    for network, record in records.items():
        for unit, table in UNITS.items():
            found = {(r["alpha"], r["max width"], r["policy"]): r for r in rows(record, table)}
            for goal in dict.fromkeys((alpha, width) for alpha, width, _ in found):
                ours = found[*goal, POLICIES[-1]]
                if ours["average R"] == 1:
                    continue  # too few patients to promise that: every scan went on to its end
                values = " | ".join(_stopped(found[*goal, policy]) for policy in POLICIES)
                lines.append(
                    f"| {network} | {unit} | {goal[0]:g} | {goal[1]:g} | {values} | "
                    f"{_ratio(ours):.2f} |"
                )
    return "\n".join(lines)


def _ratio(row: Row) -> float:
    return float(row["ratio to the paper's better"])


def _stopped(row: Row) -> str:
    return f"{row['average R']:.2f} ({row['coverage']:.3f})"


TABLES = {
    "lengths": ("interval-length", lengths),
    "samples": ("sample-count", samples),
    "scans": ("multi-round", scans),
}


def main(arguments: list[str] | None = None) -> None:
    """Print the tables of two runs, or put them into a document."""
    given = arguments or []
    if len(given) not in (1, 3) or given[1:2] not in ([], ["--into"]):
        print("python -m studies.real_data RUNS [--into docs/results/real-data.md]")
        return
    for name, (experiment, write) in TABLES.items():
        records = {
            network: json.loads(
                (Path(given[0]) / f"lgg-{network}" / "records" / f"{experiment}.json").read_text()
            )
            for network in NETWORKS
        }
        if len(given) == 3:
            put(write(records), Path(given[2]), name)
        else:
            print(f"{write(records)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
