"""The paper's figures, tables and numbers beside ours, from the records of a run, as Markdown.

    python -m studies.paper RUN_DIR                         # prints the table
    python -m studies.paper RUN_DIR --into docs/results/paper.md --as atlas

The second form replaces what stands between ``<!-- atlas -->`` and ``<!-- end of atlas -->``. What
no record of the run tells is "not measured yet".
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

MISSING = "not measured yet"
Row = dict[str, Any]


class Entry(NamedTuple):
    """One thing the paper shows: where, what it says, which record tells ours, and how."""

    item: str
    says: str
    experiment: str
    read: Callable[[dict[str, Any]], str]


def rows(record: dict[str, Any], table: str) -> list[Row]:
    """The rows of a record's table by column, none where it has no such table."""
    for one in record["tables"]:
        if one["name"] == table:
            return [dict(zip(one["columns"], row, strict=True)) for row in one["rows"]]
    return []


def shown(value: Any, digits: int = 3) -> str:
    return (
        "–" if value is None else f"{value:.{digits}f}" if isinstance(value, float) else str(value)
    )


def verdict(record: dict[str, Any]) -> str:
    return str(record["finding"]).partition(":")[0]


def series(found: Iterable[Row], by: str, along: str, value: str, digits: int = 3) -> str:
    """'ar 0.1, 0.2; lwr 0.3, 0.4': one list for each name, along another column."""
    lists: dict[str, list[str]] = {}
    heads: list[str] = []
    for row in found:
        lists.setdefault(str(row[by]), []).append(shown(row[value], digits))
        head = f"{row[along]:g}" if isinstance(row[along], float) else str(row[along])
        heads += [head] if head not in heads else []
    body = "; ".join(f"{name} {', '.join(values)}" for name, values in lists.items())
    return f"at {along} = {', '.join(heads)}: {body}" if body else MISSING


def lengths(record: dict[str, Any]) -> str:
    return f"{verdict(record)}. By case, not cut, " + series(
        rows(record, "by-case"), "score", "R", "length not cut"
    )


def lengths_by_group(record: dict[str, Any]) -> str:
    return "Cut to the range, " + series(rows(record, "by-group"), "score", "R", "length")


def sample_lengths(record: dict[str, Any]) -> str:
    return f"{verdict(record)}. Not cut, " + series(
        rows(record, "by-case"), "score", "p", "length not cut"
    )


def coverage(record: dict[str, Any]) -> str:
    by_case = ", ".join(f"{r['score']} {r['coverage']:.4f}" for r in rows(record, "by-case"))
    by_group = ", ".join(f"{r['score']} {r['coverage']:.4f}" for r in rows(record, "by-group"))
    smallest = min(r["fit p"] for r in rows(record, "by-case") if r["fit p"] is not None)
    return (
        f"{verdict(record)}. By case {by_case}, smallest goodness-of-fit p-value {smallest:.2g}; "
        f"by group {by_group or MISSING}"
    )


def protocol(record: dict[str, Any]) -> str:
    said = "; ".join(
        f"{r['score']} {shown(r['average R'])} ± {shown(r['sd R'])}, {shown(r['coverage'])} ± "
        f"{shown(r['sd coverage'])}, {shown(r['max centre error'])} ± "
        f"{shown(r['sd max centre error'])}"
        for r in rows(record, "protocol")
    )
    return f"{verdict(record)}. {said} (± is one draw's standard deviation)"


def accepted(record: dict[str, Any]) -> str:
    (figure,) = [f for f in record["figures"] if f["name"] == "accepted"]
    return "At R = {}: {}".format(
        ", ".join(map(str, figure["series"][0]["x"])),
        "; ".join(
            f"{s['name']} {', '.join(shown(v, 2) for v in s['y'])}" for s in figure["series"]
        ),
    )


def stopping(record: dict[str, Any], unit: str) -> str:
    goals: dict[tuple[float, float], list[Row]] = {}
    for row in rows(record, unit):
        goals.setdefault((row["alpha"], row["max width"]), []).append(row)
    said = []
    for (alpha, width), of in goals.items():
        by_name = {r["policy"]: r for r in of}
        parts = [
            f"{name} {by_name[name]['average R']:.2f} ({by_name[name]['coverage']:.4f})"
            for name in ("paper lwr", "paper cqr", "fixed-width spread", "fixed-width learned")
            if name in by_name
        ]
        ratio = by_name["fixed-width spread"]["ratio to the paper's better"]
        said.append(f"α {alpha:g}, τ {width:g}: {', '.join(parts)}, ratio {ratio:.2f}")
    return "; ".join(said) or MISSING


def classes(record: dict[str, Any]) -> str:
    return series(rows(record, "class-by-case"), "score", "class", "coverage")


def widths(record: dict[str, Any]) -> str:
    found = [r for r in rows(record, "width-by-case") if r["score"] in ("ar", "lwr", "cqr")]
    return f"{verdict(record)}. " + series(found, "score", "interval width", "coverage")


def masks(record: dict[str, Any]) -> str:
    return str(record["finding"])


