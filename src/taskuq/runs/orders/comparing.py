"""Orders of lines side by side: task error, lengths, mean accelerations and coverage, in one table.

Standard errors are over patients, by leaving out one at a time. Orders by inverse distance are
several draws; the others are compared with the mean over these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from taskuq.calibration.units import PolicyUnitName, unit_index
from taskuq.decide.goal import Goal
from taskuq.decide.kinds import PolicyPlan
from taskuq.decide.simulation import simulate
from taskuq.errors import InputError
from taskuq.evaluation.closed_form import evaluate_exact
from taskuq.evaluation.predictive import over_groups
from taskuq.files import read_json
from taskuq.interval import FloatArray
from taskuq.outputs import TaskOutputs
from taskuq.runs.orders.measuring import COST

# What other orders are compared with: all whose names begin so.
REFERENCES = ("inverse-distance", "evenly spread")
# What the mean over these is called.
USUAL = "mean of draws"
ALPHA = 0.05
# Error rates, and widths to stop at where a comparison says none of its own.
RATES, WIDTHS = (0.05, 0.1), (0.1, 0.2)


def compare(folder: Path, *, trials: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Judge the tables that :func:`taskuq.runs.orders.measuring.measure_orders` filled.

    Arguments:
        folder: Where they are.
        trials: Random splits for each stopping rule.
        seed: Where they come from.
    """
    about = read_json(folder / "orders.json", COST)
    tables = {str(name): TaskOutputs.load(folder / str(name)) for name in about["orders"]}
    first = next(iter(tables.values()))
    for name, table in tables.items():
        if _names(table) != _names(first):
            raise InputError(f"{folder / name} has other cases than the others; run it to the end")
    index = unit_index(first.cases, first.group)
    widths = about["configuration"].get("widths", WIDTHS)
    settings = [(alpha, float(width)) for alpha, width in zip(RATES, widths, strict=True)]
    cost = folder / "cost.json"
    return {
        "schema": "taskuq.orders/1",
        "name": str(about["name"]),
        "cases": first.cases,
        "groups": int(index.max()) + 1,
        "rounds": list(first.round_labels),
        "samples": first.samples,
        "trials": trials,
        "settings": settings,
        "orders": list(tables),
        "reference": [name for name in tables if name.startswith(REFERENCES)],
        "error": _statistics(tables, index, _error),
        "width": _statistics(tables, index, _width),
        "scans": {
            unit: _scans(tables, settings, unit, trials, seed)
            for unit in _units(first)
        },
        "cost": read_json(cost, COST) if cost.exists() else None,
    }  # fmt: skip


def _units(table: TaskOutputs) -> tuple[PolicyUnitName, ...]:
    return ("case",) if table.group is None else ("case", "group")


def _error(table: TaskOutputs, kept: np.ndarray) -> FloatArray:
    """The mean distance of the samples' mean output from the target, in each round."""
    rounds = range(table.rounds)
    off = [np.abs(table.outputs[k].mean(axis=1) - table.targets_at(k)) for k in rounds]
    return np.array([of[kept].mean() for of in off])


def _width(table: TaskOutputs, kept: np.ndarray) -> FloatArray:
    """The mean length of mLWR intervals over all splits, in each round."""
    found = [
        evaluate_exact(
            table.outputs[k][kept], table.targets_at(k)[kept], alpha=ALPHA,
            task_range=table.task_range,
        ).width.mean
        for k in range(table.rounds)
    ]  # fmt: skip
    return np.array(found)


def _statistics(
    tables: Mapping[str, TaskOutputs],
    index: np.ndarray,
    statistic: Callable[[TaskOutputs, np.ndarray], FloatArray],
) -> dict[str, Any]:
    """Values by order and round, and ratios to the mean of the references, with their errors."""
    references = [k for k, name in enumerate(tables) if name.startswith(REFERENCES)]

    @cache
    def values(present: bytes) -> FloatArray:
        kept = np.frombuffer(present)[index] > 0
        return np.stack([statistic(table, kept) for table in tables.values()])

    def both(sums: FloatArray) -> FloatArray:
        found = values(sums.tobytes())
        usual = found[references].mean(axis=0)
        everyone = np.concatenate([found, usual[None]])
        return np.stack([everyone, everyone / usual])

    # What a group adds is its presence: the sum tells who is there.
    with np.errstate(invalid="ignore", divide="ignore"):
        value, error = over_groups(both, np.eye(int(index.max()) + 1))
    return {
        name: {
            "value": value[0, k].tolist(), "error": error[0, k].tolist(),
            "ratio": value[1, k].tolist(), "ratio_error": error[1, k].tolist(),
        }
        for k, name in enumerate([*tables, USUAL])
    }  # fmt: skip


