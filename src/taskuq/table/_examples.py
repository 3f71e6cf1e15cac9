"""Synthetic tables, and the metadata of the bundled tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from taskuq._io import read_json
from taskuq.interval import FloatArray
from taskuq.table._table import BUNDLED, TaskOutputs


@dataclass(frozen=True)
class SyntheticTable:
    """Parameters of a synthetic table of task outputs.

    Args:
        volumes: Number of groups, each with 18 to 28 cases.
        samples: Samples per case and round.
        accelerations: Acceleration of each round.
        error: Standard deviation of the error in each round, on the logit scale.
        bias: Bias of the outputs in each round, on the logit scale, as a multiple of ``error``.
    """

    volumes: int = 100
    samples: int = 32
    accelerations: tuple[float, ...] = (16.0, 8.0, 4.0, 2.0)
    error: tuple[float, ...] = (0.24, 0.14, 0.09, 0.06)
    bias: tuple[float, ...] = (0.4, 0.15, -0.2, -0.4)


def synthetic_outputs(scanner: SyntheticTable, *, seed: int | np.random.Generator) -> TaskOutputs:
    """Generate a table whose samples are under-dispersed, biased and correlated within groups.

    Args:
        scanner: Parameters of the table.
        seed: Integer or Generator for all random numbers.

    Example:
        >>> synthetic_outputs(SyntheticTable(volumes=2, samples=3), seed=0).samples
        3
    """
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(scanner.volumes), rng.integers(18, 29, scanner.volumes))
    n = len(group)
    label = _runs_of_positives(group, rng)
    truth = np.where(label == 1, 1.2, -1.6) + 1.1 * rng.standard_normal(n)
    truth += 0.5 * rng.standard_normal(scanner.volumes)[group]
    # Uncertainty differs a lot between cases and a little between volumes.
    by_case, by_volume = rng.standard_normal(n), rng.standard_normal(scanner.volumes)
    difficulty = np.exp(0.75 * by_case + 0.25 * by_volume[group])
    offset = 0.35 * rng.standard_normal(scanner.volumes)[group]

    variance = np.square(np.r_[scanner.error, 0.0])
    heavy_tails = rng.standard_t(5, (len(scanner.error), n)) * np.sqrt((5 - 2) / 5)
    steps = np.sqrt(variance[:-1] - variance[1:])[:, None] * heavy_tails
    error = np.cumsum(steps[::-1], axis=0)[::-1] * difficulty
    outputs = np.empty((len(scanner.error), n, scanner.samples), dtype=np.float32)
    for k, sigma in enumerate(scanner.error):
        scale = sigma * difficulty
        center = truth + error[k] + scale * (scanner.bias[k] + offset)
        spread = 0.45 * scale * np.exp(0.2 * rng.standard_normal(n))
        scatter = rng.standard_normal((n, scanner.samples))
        outputs[k] = _sigmoid(center[:, None] + spread[:, None] * scatter)
    return TaskOutputs(
        outputs, _sigmoid(truth), scanner.accelerations, group=group, label=label,
        task_names=("synthetic finding",), task_range=(0.0, 1.0),
        provenance={"synthetic": True, "seed": str(seed)},
    )  # fmt: skip


def _runs_of_positives(group: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    label = np.zeros(len(group), dtype=np.int64)
    volumes = int(group.max()) + 1
    # Four in ten volumes have the finding, in one run of slices; about 15 % of all slices.
    for volume in rng.permutation(volumes)[: round(0.4 * volumes)]:
        cases = np.flatnonzero(group == volume)
        length = min(len(cases), max(1, rng.poisson(0.15 / 0.4 * len(cases))))
        start = rng.integers(0, len(cases) - length + 1)
        label[cases[start : start + length]] = 1
    return label


def _sigmoid(logit: FloatArray) -> FloatArray:
    return np.asarray(1 / (1 + np.exp(-logit)))


def stored_quality() -> dict[str, Any]:
    """Read the stored image quality of the bundled networks on unseen patients."""
    return read_json(BUNDLED / "atlas-quality.json", "taskuq.quality/1")