def splits(record: dict[str, Any]) -> str:
    parts = "; ".join(
        f"{r['part']} {r['cases']} cases, {shown(r['groups'])} groups, {shown(r['with finding'])} "
        "with the finding"
        for r in rows(record, "parts")
    )
    return f"{parts}. {record['finding'].partition(': ')[2]}"


def quality(record: dict[str, Any]) -> str:
    said = "; ".join(
        f"R {r['R']:g} {r['method']} {shown(r['PSNR'], 2)} dB, {shown(r['SSIM'])}, FID "
        f"{shown(r['FID'])}"
        for r in rows(record, "quality")
    )
    return f"{verdict(record)}. {said}"


def classifier(record: dict[str, Any]) -> str:
    return "; ".join(
        f"{r['cases of']}: {shown(r['accuracy'])}, {shown(r['precision'])}, {shown(r['recall'])}, "
        f"{shown(r['AUROC'])}"
        for r in rows(record, "classifier")
    )


ENTRIES = (
    Entry("1. Mean interval length against R (figure)",
          "a plot: falls with R; LWR and CQR below AR at every R", "interval-length", lengths),
    Entry("1a. the same for a new group (ours)", "–", "interval-length", lengths_by_group),
    Entry("2. Mean interval length against p at R = 16 (figure)",
          "a plot: falls with p; LWR much more sensitive to small p than CQR",
          "sample-count", sample_lengths),
    Entry("3. Empirical coverage at R = 8 (figure)",
          "histograms close to theory; means very close to 0.95", "coverage-law", coverage),
    Entry("4. Multi-round table: average acceleration, coverage, average maximum centre error",
          "AR 2.000, 0.991 ± 0.008, 0.032 ± 0.017; LWR 5.157, 0.992 ± 0.005, 0.020 ± 0.002; "
          "CQR 6.762, 0.987 ± 0.008, 0.044 ± 0.009", "paper-protocol", protocol),
    Entry("5. Slices accepted after each R (figure)",
          "a plot: AR always stops at R = 2; LWR and CQR mostly before, LWR sometimes not until "
          "R = 1", "paper-protocol", accepted),
    Entry("5a. Policies over random splits by case: average R (coverage) (ours)", "–",
          "multi-round", lambda record: stopping(record, "by-case")),
    Entry("5b. the same by group (ours)", "–",
          "multi-round", lambda record: stopping(record, "by-group")),
    Entry("6. Class-conditional coverage at R = 8 (figure)",
          "close to 0.95; AR lowest, about 0.93 for class 1", "conditional-coverage", classes),
    Entry("7. Size-stratified coverage at R = 8 (figure)",
          "a plot: LWR much more even than CQR; CQR very good below 0.05",
          "conditional-coverage", widths),
    Entry("8. Masks (figure, text)",
          "nested; centres of 9, 16, 24, 32 of 320 lines", "masks", masks),
    Entry("9. Data splits (table, text)",
          "484 volumes, 17286 images, 1921 with tears to train; 100 volumes, 2188 images, 324 with "
          "tears: 1531 to calibrate, 656 to test", "data-splits", splits),
    Entry("10. Image recovery: PSNR, SSIM, FID (table)",
          "VarNet, flow: R 16 32.911, 32.684 dB, 0.859, 0.842, FID 9.668, 6.233; R 8 36.120, "
          "35.593 dB, 0.906, 0.892, FID 5.680, 4.346; R 4 38.700, 37.974 dB, 0.937, 0.926, FID "
          "4.048, 3.349; R 2 42.341, 41.366 dB, 0.966, 0.960, FID 2.847, 2.575",
          "recovery-quality", quality),
    Entry("11. Classifier: accuracy, precision, recall, AUROC (table)",
          "0.775, 0.391, 0.929, 0.922", "classifier-quality", classifier),
)  # fmt: skip


def table(folder: Path) -> str:
    """The Markdown table of a run."""
    records = {}
    for path in sorted(folder.rglob("*.json")):
        record = json.loads(path.read_text())
        if isinstance(record, dict) and record.get("schema") == "taskuq.experiment/1":
            records[record["name"]] = record
    lines = ["| paper | it says | record | we got |", "|---|---|---|---|"]
    for entry in ENTRIES:
        record = records.get(entry.experiment)
        got = MISSING if record is None else entry.read(record) or MISSING
        lines.append(f"| {entry.item} | {entry.says} | `{entry.experiment}` | {got} |")
    return "\n".join(lines)


def put(text: str, document: Path, name: str) -> None:
    """Replace the named block of a document."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, found, rest = document.read_text().partition(begin)
    if not found or end not in rest:
        raise SystemExit(f"{document} has no block {name}")
    document.write_text(f"{before}{begin}\n{text}\n\n{end}{rest.partition(end)[2]}")


def main(arguments: list[str] | None = None) -> None:
    """Print the table of a run, or put it into a document."""
    given = arguments or []
    if len(given) == 5 and given[1] == "--into" and given[3] == "--as":
        put(table(Path(given[0])), Path(given[2]), given[4])
    elif len(given) == 1:
        print(table(Path(given[0])))
    else:
        print("python -m studies.paper RUN_DIR [--into docs/results/paper.md --as NAME]")


if __name__ == "__main__":
    main(sys.argv[1:])
