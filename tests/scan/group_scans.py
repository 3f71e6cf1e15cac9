"""Groups of cases to scan: a table of them, and slices of the toy scanner."""

from dataclasses import dataclass, field

import numpy as np
import toy_scanner as toy

import taskuq as tq
from taskuq.table._examples import SyntheticTable, synthetic_outputs

TABLE = synthetic_outputs(SyntheticTable(volumes=40, samples=8), seed=3)
NEW = synthetic_outputs(SyntheticTable(volumes=12, samples=8), seed=4)


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


@dataclass
class StoredScanner:
    outputs: np.ndarray  # (round, case, sample), or (round, sample) of one case
    targets: np.ndarray
    measured: list = field(default_factory=list)

    def measure(self, round):
        self.measured.append(round)
        # One for all: an array with a leading case axis. The mark tells rounds of the same outputs
        # apart, and none is zero everywhere.
        last = np.asarray(self.targets)[..., None]
        read = self.outputs[round] if round < len(self.outputs) else last
        return np.concatenate([read, np.full_like(read[..., :1], round + 1)], axis=-1)

    def combine(self, pieces):
        return pieces[-1][..., :-1]


def recover(measurement, *, samples, seed):
    return np.atleast_1d(measurement)


def scan_stored(policy, outputs, targets, **options):
    """Scan stored cases (round, case, sample) as one group, with one scanner for all of them."""
    names = [f"slice-{i}" for i in range(len(targets))]
    return tq.acquire(
        policy, StoredScanner(outputs, targets), recover=recover, task=lambda images: images,
        samples=policy.samples, **{"cases": names, **options},
    )  # fmt: skip


def scanners_of(outputs, targets):
    return {
        f"slice-{i}": StoredScanner(outputs[:, i], targets[i]) for i in range(len(targets))
    }  # fmt: skip
