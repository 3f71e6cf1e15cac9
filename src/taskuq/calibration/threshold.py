"""From calibration scores to the quantile of each new case."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from taskuq.calibration.guarantee import WHOLE_RANGE, Guarantee
from taskuq.calibration.rank import exact_level
from taskuq.checks import as_ids, as_numbers
from taskuq.errors import InputError
from taskuq.files import number_from_json, number_to_json
from taskuq.interval import FloatArray


class Threshold(ABC):
    """The quantile that each new case is given."""

    @abstractmethod
    def at(self, cases: int, strata: Any, weights: Any) -> FloatArray:
        """Return the quantile of each of ``cases`` new cases."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return a description that JSON can hold, infinity as a string."""

    @property
    @abstractmethod
    def quantiles(self) -> tuple[float, ...]:
        """The threshold summed up: one number, or one for the lower and one for the upper end."""

    @property
    def quantile(self) -> float:
        """The largest of these."""
        return max(self.quantiles)


@final
@dataclass(frozen=True)
class OneQuantile(Threshold):
    """The same quantile for every case.

    Example:
        >>> OneQuantile(0.5).at(2, None, None)
        array([0.5, 0.5])
    """

    kind: ClassVar[str] = "one"
    value: float

    @property
    def quantiles(self) -> tuple[float, ...]:
        """The quantile."""
        return (self.value,)

    def at(self, cases: int, strata: Any, weights: Any) -> FloatArray:
        """Return the quantile, once for each case."""
        if strata is not None or weights is not None:
            raise InputError(
                "this bound was calibrated without strata or weights; call it without them"
            )
        return np.full(cases, self.value)

    def to_dict(self) -> dict[str, Any]:
        """Return a description that JSON can hold."""
        return {"kind": self.kind, "quantile": number_to_json(self.value)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> OneQuantile:
        """Read back what :meth:`to_dict` wrote."""
        return cls(number_from_json(record["quantile"]))


@final
@dataclass(frozen=True)
class StratumQuantiles(Threshold):
    """A quantile for each stratum; a stratum never calibrated gets an infinite one.

    Example:
        >>> StratumQuantiles({"coarse": 2.0, "fine": 1.0}).at(3, ["fine", "coarse", "new"], None)
        array([ 1.,  2., inf])
    """

    kind: ClassVar[str] = "strata"
    by_stratum: Mapping[str, float]

    @property
    def quantiles(self) -> tuple[float, ...]:
        """The largest quantile of a stratum."""
        return (max(self.by_stratum.values()),)

    def at(self, cases: int, strata: Any, weights: Any) -> FloatArray:
        """Return the quantile of each case's stratum."""
        if strata is None:
            known = ", ".join(self.by_stratum)
            raise InputError(f"this bound needs the stratum of each case, one of {known}")
        labels = as_ids(strata, "strata", cases)
        return np.array([self.by_stratum.get(str(label), math.inf) for label in labels])

    def to_dict(self) -> dict[str, Any]:
        """Return a description that JSON can hold."""
        return {
            "kind": self.kind,
            "quantiles": {name: number_to_json(q) for name, q in self.by_stratum.items()},
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> StratumQuantiles:
        """Read back what :meth:`to_dict` wrote."""
        return cls({name: number_from_json(q) for name, q in record["quantiles"].items()})


@final
@dataclass(frozen=True)
class WeightedQuantile(Threshold):
    r"""A quantile of reweighted scores, for a known shift of the inputs.

    With likelihood ratios :math:`w` of the new inputs against the calibration inputs,

    .. math:: q(x) = \min\Big\{ s_i : \sum_{s_j \le s_i} w_j \ge
        (1 - \alpha)\big(\textstyle\sum_j w_j + w(x)\big) \Big\}

    or infinity where the calibration weights do not suffice.

    References:
        Tibshirani et al., Conformal Prediction Under Covariate Shift, NeurIPS 2019.

    Arguments:
        scores: Calibration scores in rising order.
        weights: Their weights.
        alpha: The error rate.

    Example:
        >>> threshold = WeightedQuantile(np.arange(1.0, 20.0), np.ones(19), alpha=0.1)
        >>> threshold.at(2, None, [1.0, 5.0])
        array([18., inf])
    """

    kind: ClassVar[str] = "weighted"
    scores: FloatArray
    weights: FloatArray
    alpha: float

    def __eq__(self, other: object) -> bool:
        """Compare numbers; arrays alone would not say one yes or no."""
        return (
            isinstance(other, WeightedQuantile)
            and self.alpha == other.alpha
            and np.array_equal(self.scores, other.scores)
            and np.array_equal(self.weights, other.weights)
        )

    @property
    def quantiles(self) -> tuple[float, ...]:
        """The quantile of a case that weighs as much as the calibration cases on average."""
        return (float(self.at(1, None, self.weights.mean(keepdims=True))[0]),)

    @property
    def largest_weight(self) -> float:
        r"""The weight above which a new case gets an infinite quantile.

        .. math:: \frac{\alpha}{1 - \alpha} \sum_i w_i
        """
        level = exact_level(self.alpha)
        return float(level / (1 - level)) * float(self.weights.sum())

    def shortage(self, promise: Guarantee) -> str | None:
        """Say which new cases get no finite interval, and why; nothing where none is likely to."""
        if self.quantile == math.inf:
            enough = len(self.scores) >= promise.whom.needed(self.alpha, None)
            reason = promise.infinite(self.scores) if enough else promise.too_few()
            return f"{reason}: {WHOLE_RANGE}"
        # Likelihood ratios are 1 on average, and new cases weigh more rather than less.
        if self.largest_weight >= max(1.0, float(self.weights.max())):
            return None
        return (
            f"{WHOLE_RANGE} for new cases that weigh more than {self.largest_weight:.4g}, because "
            f"the {len(self.weights)} calibration weights (effective size "
            f"{self.effective_size:.4g}) add up to {self.weights.sum():.4g}"
        )

    @property
    def effective_size(self) -> float:
        r"""The number of equally weighted cases that would tell as much.

        .. math:: n_\mathrm{eff} = \Big(\sum_i w_i\Big)^2 \Big/ \sum_i w_i^2
        """
        return float(self.weights.sum() ** 2 / np.square(self.weights).sum())

    def at(self, cases: int, strata: Any, weights: Any) -> FloatArray:
        """Return the quantile of each case from its own weight."""
        if weights is None:
            raise InputError("this bound was calibrated with weights; give one for each new case")
        new = as_weights(weights, cases)
        reached = np.cumsum(self.weights)
        needed = float(1 - exact_level(self.alpha)) * (reached[-1] + new)
        # A part in 1e12 absorbs rounding, so that equal weights give the unweighted rank exactly.
        index = np.searchsorted(reached, needed * (1 - 1e-12))
        padded = np.r_[self.scores, math.inf]
        return np.asarray(padded[index])

    def to_dict(self) -> dict[str, Any]:
        """Return a description that JSON can hold."""
        return {
            "kind": self.kind,
            "scores": [number_to_json(s) for s in self.scores],
            "weights": self.weights.tolist(),
            "alpha": self.alpha,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> WeightedQuantile:
        """Read back what :meth:`to_dict` wrote."""
        scores = np.array([number_from_json(s) for s in record["scores"]])
        weights = as_weights(record["weights"], len(scores))
        exact_level(record["alpha"])
        if not scores.size or (scores[1:] < scores[:-1]).any():
            raise InputError("the file holds scores that do not rise; calibrate again")
        return cls(scores, weights, record["alpha"])


@final
@dataclass(frozen=True)
class EndQuantiles(Threshold):
    """A threshold for the lower end of intervals, and another for the upper one.

    Example:
        >>> EndQuantiles(OneQuantile(0.5), OneQuantile(2.0)).at(2, None, None)
        array([[0.5, 0.5],
               [2. , 2. ]])
    """

    kind: ClassVar[str] = "each"
    lower: Threshold
    upper: Threshold

    @property
    def quantiles(self) -> tuple[float, ...]:
        """The quantile of the lower end, and that of the upper one."""
        return (self.lower.quantile, self.upper.quantile)

    def at(self, cases: int, strata: Any, weights: Any) -> FloatArray:
        """Return the quantiles of each case, (end, case)."""
        return np.stack([end.at(cases, strata, weights) for end in (self.lower, self.upper)])

    def to_dict(self) -> dict[str, Any]:
        """Return a description that JSON can hold."""
        return {"kind": self.kind, "lower": self.lower.to_dict(), "upper": self.upper.to_dict()}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> EndQuantiles:
        """Read back what :meth:`to_dict` wrote."""
        ends = cls(threshold_from_dict(record["lower"]), threshold_from_dict(record["upper"]))
        if any(len(end.quantiles) > 1 for end in (ends.lower, ends.upper)):
            raise InputError("the file holds two thresholds for one end; calibrate again")
        return ends


THRESHOLDS = (OneQuantile, StratumQuantiles, WeightedQuantile, EndQuantiles)


def threshold_from_dict(record: Mapping[str, Any]) -> Threshold:
    """Read a threshold back from its description.

    Example:
        >>> threshold_from_dict({"kind": "one", "quantile": "inf"})
        OneQuantile(value=inf)
    """
    kind = record.get("kind")
    found = next((one for one in THRESHOLDS if one.kind == kind), None)
    if found is None:
        raise InputError(f"unknown kind of threshold {kind!r} in the file")
    return found.from_dict(record)


def as_weights(values: Any, cases: int) -> FloatArray:
    """Take one positive weight per case."""
    weights = as_numbers(values, "weights", ndim=(1,)).astype(float)
    if weights.shape != (cases,) or (weights <= 0).any():
        raise InputError(
            f"weights must be one positive number for each of {cases} cases, got shape "
            f"{weights.shape} with minimum {weights.min(initial=np.inf):g}"
        )
    return weights
