"""A judgement of samplers as one Markdown table: a row for each line, a column for each sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# What a line is called, how many digits it has, and what it is compared as.
LINES: dict[str, tuple[str, int]] = {
    "psnr": ("PSNR of the mean, dB", 2),
    "psnr of one": ("PSNR of one sample, dB", 2),
    "spread": ("spread over error", 2),
    "crps": ("CRPS of the task output", 4),
    "outside": ("truth outside all samples", 3),
    "bias": ("mean output above the truth's", 3),
    "width": ("mLWR width, α = 0.05, by slice", 3),
    "mean width": ("mean over R of widths, and of their ratios", 3),
    "coverage of intervals": ("its coverage, exact", 3),
    "mean acceleration": ("fixed-width R̄", 2),
    "coverage of scans": ("its coverage", 3),
    "mean acceleration learned": ("fixed-width R̄, learned statistic", 2),
    "coverage of scans learned": ("its coverage, learned statistic", 3),
    "rejected": ("rejected draws", 0),
    "milliseconds": ("ms per slice", 2),
}
UNITS = {"case": "by slice", "group": "by patient"}


def markdown(record: Mapping[str, Any], tasks: Sequence[str] | None = None) -> str:
    """Return the table of a judgement, and what it is of.

    Arguments:
        record: What :func:`taskuq.runs.samplers.judging.judge` returned.
        tasks: The task networks to show; all of them where None.
    """
    first = [record["reference"]] if record["reference"] else []
    named = [name for line in record["lines"] for name in line["samplers"]]
    names = list(dict.fromkeys([*first, *named]))
    lines = [f"| | {' | '.join(names)} | must | goal |", "|---" * (len(names) + 3) + "|"]
    for line in record["lines"]:
        if line["task"] is None or tasks is None or line["task"] in tasks:
            cells = [_cell(line, name, name == record["reference"]) for name in names]
            aims = [
                "<br>".join(_limit(aim, kind) for aim in line["aims"] if aim[kind])
                for kind in ("must", "goal")
            ]
            lines.append(f"| {' | '.join([_title(line), *cells, *aims])} |")
    return "\n".join([*lines, "", _about(record)])


def _title(line: Mapping[str, Any]) -> str:
    title, _ = LINES.get(line["measure"], (f"{line['measure']}, deviation from flat", 3))
    unit = UNITS.get(line["unit"] or "")
    words = [title, *([unit] if unit else []), *([line["task"]] if line["task"] else [])]
    columns = line["columns"]
    if columns[0].startswith("R = "):
        rates = " / ".join(column.removeprefix("R = ") for column in columns)
        return f"{', '.join(words)}; R = {rates}"
    return f"{', '.join(words)}; {'; '.join(columns)}"


def _cell(line: Mapping[str, Any], name: str, is_reference: bool) -> str:
    entry = line["samplers"].get(name)
    if entry is None:
        return "–"
    digits = LINES.get(line["measure"], ("", 3))[1]
    said = [_numbers(entry["value"], entry["error"], digits)]
    if entry["against"] is not None and not is_reference:
        said.append(_compared(line, entry))
    for aim in line["aims"]:
        verdict = aim["verdict"].get(name, {})
        said += [_verdict(kind, found, line["columns"]) for kind, found in verdict.items()]
    return "<br>".join(said)


def _compared(line: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    if line["compared"] == "difference":
        return _numbers(entry["against"], entry["against_error"], 2, sign="+")
    return "× " + _numbers(entry["against"], entry["against_error"], 2)


def _numbers(
    values: Sequence[float | None],
    errors: Sequence[float | None] | None,
    digits: int,
    sign: str = "",
) -> str:
    shown = []
    for k, value in enumerate(values):
        error = None if errors is None else errors[k]
        text = "–" if value is None else f"{value:{sign}.{digits}f}"
        shown.append(text if error is None else f"{text} ± {error:.{digits}f}")
    return " / ".join(shown)


def _verdict(kind: str, found: Sequence[bool], columns: Sequence[str]) -> str:
    missed = [column for column, met in zip(columns, found, strict=True) if not met]
    return f"{kind} missed at {'; '.join(missed)}" if missed else f"{kind} met"


def _limit(aim: Mapping[str, Any], kind: str) -> str:
    return f"{'compared ' if aim['compared'] else ''}{aim[kind]}"


def _about(record: Mapping[str, Any]) -> str:
    reference = record["reference"]
    said = [
        f"{record['cases']} slices of {record['groups']} patients",
        f"{record['samples']} samples each",
        "± is one standard error over patients",
        f"scans are replayed in {record['trials']} random splits",
    ]
    if reference is not None:
        said.append(f"the second line of a cell compares with {reference}")
    said += _seeds(record["cost"])
    said += [f"{name} could not draw: {why}" for name, why in record["failed"].items()]
    return "; ".join(said) + "."


def _seeds(costs: Mapping[str, Any]) -> list[str]:
    """Who was drawn with which seed, where that is not the same for all."""
    # Records of before do not say it.
    seeds = {name: cost.get("seed", "unknown") for name, cost in costs.items()}
    if len(set(seeds.values())) < 2:
        return []
    return ["drawn with " + ", ".join(f"seed {seed}: {name}" for name, seed in seeds.items())]
