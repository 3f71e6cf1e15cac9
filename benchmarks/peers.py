"""Other libraries on the same cases: seconds, ranks, failures, and lines of code.

python -m benchmarks peers                     # prints the table
python -m benchmarks.peers --into README.md    # puts it there

A library is looked for in this environment and in those whose Pythons TASKUQ_PEERS names, separated
by colons (some conflict with taskuq); the authors' code in TASKUQ_AUTHORS, a copy of their
repository. Missing libraries are printed. Times are CPU times of one thread, from samples to
intervals: for libraries that take none, NumPy's mean, spread or quantiles of the samples are
counted, once for many splits. Lines of all libraries are counted by ``lines_of``.
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

from benchmarks._peer import ALPHA, PEERS, SCORES, Cases, lines_of, ranks, timed

import taskuq as tq

SCRIPT = Path(__file__).with_name("_peer.py")
TRIALS = 10_000
NONE = "–"


def environments() -> list[str]:
    """Return this Python and those of TASKUQ_PEERS."""
    return [sys.executable, *filter(None, os.environ.get("TASKUQ_PEERS", "").split(":"))]


def ask(name: str, data: Path, pythons: list[str]) -> dict[str, Any]:
    """Return the results of a library from the first environment that has it, or an error."""
    found: dict[str, Any] = {"missing": "no Python was given"}
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"MPLBACKEND": "Agg"}
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


def ours(x: Cases, score: str, split: Any, alpha: float) -> Any:
    """Run a split with taskuq, as ``_peer.py`` does with other libraries."""
    import taskuq as tq

    fold, test = split
    bound = tq.calibrate(x.outputs[fold], x.z[fold], alpha=alpha, score=score)
    interval = bound(x.outputs[test])
    return interval.lower, interval.upper


def measure_ours(outputs: np.ndarray, targets: np.ndarray) -> dict[str, Any]:
    """Return the results of taskuq, including many splits at once."""
    x = Cases(outputs, targets)
    scores = {score: timed(ours, x, score, takes_samples=True) for score in SCORES}
    many = 0.0
    for score in SCORES:
        evaluate = partial(tq.evaluate, outputs, targets, alpha=ALPHA, score=score, seed=0)
        evaluate(splits=TRIALS)  # compiled here
        start = time.process_time()
        evaluate(splits=TRIALS)
        many += time.process_time() - start
    start = time.process_time()
    for score in SCORES:
        tq.evaluate_exact(outputs, targets, alpha=ALPHA, score=score)
    exact = time.process_time() - start
    found = ranks(ours) | {"scores": scores, "many": many, "exact": exact}
    return found | {"version": tq.__version__, "glue": lines_of(ours)}


def cell(found: dict[str, Any], row: str) -> str:
    """Return one cell of the table."""
    if "missing" in found:
        return "not measured"
    of = found["scores"]
    times = [of[score].get("seconds") for score in SCORES]
    if row in SCORES:
        at = of[row].get("seconds")
        return NONE if at is None else f"{1e3 * (at + of[row].get('summary', 0)):.1f}"
    if row == "many":
        once = sum(of[score].get("summary", 0) for score in SCORES)
        seconds = found.get("many") or once + TRIALS * sum(t for t in times if t is not None)
        shown = f"{seconds:.0f}" if seconds > 10 else f"{seconds:.2g}"
        lacks = [s.upper() for s, at in zip(SCORES, times, strict=True) if at is None]
        return shown + (f" (no {', '.join(lacks)})" if lacks else "") if any(times) else NONE
    if row == "exact":
        return f"{1e3 * found['exact']:.1f}" if "exact" in found else NONE
    if row == "right":
        if "right" not in found:
            return NONE
        narrow = f", {found['narrow']} too small" if found["narrow"] else ""
        return f"{found['right']} of {found['asked']}{narrow}"
    if row == "short":
        return str(found.get("short", NONE)).partition(" (")[0]
    return str(found["glue"]) if any(times) else NONE


ROWS = {
    "ar": "AR: calibrate and predict, ms",
    "lwr": "LWR, ms",
    "cqr": "CQR, ms",
    "many": f"{TRIALS} random splits, all scores, s",
    "exact": "all splits there are, in closed form, ms",
    "right": "the right quantile for (n, α)",
    "short": "too few cases: the interval is",
    "glue": "lines for a split, all scores",
}


def table(found: dict[str, dict[str, Any]]) -> str:
    """Return the table in Markdown."""
    heads = [f"{name} {one.get('version', '')}".strip() for name, one in found.items()]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for row, title in ROWS.items():
        lines.append(f"| {title} | " + " | ".join(cell(one, row) for one in found.values()) + " |")
    return "\n".join(lines)


def main(into: str | None = None) -> None:
    outputs, targets = synthetic(2188, 32)
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "cases.npz"
        np.savez(data, outputs=outputs, targets=targets)
        found = {"taskuq": measure_ours(outputs, targets)}
        found |= {name: ask(name, data, environments()) for name in PEERS}
    for name, one in found.items():
        if "missing" in one:
            print(f"{name} is missing: {one['missing']}", file=sys.stderr)
    if into is None:
        print(table(found))
    else:
        from studies.paper import put

        put(table(found), Path(into), "peers")


if __name__ == "__main__":
    main(*sys.argv[2:])
