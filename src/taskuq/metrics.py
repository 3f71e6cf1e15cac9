"""Metrics of intervals and posterior samples, for torchmetrics and Lightning."""

from __future__ import annotations

from typing import Any

from taskuq.errors import InputError, import_extra

import_extra("torchmetrics", "taskuq[mri]")

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torchmetrics import Metric  # noqa: E402

__all__ = ["CRPS", "IntervalCoverage", "IntervalWidth", "RankHistogram"]


class _Mean(Metric):
    """Base class of metrics that are means over all cases and processes."""

    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def _add(self, values: Tensor) -> None:
        self.total += values.double().sum()
        self.count += values.numel()

    def compute(self) -> Tensor:
        """Return the mean over all cases added so far."""
        return self.total / self.count


class IntervalCoverage(_Mean):
    """Fraction of targets that lie in their interval or at one of its ends.

    Example:
        >>> coverage = IntervalCoverage()
        >>> coverage(torch.tensor([0.0, 0.5]), torch.tensor([0.4, 0.6]), torch.tensor([0.3, 0.7]))
        tensor(0.5000, dtype=torch.float64)
    """

    higher_is_better = True

    def update(self, lower: Tensor, upper: Tensor, targets: Tensor) -> None:
        """Add intervals, given as arrays of lower and upper ends, and one target per interval."""
        self._add((lower <= targets) & (targets <= upper))


class IntervalWidth(_Mean):
    """Mean width of intervals; an empty interval has width 0."""

    higher_is_better = False

    def update(self, lower: Tensor, upper: Tensor) -> None:
        """Add intervals, given as arrays of lower and upper ends."""
        self._add((upper - lower).clamp(min=0))


class CRPS(_Mean):
    r"""Fair continuous ranked probability score of samples; smaller is better.

    .. math:: \frac1p \sum_j |\hat z^j - z| - \frac{1}{2p(p-1)} \sum_{j,k} |\hat z^j - \hat z^k|
    """

    higher_is_better = False

    def update(self, samples: Tensor, targets: Tensor) -> None:
        """Add samples (case, sample), at least two per case, and targets (case,)."""
        x, p = samples.double().sort(dim=-1).values, samples.shape[-1]
        if p < 2:
            raise InputError(f"CRPS needs at least 2 samples, got {p}", code="samples.mismatch")
        # Differences of all pairs, from the order statistics.
        weight = 2 * torch.arange(p, dtype=x.dtype, device=x.device) - (p - 1)
        pairs = (x * weight).sum(dim=-1) / (p * (p - 1))
        self._add((x - targets.double()[..., None]).abs().mean(dim=-1) - pairs)


class RankHistogram(Metric):
    """Histogram of the rank of the target among the samples: the number of samples below it.

    If samples tie with the target, the case counts equally for each possible rank.

    Args:
        samples: Number of samples per case.
        kwargs: Other arguments of :class:`torchmetrics.Metric`.
    """

    full_state_update = False
    counts: Tensor

    def __init__(self, samples: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.samples = samples
        counts = torch.zeros(samples + 1, dtype=torch.float64)
        self.add_state("counts", counts, dist_reduce_fx="sum")

    def update(self, samples: Tensor, targets: Tensor) -> None:
        """Add samples (case, sample) and targets (case,)."""
        if samples.shape[-1] != self.samples:
            message = f"the histogram has {self.samples} samples, got {samples.shape[-1]}"
            raise InputError(message, code="samples.mismatch")
        below = (samples < targets[..., None]).sum(dim=-1)
        above = (samples <= targets[..., None]).sum(dim=-1)
        rank = torch.arange(self.samples + 1, device=samples.device)
        there = (rank >= below[..., None]) & (rank <= above[..., None])
        self.counts += (there / there.sum(dim=-1, keepdim=True).double()).sum(dim=0)

    def compute(self) -> Tensor:
        """Return the number of cases with each rank, (samples + 1,)."""
        return self.counts
