"""Groups of cases to scan: a table of them, and slices of the toy scanner."""

import numpy as np
import toy_scanner as toy

import taskuq as tq
from taskuq.table._examples import SyntheticTable, synthetic_outputs

TABLE = synthetic_outputs(SyntheticTable(volumes=40, samples=8), seed=3)
NEW = synthetic_outputs(SyntheticTable(volumes=30, samples=8), seed=4)


def planned(unit, **options):
    return tq.plan(TABLE, **{"alpha": 0.1, "max_width": 0.1, "unit": unit, **options})


def groups_of(table):
    return [np.flatnonzero(table.group == g) for g in np.unique(table.group)]


def record(scan):
    return {name: [r.to_dict() for r in case.rounds] for name, case in scan.cases.items()}


def toy_scan(policy, seeds, **options):
    scanners = options.pop("scanners", None) or toy_scanners(seeds)
    return tq.acquire(policy, scanners, **{**toy.STEPS, **options})


def toy_scanners(seeds):
    return {f"slice-{s}": toy.scanner_of(s) for s in seeds}