def _scans(
    tables: Mapping[str, TaskOutputs],
    settings: Sequence[tuple[float, float]],
    unit: PolicyUnitName,
    trials: int,
    seed: int,
) -> dict[str, Any]:
    """Mean accelerations of fixed-width scans, and what they cover."""
    plans = [PolicyPlan("fixed-width", alpha, Goal(max_width=width)) for alpha, width in settings]
    found: dict[str, Any] = {}
    for name, table in tables.items():
        rng = np.random.default_rng(seed)
        each = simulate(table, plans, trials=trials, rng=rng, unit=unit)
        found[name] = {
            key: {
                "value": [float(getattr(one, key)) for one in each],
                "error": [float(one.standard_errors[key]) for one in each],
            }
            for key in ("mean_acceleration", "coverage")
        }
    usual = [found[name] for name in tables if name.startswith(REFERENCES)]
    # Draws share their patients: the error of their mean is taken as large as that of one.
    found[USUAL] = {
        key: {part: np.mean([one[key][part] for one in usual], axis=0).tolist() for part in of}
        for key, of in usual[0].items()
    }
    return found


def markdown(records: Sequence[Mapping[str, Any]]) -> str:
    """Return comparisons as Markdown: for each a table with a row for each order.

    Arguments:
        records: What :func:`compare` returned, one after the other.
    """
    return "\n\n".join(_table(record) for record in records)


def _table(record: Mapping[str, Any]) -> str:
    units, settings = {"case": "case", "group": "patient"}, record["settings"]
    heads = ["order", *(f"error, {name}" for name in record["rounds"])]
    heads += [f"length, {name}" for name in record["rounds"]]
    for unit in record["scans"]:
        heads += [f"R̄ by {units[unit]}, α {a:g} τ {w:g} (coverage)" for a, w in settings]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name in _shown(record):
        cells = [name]
        for key in ("error", "width"):
            cells += [_with_ratio(record, key, name, k) for k in range(len(record["rounds"]))]
        for of in record["scans"].values():
            cells += [_scan(record, of, name, k) for k in range(len(settings))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([f"**{record['name']}**", "", *lines, "", _about(record)])


def _shown(record: Mapping[str, Any]) -> list[str]:
    """Orders with a row of their own: several draws are put together."""
    several = len(record["reference"]) > 1
    others = [name for name in record["orders"] if not several or name not in record["reference"]]
    return [USUAL, *others] if several else others


def _with_ratio(record: Mapping[str, Any], key: str, name: str, k: int) -> str:
    found = record[key][name]
    text = f"{found['value'][k]:.4f} ± {found['error'][k]:.4f}"
    if name in (USUAL, *record["reference"]):
        return text
    return f"{text}<br>{found['ratio'][k]:.3f} ± {found['ratio_error'][k]:.3f}"


def _scan(record: Mapping[str, Any], of: Mapping[str, Any], name: str, k: int) -> str:
    rate, covered = of[name]["mean_acceleration"], of[name]["coverage"]
    text = f"{rate['value'][k]:.2f} ± {rate['error'][k]:.2f} ({covered['value'][k]:.3f})"
    if name in (USUAL, *record["reference"]):
        return text
    return f"{text}<br>{rate['value'][k] / of[USUAL]['mean_acceleration']['value'][k]:.3f}"


def _about(record: Mapping[str, Any]) -> str:
    said = (
        f"{record['cases']} cases of {record['groups']} patients, {record['samples']} samples; "
        "errors are |mean output − target|, lengths those of mLWR intervals at α = "
        f"{ALPHA:g} over all splits by case, ± standard errors over patients; below them the ratio "
        f"to {'the mean of the draws' if len(record['reference']) > 1 else record['reference'][0]}."
    )
    said += f" R̄ and coverage of fixed-width scans over {record['trials']} random splits."
    cost = record["cost"]
    if cost is not None:
        pairs = zip(cost["accelerations"], cost["drawing"], cost["choosing"], strict=True)
        times = "; ".join(f"R = {R:g}: {a:.1f} and {b:.1f} ms" for R, a, b in pairs)
        said += f" Drawing {cost['samples']} samples and choosing, on {cost['device']}: {times}."
    return said


def _names(table: TaskOutputs) -> list[str]:
    return [] if table.case is None else [str(case) for case in table.case]
