"""What a bound promises, to whom, and the quantile that keeps the promise."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from taskuq.calibration.betting import Bets
from taskuq.calibration.rank import exact_level, promised_rank
from taskuq.calibration.units import Unit, UnitName, unit_named
from taskuq.errors import InputError
from taskuq.interval import FloatArray


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
        ends: How many quantiles share the error rate: 2 where each end of an interval has its own.

    Example:
        >>> print(Guarantee(alpha=0.05, unit="case", n_cases=1531).sentence)
        Guaranteed: the interval contains the target of a new case with probability at least 0.95,
        if the new case is exchangeable with the 1531 calibration cases.
    """

    alpha: float
    unit: UnitName
    n_cases: int
    cases: float | str = "random"
    delta: float | None = None
    n_groups: int | None = None
    condition: str | None = None
    shifted: bool = False
    tasks: int = 1
    ends: int = 1

    def __post_init__(self) -> None:
        # A float of any kind, or a fraction, becomes the plain float that JSON can hold.
        object.__setattr__(self, "alpha", float(exact_level(self.alpha)))
        if self.delta is not None:
            object.__setattr__(self, "delta", float(exact_level(self.delta, "delta")))
        unit_named(self.unit, self.cases)
        if self.ends not in (1, 2):
            raise InputError(f"an interval has 1 or 2 quantiles of its own, got ends={self.ends}")

    @property
    def whom(self) -> Unit:
        """What is exchangeable, and which of its cases are covered."""
        return unit_named(self.unit, self.cases)

    @property
    def whom_by_end(self) -> Unit:
        """Whom each end covers by itself, so that both ends together keep the promise."""
        whom = self.whom
        if whom.share is None:
            return whom
        # Ends that lose half of 1 - share of the cases each lose no more than 1 - share.
        return unit_named(self.unit, str(1 - (1 - whom.share) / self.ends))

    @property
    def levels(self) -> tuple[Fraction, Fraction | None]:
        """What each end may spend of alpha and of delta, exactly."""
        delta = None if self.delta is None else exact_level(self.delta, "delta") / self.ends
        return exact_level(self.alpha) / self.ends, delta

    @property
    def sentence(self) -> str:
        """The promise in one sentence."""
        likely = f"probability at least {float(1 - exact_level(self.alpha)):.10g}"
        whom = self.whom
        is_one = self.tasks == 1 and whom.share is None
        target = "the target" if is_one else "the targets"
        target = target if self.tasks == 1 else f"all {self.tasks} targets"
        subject = "the interval contains" if is_one else "the intervals contain"
        source = whom.source(self.n_cases, self.n_groups)
        assumed = "exchangeable with" if self.delta is None else "independent of and alike to"
        promise = f"{subject} {target} of {whom.who} with {likely}"
        if self.condition:
            promise += f" within {self.condition}"
        if self.delta is not None:
            promise += (
                f", for all but {float(exact_level(self.delta, 'delta')):.4g} of calibration sets"
            )
        if self.shifted:
            promise += ", under the shift that the weights describe"
            assumed = "drawn independently of"
        return f"Guaranteed: {promise}, if the new {self.unit} is {assumed} {source}."

    @property
    def shortage(self) -> str:
        """Why no finite interval can be promised, and how many units would do."""
        have = self.n_groups if self.whom.is_group else self.n_cases
        within = f" in {self.condition}" if self.condition else ""
        needed = self.whom_by_end.needed(*self.levels)
        extra = "" if self.delta is None else f" and delta={self.delta:g}"
        extra += "" if self.ends == 1 else " with a quantile for each end"
        return (
            f"alpha={self.alpha:g}{extra} needs at least {needed} calibration {self.unit}s"
            f"{within}, got {have}: the interval is the whole task range"
        )

    def quantile(self, scores: FloatArray, group: np.ndarray | None) -> float:
        """Return the quantile of calibration scores that keeps this promise, or one end's part.

        Arguments:
            scores: Calibration scores (case,), of one end where each has a quantile.
            group: The group of each case, where groups are the unit.

        Example:
            >>> Guarantee(alpha=0.1, unit="case", n_cases=9).quantile(np.arange(1.0, 10.0), None)
            9.0
        """
        return self.whom_by_end.quantile(scores, group, *self.levels)

    def allowed(self, units: int) -> float:
        """Return the weight of scores that may lie above the quantile of so many units."""
        return self.whom_by_end.allowed(units, *self.levels)

    @property
    def bets(self) -> Bets | None:
        """What has to certify losses besides, where no fixed weight allows them."""
        return self.whom_by_end.bets(*self.levels)

    def rank(self, units: int) -> int:
        """Return the rank of the quantile among the scores of so many units."""
        return promised_rank(units, *self.levels)
