"""What a bound promises, to whom, and the quantile that keeps the promise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from taskuq.calibration.groups import group_index as number_groups
from taskuq.calibration.groups import (
    hierarchical_quantile,
    pac_mean_loss,
    quantile_of_mean_loss,
    worst_scores,
)
from taskuq.calibration.rank import (
    cases_needed,
    coverage_rank,
    exact_level,
    order_statistic,
    pac_rank,
)
from taskuq.calibration.threshold import exact_share
from taskuq.errors import InputError
from taskuq.interval import FloatArray

Unit: TypeAlias = Literal["case", "group"]


@dataclass(frozen=True)
class Guarantee:
    """A promise in terms of its unit, ready to be said in a sentence.

    Arguments:
        alpha: The error rate.
        unit: Whether cases or groups are exchangeable.
        cases: For groups, which cases of a new group: 'random', 'all' or a share.
        delta: For a promise given the calibration set, the probability of an unlucky one.
        n_cases: The calibration cases behind it.
        n_groups: The calibration groups behind it, where groups are the unit.
        condition: What the promise is conditional on, e.g. 'each stratum'.
        shifted: Whether the new inputs are reweighted for a known shift.
        tasks: How many tasks are covered jointly.

    Example:
        >>> print(Guarantee(alpha=0.05, unit="case", n_cases=1531).sentence)
        Guaranteed: the interval contains the target of a new case with probability at least 0.95,
        if the new case is exchangeable with the 1531 calibration cases.
    """

    alpha: float
    unit: Unit
    n_cases: int
    cases: float | str = "random"
    delta: float | None = None
    n_groups: int | None = None
    condition: str | None = None
    shifted: bool = False
    tasks: int = 1

    def __post_init__(self) -> None:
        # A float of any kind, or a fraction, becomes the plain float that JSON can hold.
        object.__setattr__(self, "alpha", float(exact_level(self.alpha)))
        if self.unit not in ("case", "group"):
            raise InputError(f"unit must be 'case' or 'group', got {self.unit!r}")
        if self.delta is not None:
            object.__setattr__(self, "delta", float(exact_level(self.delta, "delta")))
        if self.unit == "group" and self.cases != "random":
            exact_share(self.cases)

    @property
    def sentence(self) -> str:
        """The promise in one sentence."""
        likely = f"probability at least {float(1 - exact_level(self.alpha)):.10g}"
        target = "the target" if self.tasks == 1 else f"all {self.tasks} targets"
        subject = "the interval contains" if self.tasks == 1 else "the intervals contain"
        if self.unit == "case":
            who, source = "a new case", f"the {self.n_cases} calibration cases"
            new = "the new case is"
        else:
            source = f"the {self.n_groups} calibration groups ({self.n_cases} cases)"
            new = "the new group is"
            who = "a random case of a new group"
        if self.unit == "group" and self.cases != "random":
            share = exact_share(self.cases)
            part = "every case" if share == 1 else f"at least {float(share):.4g} of the cases"
            who = f"{part} of a new group"
            target = "the targets" if self.tasks == 1 else f"all {self.tasks} targets"
            subject = "the intervals contain"
        assumed = "exchangeable with" if self.delta is None else "independent of and alike to"
        promise = f"{subject} {target} of {who} with {likely}"
        if self.condition:
            promise += f" within {self.condition}"
        if self.delta is not None:
            promise += (
                f", for all but {float(exact_level(self.delta, 'delta')):.4g} of calibration sets"
            )
        if self.shifted:
            promise += ", under the shift that the weights describe"
            assumed = "drawn independently of"
        return f"Guaranteed: {promise}, if {new} {assumed} {source}."

    @property
    def needed(self) -> int:
        """How many calibration units a finite interval needs."""
        if self.delta is None:
            return cases_needed(self.alpha)
        a, d = float(exact_level(self.alpha)), float(exact_level(self.delta, "delta"))
        if self.unit == "group" and self.cases == "random":
            groups = max(1, math.floor(math.log(d) / math.log(1 - a)))
            while pac_mean_loss(groups, self.alpha, self.delta) < 0:
                groups += 1
            return groups
        return math.ceil(math.log(d) / math.log(1 - a) - 1e-12)

    @property
    def shortage(self) -> str:
        """Why no finite interval can be promised, and how many units would do."""
        have = self.n_cases if self.unit == "case" else self.n_groups
        within = f" in {self.condition}" if self.condition else ""
        extra = "" if self.delta is None else f" and delta={self.delta:g}"
        return (
            f"alpha={self.alpha:g}{extra} needs at least {self.needed} calibration {self.unit}s"
            f"{within}, got {have}: the interval is the whole task range"
        )

    def quantile(self, scores: FloatArray, group: np.ndarray | None) -> float:
        """Return the quantile of calibration scores that keeps this promise.

        Arguments:
            scores: Calibration scores (case,).
            group: The group of each case, where groups are the unit.

        Example:
            >>> Guarantee(alpha=0.1, unit="case", n_cases=9).quantile(np.arange(1.0, 10.0), None)
            9.0
        """
        n = len(scores)
        if self.unit == "case":
            return order_statistic(scores, self.rank(n))
        assert group is not None
        if self.cases != "random":
            worst = worst_scores(scores, group, exact_share(self.cases))
            return order_statistic(worst, self.rank(len(worst)))
        if self.delta is None:
            return hierarchical_quantile(scores, group, self.alpha)
        index, sizes = number_groups(group)
        allowed = pac_mean_loss(len(sizes), self.alpha, self.delta)
        return math.inf if allowed < 0 else quantile_of_mean_loss(scores, index, sizes, allowed)

    def rank(self, units: int) -> int:
        """Return the rank of the quantile among the scores of so many units."""
        if self.delta is None:
            return coverage_rank(units, self.alpha)
        return pac_rank(units, self.alpha, self.delta)

    def to_dict(self) -> dict[str, Any]:
        """Return a description that JSON can hold."""
        return asdict(self)


def guarantee_from_dict(record: Mapping[str, Any]) -> Guarantee:
    """Read a guarantee back from its description."""
    return Guarantee(**record)
