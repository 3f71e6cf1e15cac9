"""Synthetic and bundled tables."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from taskuq._io import read_json
from taskuq.errors import InputError
from taskuq.interval import FloatArray
from taskuq.table._table import TaskOutputs


@dataclass(frozen=True)
class SyntheticTable:
    """How the synthetic table is made; nothing in it was measured on anybody.

    A case has a latent logit of the truth. Its error at a round is the sum of heavy-tailed steps
    that later rounds remove one by one, so that measurements are nested. Posterior samples scatter
    around the erroneous logit, with a bias per round and per volume, and less than the error
    deserves.

    Arguments:
        volumes: The number of volumes.
        positives: The share of cases with the pathology, in runs of neighbouring slices.
        accelerations: The rounds.
        samples: Posterior samples per case and round.
        error: The standard deviation of the logit error left at each round.
        dispersion: Reported over true spread; below 1 the sampler is too sure.
        bias: Bias at each round, in units of its error.
        volume_bias: Spread of a bias shared by the slices of a volume, in units of the error.
    """

    volumes: int = 100
    positives: float = 0.15
    accelerations: tuple[float, ...] = (16.0, 8.0, 4.0, 2.0)
    samples: int = 32
    error: tuple[float, ...] = (0.24, 0.14, 0.09, 0.06)
    dispersion: float = 0.45
    bias: tuple[float, ...] = (0.4, 0.15, -0.2, -0.4)
    volume_bias: float = 0.35


def synthetic_outputs(scanner: SyntheticTable, *, seed: int) -> TaskOutputs:
    """Make a synthetic table.

    Arguments:
        scanner: How it is made.
        seed: Two equal seeds give the same table.

    Example:
        >>> table = synthetic_outputs(SyntheticTable(volumes=5, samples=4), seed=0)
        >>> table.rounds, table.samples, len(set(table.group)), table.task_range
        (4, 4, 5, (0.0, 1.0))
    """
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(scanner.volumes), rng.integers(18, 29, scanner.volumes))
    n = len(group)
    label = _runs_of_positives(group, scanner.positives, rng)
    truth = np.where(label == 1, 1.2, -1.6) + 1.1 * rng.standard_normal(n)
    truth += 0.5 * rng.standard_normal(scanner.volumes)[group]
    # How uncertain a case is differs a lot between cases and a little between volumes.
    difficulty = np.exp(
        0.75 * rng.standard_normal(n) + 0.25 * rng.standard_normal(scanner.volumes)[group]
    )
    offset = scanner.volume_bias * rng.standard_normal(scanner.volumes)[group]

    variance = np.square(np.r_[scanner.error, 0.0])
    steps = np.sqrt(variance[:-1] - variance[1:])[:, None] * _heavy_tails(
        (len(scanner.error), n), rng
    )
    error = np.cumsum(steps[::-1], axis=0)[::-1] * difficulty
    outputs = np.empty((len(scanner.error), n, scanner.samples), dtype=np.float32)
    for k, sigma in enumerate(scanner.error):
        scale = sigma * difficulty
        center = truth + error[k] + scale * (scanner.bias[k] + offset)
        spread = scanner.dispersion * scale * np.exp(0.2 * rng.standard_normal(n))
        scatter = rng.standard_normal((n, scanner.samples))
        outputs[k] = _sigmoid(center[:, None] + spread[:, None] * scatter)
    return TaskOutputs(
        outputs,
        _sigmoid(truth),
        scanner.accelerations,
        group=group,
        label=label,
        task_names=("synthetic finding",),
        task_range=(0.0, 1.0),
        provenance={"synthetic": True, "seed": seed, "scanner": _plain(asdict(scanner))},
    )


def _runs_of_positives(group: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    label = np.zeros(len(group), dtype=np.int64)
    volumes = int(group.max()) + 1
    # Four in ten volumes have the finding, in one run long enough to reach the share overall.
    for volume in rng.permutation(volumes)[: round(0.4 * volumes)]:
        cases = np.flatnonzero(group == volume)
        length = min(len(cases), max(1, rng.poisson(share / 0.4 * len(cases))))
        start = rng.integers(0, len(cases) - length + 1)
        label[cases[start : start + length]] = 1
    return label


def _heavy_tails(shape: tuple[int, int], rng: np.random.Generator) -> FloatArray:
    degrees = 5
    return np.asarray(rng.standard_t(degrees, shape) * np.sqrt((degrees - 2) / degrees))


def _sigmoid(logit: FloatArray) -> FloatArray:
    return np.asarray(1 / (1 + np.exp(-logit)))


def _plain(record: dict[str, object]) -> dict[str, object]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in record.items()}


FOLDER = Path(__file__).parent / "bundled"


def stored() -> list[str]:
    """Return the names of the tables in the package.

    Example:
        >>> stored()
        ['atlas-sampler', 'atlas-varnet']
    """
    return sorted(path.stem for path in FOLDER.glob("*.npz"))


def stored_table(name: str) -> TaskOutputs:
    """Read a table of the package.

    ``atlas-sampler`` has posterior samples of atlas patients that no network was trained on,
    ``atlas-varnet`` point estimates of the same slices. ``taskuq run`` makes them from
    configs/atlas/table-sampler.toml and configs/atlas/table-varnet.toml.

    Arguments:
        name: One of :func:`stored`.

    Example:
        >>> stored_table("atlas-varnet").samples
        1
    """
    if name not in stored():
        raise InputError(f"the package has no table {name!r}; it has {', '.join(stored())}")
    return TaskOutputs.load(FOLDER / f"{name}.npz")


def stored_quality() -> dict[str, Any]:
    """Read how well the package's networks recover patients that none of them has seen.

    ``taskuq quality configs/atlas/quality.toml`` measured it.

    Example:
        >>> stored_quality()["schema"]
        'taskuq.quality/1'
    """
    return read_json(FOLDER / "atlas-quality.json", "taskuq.quality/1")
