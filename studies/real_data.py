"""Tables of docs/results/real-data.md, from the results of two runs of all experiments.

    python -m studies.real_data RUNS                                   # prints them
    python -m studies.real_data RUNS --into docs/results/real-data.md

RUNS has one folder of ``taskuq experiment all`` for each task network: lgg-adversarial and
lgg-plain. The second form replaces the named blocks of the document and writes all tables as CSV
files to folders with these two names next to the document.
"""

from __future__ import annotations

import sys
from pathlib import Path

from studies.paper import Records, block, markdown, put, read_records, rows, stopped, write_csv

NETWORKS = ("lgg-adversarial", "lgg-plain")
UNITS = {"slice": "by-case", "patient": "by-group"}
SCORES = {"AR": "ar", "LWR": "lwr", "CQR": "cqr", "MLWR": "mlwr", "learned": "learned"}
RATIO = "ratio to the paper's better"
POLICIES = ("paper lwr", "paper cqr", "fixed-width spread")


def lengths(runs: dict[str, Records]) -> str:
    """Return a table of mean clipped interval lengths, for the adversarially trained network."""
    lines = []
    for unit, table in UNITS.items():
        found = {(r["R"], r["score"]): r for r in rows(runs[NETWORKS[0]]["interval-length"], table)}
        for R in sorted({R for R, _ in found}, reverse=True):
            values = [f"{found[R, score]['length']:.3f}" for score in SCORES.values()]
            lines.append([unit, f"{R:g}", *values])
    return markdown(["unit", "R", *SCORES], lines)


def samples(runs: dict[str, Records]) -> str:
    """Return a table of mean unclipped interval lengths for the most and the fewest samples."""
    lines = []
    for network, records in runs.items():
        table = rows(records["sample-count"], UNITS["slice"])
        found = {(r["p"], r["score"]): r["unclipped length"] for r in table}
        most, least = max(p for p, _ in found), min(p for p, _ in found)
        values = [f"{found[most, s]:.2f} → {found[least, s]:.2f}" for s in ("lwr", "cqr", "mlwr")]
        lines.append([network.removeprefix("lgg-"), *values])
    return markdown(["task network", "LWR", "CQR", "MLWR"], lines)


def scans(runs: dict[str, Records]) -> str:
    """Return a table of mean acceleration and coverage for each goal that lets scans stop early."""
    lines = []
    for network, records in runs.items():
        for unit, table in UNITS.items():
            found = {
                (r["alpha"], r["max width"], r["policy"]): r
                for r in rows(records["multi-round"], table)
            }
            for goal in dict.fromkeys((alpha, width) for alpha, width, _ in found):
                ours = found[*goal, POLICIES[-1]]
                if ours["average R"] > 1:
                    values = [stopped(found[*goal, policy]) for policy in POLICIES]
                    head = [network.removeprefix("lgg-"), unit, *(f"{g:g}" for g in goal)]
                    lines.append([*head, *values, f"{ours[RATIO]:.2f}"])
    columns = ["task network", "unit", "α", "τ", "paper LWR", "paper CQR", "fixed-width", "ratio"]
    return markdown(columns, lines)


TABLES = {"lengths": lengths, "samples": samples, "scans": scans}


def main(arguments: list[str] | None = None) -> None:
    """Print the tables of two runs, or put them into a document."""
    given = arguments or []
    if len(given) not in (1, 3) or given[1:2] not in ([], ["--into"]):
        print("python -m studies.real_data RUNS [--into docs/results/real-data.md]")
        return
    folders = {network: Path(given[0]) / network for network in NETWORKS}
    if missing := [str(path) for path in folders.values() if not path.is_dir()]:
        raise SystemExit(f"{' and '.join(missing)} missing; docs/results/real-data.md makes them")
    runs = {network: read_records(path) for network, path in folders.items()}
    for name, write in TABLES.items():
        if len(given) == 1:
            print(f"{write(runs)}\n")
        elif block(Path(given[2]).read_text(), name) is not None:
            put(write(runs), Path(given[2]), name)
    for network, records in runs.items() if len(given) == 3 else ():
        write_csv(records, Path(given[2]).parent / network)


if __name__ == "__main__":
    main(sys.argv[1:])
