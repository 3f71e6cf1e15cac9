"""taskuq audit: check the chain of an audit trail, and tell the story of each scan."""

from __future__ import annotations

from pathlib import Path

from taskuq.commands.terminal import show
from taskuq.decide.audit import read_trail, stories
from taskuq.decide.terms import as_told


def audit(log: Path, *, scan: str | None = None) -> None:
    """Check that an audit trail is whole, and tell what was decided about each scan.

    Arguments:
        log: The log.jsonl that scans were told to.
        scan: Tell about this scan only.
    """
    lines = read_trail(log)
    for name, story in stories(lines).items():
        if scan is not None and name != scan:
            continue
        show(f"scan {name or '(without a name)'}")
        for line in story:
            both = zip(line["lower"], line["upper"], strict=True)
            # A round that goes on reports nothing: what it would have said is no answer.
            ends = ", ".join(f"[{low}, {high}]" for low, high in both) if line["stop"] else ""
            found = f"; interval {ends}" if ends else ""
            took = f"{1000 * line['latency']:.0f} ms"
            reason = as_told(line["reason"], shadow=line.get("shadow", False))
            kept = f"; kept in {line['state']}" if line["stop"] and "state" in line else ""
            show(f"  {line['time']}  {line['case']}  {reason}{found}; {took}{kept}")
        if any(line.get("shadow") for line in story):
            show("  In shadow: decisions were told, and all lines were asked for all the same.")
        for void in dict.fromkeys(line["void"] for line in story if line.get("void")):
            show(f"  {void}")
    end = lines[-1]["hash"][:16] if lines else "-"
    show(f"{log}: {len(lines)} lines, the chain is whole and ends in {end}")
