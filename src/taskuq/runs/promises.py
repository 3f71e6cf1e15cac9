"""What the page of a run says is guaranteed, and every shortage beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from taskuq.calibration.bound import Bound
from taskuq.calibration.units import Unit, unit_named
from taskuq.decide.policy import Policy
from taskuq.errors import InputError
from taskuq.fingerprints import fingerprint
from taskuq.report.contents import Promise
from taskuq.words import round_label

# Promises shown where none is short of anything.
SHOWN_PROMISES = 4


def promises(
    evaluations: Iterable[Mapping[str, Any]],
    opened: Sequence[Policy | Bound],
    watches: Iterable[Mapping[str, Any]] = (),
) -> list[Promise]:
    """Return what is guaranteed, each promise once: the first few, and all that are short.

    Arguments:
        evaluations: Records of evaluations; they speak where nothing calibrated is stored.
        opened: The stored policy and bounds.
        watches: Records of monitors: one may have withdrawn the promise of a policy.
    """
    withdrawn = {w["policy"]: str(w["sentence"]) for w in watches if w["withdrawn"] is not False}
    found = [Promise(_sentence(one), _shortages(one, withdrawn)) for one in opened]
    if not found:
        found = [p for record in evaluations if (p := _of_splits(record)) is not None]
    found = list(dict.fromkeys(found))
    return [p for k, p in enumerate(found) if k < SHOWN_PROMISES or p.shortages]


def _sentence(stored: Policy | Bound) -> str:
    return stored.sentence if isinstance(stored, Policy) else stored.guarantee.sentence


def _shortages(stored: Policy | Bound, withdrawn: Mapping[str, str]) -> tuple[str, ...]:
    """Why a stored policy or bound does less than its sentence may lead one to think."""
    short = stored.guarantee.shortage
    if isinstance(stored, Policy):
        if short is None and np.isposinf(stored.thresholds).any():
            short = "no scan may stop in a round whose threshold is infinite"
        lost = withdrawn and withdrawn.get(fingerprint(stored.to_dict()))
        return tuple(s for s in (lost, short and f"But {short}.", stored.outlook) if s)
    if short is None and not stored.is_finite:
        short = "no finite interval keeps it: the interval is the whole task range"
    return (f"But {short}.",) if short else ()


def _of_splits(record: Mapping[str, Any]) -> Promise | None:
    """What an evaluation says is guaranteed, where nothing calibrated is stored."""
    first = record["results"][0]
    unit = unit_said(first["unit"])
    if unit is None:
        return None
    without = [r for r in record["results"] if r.get("infinite")]
    short: tuple[str, ...] = ()
    if without:
        worst = max(without, key=lambda r: float(r["infinite"]))
        at = "" if worst["acceleration"] is None else f" at {_round(worst)}"
        share = "all" if float(worst["infinite"]) == 1 else f"{float(worst['infinite']):.4g}"
        short = (
            f"But {share} of the splits give no finite interval{at} "
            f"({worst['score']}): there it is the whole task range.",
        )
    return Promise(
        f"Guaranteed: an interval calibrated as in these splits contains the target of "
        f"{unit.who} with probability at least {1 - first['alpha']:.10g}, if the new "
        f"{first['unit']} is exchangeable with the {first['n_calibration']} calibration "
        f"{first['unit']}s.",
        short,
    )


def _round(row: Mapping[str, Any]) -> str:
    return round_label(float(row["acceleration"]), row.get("round_name"))


def unit_said(said: Any) -> Unit | None:
    """Return the unit that a run or a record names, if it names one."""
    try:
        return unit_named(said, whole=True)
    except InputError:
        return None
