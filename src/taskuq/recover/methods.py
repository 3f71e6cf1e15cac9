"""Recoveries by name: the one list, and those that need no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from taskuq.errors import InputError
from taskuq.measure.coils import rss
from taskuq.pipeline.precomputed import RecoveryFolder
from taskuq.protocols import Recover
from taskuq.recover.scan import Scan, checked
from taskuq.training.networks import Methods
from taskuq.weights import locate
from taskuq.weights.files import read_card

RECOVERIES = Methods(
    "recovery",
    "recover",
    {
        "zero-filled": "taskuq.recover.methods:ZeroFilled",
        "folder": "taskuq.recover.methods:FolderMethod",
        "back-projection": "taskuq.recover.tomography.classical:BackProjection",
        "ensemble": "taskuq.recover.ensemble:EnsembleMethod",
    },
)


@dataclass(frozen=True)
class ZeroFilled:
    """The baseline: zeros in the lines that were not measured, coils combined.

    It is its own table ``[recover]``, which has no keys.

    Example:
        >>> from taskuq.measure.mri import Measurement
        >>> scan = Measurement(torch.ones(4, 8, 8) + 0j, torch.ones(8, dtype=torch.bool), 1.0)
        >>> ZeroFilled()(scan, samples=32, seed=0).shape  # a point estimate has one sample
        torch.Size([1, 8, 8])
    """

    def __call__(self, measurement: Scan, *, samples: int, seed: int) -> Tensor:
        """Return the zero-filled magnitude image, (1, height, width)."""
        return rss(checked(measurement).zero_filled)[None]

    def batch(self, measurements: Sequence[Scan], *, samples: int, seeds: Sequence[int]) -> Tensor:
        """Return the zero-filled magnitude images of several cases, (case, 1, height, width)."""
        return rss(torch.stack([checked(scan).zero_filled for scan in measurements]))[:, None]

    def open(self, device: torch.device | str) -> ZeroFilled:
        """Return itself: it runs where its measurements are."""
        return self


@dataclass(frozen=True)
class FolderMethod:
    """The table ``[recover]`` of recoveries that were made elsewhere.

    Arguments:
        path: The folder (:class:`taskuq.pipeline.precomputed.RecoveryFolder`).
    """

    path: Path | None = None

    def open(self, device: torch.device | str) -> RecoveryFolder:
        """Return the folder."""
        if self.path is None:
            raise InputError("recover.path is missing; name the folder of recoveries")
        return RecoveryFolder(self.path)


def open_recovery(
    weights: Path | str, *, device: torch.device | str = "cpu", **settings: Any
) -> Recover:
    """Load a network of any kind and make it ready to recover for :class:`taskuq.Pipeline`.

    Arguments:
        weights: A .safetensors file, or a name of the package's own networks.
        device: Where to run.
        settings: What else the table ``[recover]`` of its kind may say, e.g. ``temperature`` of a
            flow.

    Example:
        >>> type(open_recovery("varnet-atlas")).__name__
        'VarNetRecovery'
    """
    kind = read_card(locate(weights), RECOVERIES.networks())["kind"]
    opened: Recover = RECOVERIES[kind](weights=weights, **settings).open(device)
    return opened
