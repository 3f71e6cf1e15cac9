"""Test vectors for decisions in another language.

    python tests/policy/vectors.py

Plan policies of every kind and score of the specification on a synthetic table, and write their
decisions about synthetic cases to docs/schemas/decide-vectors.json.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import taskuq as tq
from taskuq._io import atomic_write, with_checksum
from taskuq.policy._specification import VECTORS, export_test_vectors
from taskuq.table._examples import SyntheticTable, synthetic_outputs

PATH = Path(__file__).resolve().parents[2] / "docs" / "schemas" / "decide-vectors.json"
CASES, SAMPLES, ALPHA = 8, 10, 0.1
SCORES = ("ar", "lwr", "cqr", "mlwr")


def policies() -> Iterator[tuple[str, tq.Policy]]:
    """Policies of every kind and score, on both sides, with and without a range, of two tasks."""
    made = SyntheticTable(
        volumes=6, samples=SAMPLES, accelerations=(8, 2), error=(0.3, 0.1), bias=(0.4, -0.4)
    )
    table = synthetic_outputs(made, seed=0)
    free = (30 * np.asarray(table.outputs, dtype=float), 30 * np.asarray(table.targets))
    one = table.outputs[..., :1], table.targets
    both = np.stack([table.outputs, 1 - table.outputs**2], axis=-1)
    two = both, np.stack([table.targets, 1 - table.targets**2], axis=-1)
    adaptive, rates = {"policy": "adaptive"}, {"accelerations": tuple(table.accelerations)}
    ranged = {**rates, "task_range": (0, 1)}
    plans: dict[str, tuple[Any, dict[str, Any]]] = {
        f"{kind} {score}": (table, {"policy": kind, "score": score, "max_width": 0.2})
        for score in SCORES
        for kind in ("adaptive", "anytime", "paper")
    }
    plans |= {
        "fixed-width": (table, {"max_width": 0.05}),
        "fixed-width at least": (table, {"at_least": 0.2}),
        "fixed-width upper": (table, {"max_width": 0.02, "side": "upper"}),
        "adaptive at most": (table, {**adaptive, "at_most": 0.6}),
        "adaptive lower": (table, {**adaptive, "score": "cqr", "max_width": 0.2, "side": "lower"}),
        "fixed-width without a range": (free, {"max_width": 2, **rates}),
        "adaptive without a range": (free, {**adaptive, "max_width": 9, **rates}),
        "paper of one sample": (one, {"policy": "paper", "max_width": 0.2, **ranged}),
        "fixed-width of two tasks": (two, {"max_width": (0.05, 0.08), **ranged}),
    }
    for name, (data, options) in plans.items():
        yield name, tq.plan(data, alpha=ALPHA, unit="case", **options)


def vectors() -> dict[str, Any]:
    return {
        "schema": VECTORS,
        "policies": [
            {"name": name, **export_test_vectors(policy, cases=CASES, seed=k)}
            for k, (name, policy) in enumerate(policies())
        ],
    }


def laid_out(record: Mapping[str, Any]) -> str:
    """Return all policies as JSON with a line for each case, so that a change shows which it is."""
    whole = with_checksum(record)
    policies = []
    for policy in whole["policies"]:
        about = {name: value for name, value in policy.items() if name != "vectors"}
        cases = ",\n".join(_text(case) for case in policy["vectors"])
        policies.append(f'{_text(about)[:-1]}, "vectors": [\n{cases}\n]}}')
    listed = ",\n".join(policies)
    ends = (_text(whole["schema"]), _text(whole["sha256"]))
    return f'{{"schema": {ends[0]}, "policies": [\n{listed}\n], "sha256": {ends[1]}}}\n'


def _text(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def main() -> None:
    with atomic_write(PATH) as partial:
        partial.write_text(laid_out(vectors()), encoding="utf-8")
    print(PATH)


if __name__ == "__main__":
    main()
