"""Comparison with other libraries: lines of code, CPU seconds, ranks, reactions to mistakes.

python -m benchmarks peers                                         # prints the table
python -m benchmarks.peers --into docs/results/performance.md      # puts it into this file

Libraries are searched for in this environment and in those of the Pythons listed in TASKUQ_PEERS,
separated by colons, because some conflict with taskuq. TASKUQ_AUTHORS is the path of a copy of the
authors' repository. The names of missing libraries are printed. Times are CPU times of one thread,
from samples to intervals. If a library takes summaries, its time includes NumPy's mean, spread or
quantiles of the samples, computed once for many splits. ``lines_of`` counts the lines of code. The
reaction to a mistake is an error ("refused"), a warning ("warned") or neither ("accepted").
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.million import synthetic  # first: it sets the number of threads

import numpy as np  # isort: skip

from benchmarks._peer import ALPHA, PEERS, SCORES, lines_of

import taskuq as tq

SCRIPT = Path(__file__).with_name("_peer.py")
TRIALS = 10_000
NONE = "–"


def environments() -> list[str]:
    """Return the paths of this Python and of those in TASKUQ_PEERS."""
    return [sys.executable, *filter(None, os.environ.get("TASKUQ_PEERS", "").split(":"))]


def ask(name: str, data: Path, pythons: list[str]) -> dict[str, Any]:
    """Return a library's results from the first environment where it is installed, or an error."""
    found: dict[str, Any] = {"missing": "no Python was given"}
    environment = dict(os.environ) | {"MPLBACKEND": "Agg", "PYTHONPATH": ""}
    if name == "taskuq":
        environment["PYTHONPATH"] = str(Path(tq.__file__).parents[1])
    for python in pythons:
        command = [python, str(SCRIPT), name, str(data)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, cwd=data.parent, env=environment
            )
            found = json.loads(done.stdout.splitlines()[-1])
        except OSError as error:
            found = {"missing": f"{python} cannot be started ({error.strerror})"}
        except (IndexError, ValueError):
            found = {"missing": (done.stderr.strip().splitlines() or ["it ended badly"])[-1]}
        if "missing" not in found:
            break
    return found


def many_splits(outputs: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Return taskuq's CPU seconds for many random splits, and for all splits in closed form."""
    found = {}
    call = {"many": partial(tq.evaluate, splits=TRIALS, seed=0), "exact": tq.evaluate_exact}
    for name, evaluate in call.items():
        for _ in range(2):  # compiled in the first
            start = time.process_time()
            for score in SCORES:
                evaluate(outputs, targets, alpha=ALPHA, score=score)
            found[name] = time.process_time() - start
    return found


def cell(name: str, found: dict[str, Any], row: str) -> str:
    """Return a library's entry in one row of the table."""
    kind, _, score = row.partition(" ")
    of = found["scores"]
    if kind == "ms":
        return f"{1e3 * sum(of[score].values()):.1f}" if score in of else NONE
    if kind == "lines":
        recipe = PEERS[name][1].get(score)
        return NONE if recipe is None or recipe.__name__ == "<lambda>" else str(lines_of(recipe))
    if kind == "many":
        parts = [one["summary"] + TRIALS * one["seconds"] for one in of.values()]
        seconds = found.get("many") or sum(parts)
        lacks = [s.upper() for s in SCORES if s not in of]
        shown = f"{seconds:.0f}" if seconds > 10 else f"{seconds:.2g}"
        return shown + (f" (no {', '.join(lacks)})" if lacks else "")
    if kind == "exact":
        return f"{1e3 * found['exact']:.1f}" if "exact" in found else NONE
    if kind == "right":
        narrow = f", {found['narrow']} too small" if found["narrow"] else ""
        return f"{found['right']} of {found['asked']}{narrow}"
    value = found.get(kind, NONE)
    return f"{value:.2g}" if isinstance(value, float) else str(value).partition(" (")[0]


ROWS = {
    "lines ar": "AR, from arrays to intervals: lines of code",
    "lines lwr": "LWR: lines of code",
    "lines cqr": "CQR: lines of code",
    "first": "first result in a new process, s",
    "ms ar": "AR: calibrate and predict, ms",
    "ms lwr": "LWR: calibrate and predict, ms",
    "ms cqr": "CQR: calibrate and predict, ms",
    "many": f"{TRIALS} random splits, all scores, s",
    "exact": "all possible splits, in closed form, ms",
    "right": "correct quantile for (n, α)",
    "short": "interval from too few cases",
    "nan": "a target is NaN",
    "masked": "a target is masked",
    "index": "targets are a shuffled pandas series",
    "percent": "α = 5, meant as 5 %",
}


def table(found: dict[str, dict[str, Any]]) -> str:
    """Return the comparison of all libraries as a Markdown table."""
    heads = [f"{name} {one.get('version', '')}".strip() for name, one in found.items()]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for row, title in ROWS.items():
        cells = " | ".join(cell(name, one, row) for name, one in found.items())
        lines.append(f"| {title} | {cells} |")
    return "\n".join(lines)


def main(into: str | None = None) -> None:
    outputs, targets = synthetic(2188, 32)
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "cases.npz"
        np.savez(data, outputs=outputs, targets=targets)
        found = {name: ask(name, data, environments()) for name in PEERS}
    found["taskuq"] |= many_splits(outputs, targets)
    for name, one in found.items():
        if "missing" in one:
            print(f"{name} is missing: {one['missing']}", file=sys.stderr)
    found = {name: one for name, one in found.items() if "missing" not in one}
    if into is None:
        print(table(found))
    else:
        from studies.paper import put

        put(table(found), Path(into), "peers")


if __name__ == "__main__":
    main(*sys.argv[2:])
