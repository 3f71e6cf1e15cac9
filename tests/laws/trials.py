"""Trials by the public functions alone: calibrate on some cases, and examine a new unit."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import numpy as np

import taskuq as tq
from laws.enumeration import Calibrated, Trial
from laws.populations import Cases, Population, Unit

RATES = (8.0, 4.0, 2.0)


def bound(
    population: Population, alpha: float, *, by_group: bool = False, by_site: bool = False,
    strata: bool = False, label: bool = False, weights: bool = False, **options: Any,
) -> Trial:  # fmt: skip
    """Calibrate a bound, and predict all cases of the new unit."""

    def trial(cases: Cases) -> Calibrated:
        given = {
            "group": patients(cases) if by_site else cases.group if by_group else None,
            **({"site": cases.group, "unit": "site"} if by_site else {}),
            "strata": cases.strata if strata else None,
            "label": cases.strata if label else None,
            "weights": cases.weights if weights else None,
        }
        calibrated = tq.calibrate(
            cases.outputs[-1, ..., 0], cases.targets[:, 0], alpha=alpha,
            task_range=population.task_range, **given, **options,
        )  # fmt: skip

        def examine(new: Unit) -> tuple[np.ndarray, np.ndarray]:
            interval = calibrated(
                new.outputs[-1, ..., 0],
                strata=new.strata if strata else None,
                weights=np.full(len(new), new.weight) if weights else None,
            )
            return ~interval.contains(new.targets[:, 0]), informed(interval, population)

        return Calibrated(examine, calibrated.provenance["tuning_cases"])

    return trial


def joint_bound(
    population: Population, alpha: float, *, by_group: bool = False, **options: Any
) -> Trial:
    """Calibrate one bound for all tasks; a case is missed if any of its targets is."""

    def trial(cases: Cases) -> Calibrated:
        calibrated = tq.calibrate_joint(
            cases.outputs[-1], cases.targets, alpha=alpha, task_range=population.task_range,
            group=cases.group if by_group else None, **options,
        )  # fmt: skip

        def examine(new: Unit) -> tuple[np.ndarray, np.ndarray]:
            interval = calibrated(new.outputs[-1])
            missed = ~interval.contains(new.targets).all(axis=1)
            return missed, informed(interval, population).any(axis=1)

        return Calibrated(examine, calibrated.provenance["tuning_cases"])

    return trial


def informed(interval: tq.Interval, population: Population) -> np.ndarray:
    """Return True where an interval is not the whole range, or line."""
    low, high = population.task_range or (-np.inf, np.inf)
    return np.asarray((interval.lower > low) | (interval.upper < high))


def patients(cases: Cases) -> np.ndarray:
    """Return the patient of each case, where units are sites and strata their patients."""
    return np.asarray(100 * cases.group + cases.strata)


def planned(
    population: Population, known: Cases, alpha: float, by: str, max_width: float | None = 0.3,
    within: str | None = None, **options: Any,
) -> Any:  # fmt: skip
    """Plan a policy on a table of the given cases, `within` classes ('label') or 'strata'."""
    options |= {} if within is None else {within: known.strata}
    group = {"case": None, "site": patients(known)}.get(by, known.group)
    table = tq.TaskOutputs(
        known.outputs[..., 0], known.targets[:, 0], RATES[: len(known.outputs)],
        group=group, site=known.group if by == "site" else None, task_range=population.task_range,
    )  # fmt: skip
    return tq.plan(table, alpha=alpha, max_width=max_width, unit=by, **options)


def scan(policy: Any, new: Unit) -> tuple[np.ndarray, np.ndarray]:
    """Scan the new unit: which cases are missed at the stop, and which stop early.

    A case is missed if the interval at the stop lacks its target, or is wider than was asked.
    """
    if policy.strata:
        return scan_in_strata(policy, new)
    missed, scanning = np.zeros(len(new), dtype=bool), np.ones(len(new), dtype=bool)
    stop_round = np.zeros(len(new), dtype=int)
    for k in range(len(new.outputs)):
        decision = policy.decide(k, new.outputs[: k + 1, ..., 0])
        wide = decision.interval.width > (policy.goal.max_width or np.inf) * (1 + 1e-12)
        bad = wide | ~decision.interval.contains(new.targets[:, 0])
        missed |= scanning & decision.stops & bad
        stop_round[scanning & decision.stops] = k + 1
        scanning &= ~decision.stops
    # Where each round has its guarantee, the round of the stop counts from 1.
    return missed, stop_round if policy.guarantee.given == "round" else ~scanning


def scan_in_strata(policy: Any, new: Unit) -> tuple[np.ndarray, np.ndarray]:
    """Scan the cases of each stratum with its own policy; those of no stratum do not stop."""
    missed, early = np.zeros(len(new), dtype=bool), np.zeros(len(new), dtype=bool)
    for stratum in np.unique(new.strata):
        inside = new.strata == stratum
        if str(stratum) in policy.strata:
            part = Unit(new.outputs[:, inside], new.targets[inside], new.strata[inside], new.weight)
            missed[inside], early[inside] = scan(policy.for_stratum(stratum), part)
    return missed, early


def stopped(population: Population, alpha: float, *, by: str, **options: Any) -> Trial:
    """Plan a policy and scan the new unit with it: each case by itself, or all together."""

    def trial(cases: Cases) -> Calibrated:
        policy = planned(population, cases, alpha, by, **options)
        chosen = policy.provenance.get("chosen", {"cases": 0})
        aside = chosen["cases"] + policy.provenance["tuning_cases"]
        return Calibrated(partial(scan, policy), aside)

    return trial


def in_all_rounds(population: Population, alpha: float, *, by: str, **options: Any) -> Trial:
    """Plan a policy; a case is missed if the interval of any round lacks its target."""

    def trial(cases: Cases) -> Calibrated:
        policy = planned(population, cases, alpha, by, policy="anytime", **options)

        def examine(new: Unit) -> tuple[np.ndarray, np.ndarray]:
            missed, known = np.zeros(len(new), dtype=bool), np.zeros(len(new), dtype=bool)
            for k in range(len(new.outputs)):
                interval = policy.decide(k, new.outputs[: k + 1, ..., 0]).interval
                missed |= ~interval.contains(new.targets[:, 0])
                known |= informed(interval, population)
            return missed, known

        return Calibrated(examine, policy.provenance["tuning_cases"])

    return trial


def given(trial: Any) -> Any:
    """Make a trial that takes delta as its third argument, for guarantees given the calibration."""

    def of(population: Population, alpha: float, delta: float) -> Trial:
        return cast(Trial, trial(population, alpha, delta=delta))

    return of
