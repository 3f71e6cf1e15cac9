"""A rehearsal for the eye: a line for each command, and the table that the document shows."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taskuq.pipeline.progress import duration
from taskuq.runs.rehearsal.cost import raw_bytes
from taskuq.runs.rehearsal.plan import plan_markdown

GIB = 2**30


def result_line(result: Mapping[str, Any]) -> str:
    """How one command went.

    Arguments:
        result: An entry of the record's ``lines``.

    Example:
        >>> result_line({"status": "skipped", "error": "needs what 'a' should have made"})
        "skipped: needs what 'a' should have made"
    """
    if result["status"] == "skipped":
        return f"skipped: {result['error']}"
    kept = "passed before, with this code and configuration, and kept: " if result["kept"] else ""
    words = [f"{kept}{result['status']} in {duration(result['seconds'])}"]
    cost = result["cost"] or {}
    if cost.get("first") is not None:
        words.append(f"first {cost['unit']} {cost['first']:.3g} s")
    if cost.get("each") is not None:
        then = "then " if cost.get("first") is not None else ""
        words.append(f"{then}{_seconds(cost['each'])} a {cost['unit']}")
    if result["peak_gpu_bytes"]:
        words.append(f"{result['peak_gpu_bytes'] / GIB:.2f} GiB of GPU memory")
    words.append(f"{result['peak_host_bytes'] / GIB:.2f} GiB of memory")
    return ", ".join(words)


def rehearsal_markdown(record: Mapping[str, Any]) -> str:
    """The table of a rehearsal, its sums and its plans, as Markdown to be pasted as it is.

    Arguments:
        record: What :meth:`taskuq.runs.rehearsal.run.Rehearsal.run` returns.
    """
    machine, settings = record["machine"], record["settings"]
    is_projected = not settings["toy"]
    whose = "files of one's own" if settings["data"] else "volumes made from the atlas"
    head = (
        f"`taskuq rehearse`: {record['passed']} of {record['commands']} commands passed in "
        f"{duration(record['seconds'])} on {machine['device']} with {machine['cores']} cores, "
        f"{settings['steps']} steps of each training, {whose}"
        f"{'' if is_projected else ', at toy size: nothing is projected'}."
    )
    columns = ["command", "result", "took", "first", "then each", "of it waiting"]
    columns += ["GPU GiB", "host GiB"]
    columns += ["all of it, hours", "on disk, GB"] if is_projected else []
    rows = [_row(result, is_projected) for result in record["lines"]]
    rows += [_sum(record)] if is_projected else []
    table = [columns, ["---"] * len(columns), *rows]
    lines = ["| " + " | ".join(cells) + " |" for cells in table]
    parts = [head, "", *lines, ""]
    if is_projected:
        raw = sum(raw_bytes().values())
        parts += [
            f"Beside this the download takes {raw / 1e9:.0f} GB unpacked. Host memory is that of "
            "the command's own process, without its workers. Waiting is for data and counts "
            "in the hours: the first batch of an epoch is waited for, and epochs are a few steps "
            "here, hundreds in the experiment.",
            "",
            plan_markdown(record),
        ]
    return "\n".join(parts) + "\n"


def short_name(line: str) -> str:
    r"""A command by its first words, as a table has room for.

    Example:
        >>> short_name("taskuq run configs/fastmri-knee/run-flow.toml \\\n    -o runs/table")
        'run run-flow.toml'
        >>> short_name("taskuq data check data/knee_multicoil_val --slices all")
        'data check knee_multicoil_val'
        >>> short_name("taskuq evaluate runs/fastmri-knee/table --score ar")
        'evaluate fastmri-knee/table'
    """
    words = shlex.split(line.replace("\\\n", " "))[1:]
    first = next((k for k, word in enumerate(words) if word.startswith("-")), len(words))
    kept = words[:first][:3]
    # Of a training the kind says everything.
    kept = kept[:2] if kept[0] == "train" else kept
    return " ".join(
        word.removeprefix("runs/") if word.startswith("runs/") else Path(word).name for word in kept
    )


def _row(result: Mapping[str, Any], is_projected: bool) -> list[str]:
    cost = result["cost"] or {}
    was_run = result["status"] != "skipped"
    added = f" `{result['added']}`" if result["added"] else ""
    unit, waiting = cost.get("unit", ""), cost.get("details", {}).get("wait_share")
    cells = [
        f"`{short_name(result['line'])}`{added}",
        result["status"],
        duration(result["seconds"]) if was_run else "",
        "" if cost.get("first") is None else _seconds(cost["first"]),
        "" if cost.get("each") is None else f"{_seconds(cost['each'])} a {unit}",
        "" if waiting is None else f"{waiting:.0%}",
        f"{result['peak_gpu_bytes'] / GIB:.1f}" if result["peak_gpu_bytes"] else "",
        f"{result['peak_host_bytes'] / GIB:.1f}" if was_run else "",
    ]
    if is_projected:
        hours, size = cost.get("hours"), cost.get("bytes")
        cells.append("" if hours is None else _few(hours))
        cells.append("" if not size else _few(size / 1e9))
    return cells


def _sum(record: Mapping[str, Any]) -> list[str]:
    costs = [result["cost"] for result in record["lines"] if result["cost"]]
    hours = sum(cost["hours"] or 0 for cost in costs)
    size = sum(cost["bytes"] or 0 for cost in costs) / 1e9
    took = duration(sum(result["seconds"] for result in record["lines"]))
    return ["all", "", took, "", "", "", "", "", f"**{_few(hours)}**", f"**{_few(size)}**"]


def _seconds(value: float) -> str:
    return f"{1000 * value:.3g} ms" if value < 1 else f"{value:.3g} s"


def _few(value: float) -> str:
    return f"{value:.2g}" if value < 9.95 else f"{value:.0f}"
