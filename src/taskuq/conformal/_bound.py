"""Calibrated bounds and their conformal quantiles."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from taskuq._arrays import (
    align_cases,
    as_ids,
    as_real_array,
    as_task_range,
    case_ids,
    warn_of_calibration_cases,
)
from taskuq._display import Displayed, Summary, svg
from taskuq._io import complete_record, number_from_json, number_to_json, read_json, write_json
from taskuq.conformal._family import clipped, interval_family
from taskuq.conformal._guarantee import WHOLE_RANGE, Guarantee
from taskuq.conformal._quantiles import CoverageLaw, exact_alpha
from taskuq.conformal.scores import require_usable, score_from_dict, score_name, score_to_dict
from taskuq.errors import InputError
from taskuq.interval import FloatArray, Interval, TaskRange
from taskuq.protocols import Score


class Threshold(ABC):
    """Conformal quantiles of a bound, one for each new case."""

    @abstractmethod
    def at(self, cases: int, strata: Any, weights: Any) -> FloatArray:
        """Return the conformal quantile of each of ``cases`` new cases."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values; infinity becomes a string."""

    @property
    @abstractmethod
    def quantiles(self) -> tuple[float, ...]:
        """Conformal quantile of the bound, or one quantile for each end.

        With strata, this is the largest quantile; with weights, that of a case of mean weight.
        """

    @property
    def quantile(self) -> float:
        return max(self.quantiles)


@dataclass(frozen=True)
class SingleQuantile(Threshold):
    kind: ClassVar[str] = "one"
    value: float

    @property
    def quantiles(self) -> tuple[float, ...]:
        return (self.value,)

    def at(self, cases: int, strata: Any, weights: Any) -> FloatArray:
        if strata is not None or weights is not None:
            message = "this bound was calibrated without strata or weights; call it without them"
            raise InputError(message, code="option.unused")
        return np.full(cases, self.value)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "quantile": number_to_json(self.value)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> SingleQuantile:
        return cls(number_from_json(record["quantile"]))


@dataclass(frozen=True)
class StratumQuantiles(Threshold):
    """One conformal quantile per stratum; infinite for strata without calibration cases."""

    kind: ClassVar[str] = "strata"
    by_stratum: Mapping[str, float]

    @property
    def quantiles(self) -> tuple[float, ...]:
        return (max(self.by_stratum.values()),)

    def at(self, cases: int, strata: Any, weights: Any) -> FloatArray:
        if strata is None:
            message = f"pass the stratum of each case, one of {', '.join(self.by_stratum)}"
            raise InputError(message, code="groups.missing")
        labels = as_ids(strata, "strata", cases)
        return np.array([self.by_stratum.get(str(label), math.inf) for label in labels])

    def to_dict(self) -> dict[str, Any]:
        quantiles = {name: number_to_json(q) for name, q in self.by_stratum.items()}
        return {"kind": self.kind, "quantiles": quantiles}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> StratumQuantiles:
        return cls({name: number_from_json(q) for name, q in record["quantiles"].items()})


@dataclass(frozen=True)
class WeightedQuantile(Threshold):
    """Conformal quantile of weighted scores, for a known shift of the inputs."""

    kind: ClassVar[str] = "weighted"
    scores: FloatArray
    weights: FloatArray
    alpha: float

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, WeightedQuantile)
            and self.alpha == other.alpha
            and np.array_equal(self.scores, other.scores)
            and np.array_equal(self.weights, other.weights)
        )

    @property
    def quantiles(self) -> tuple[float, ...]:
        return (float(self.at(1, None, self.weights.mean(keepdims=True))[0]),)

    @property
    def largest_weight(self) -> float:
        """Largest weight of a new case for which the quantile is finite."""
        level = exact_alpha(self.alpha)
        return float(level / (1 - level)) * float(self.weights.sum())

    def caveat(self, guarantee: Guarantee) -> str | None:
        if self.quantile == math.inf:
            if len(self.scores) < guarantee._unit.needed(self.alpha, None):
                return f"{guarantee._too_few_units()}: {WHOLE_RANGE}"
            return f"{guarantee._infinite_scores(self.scores)}: {WHOLE_RANGE}"
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
        return float(self.weights.sum() ** 2 / np.square(self.weights).sum())

    def at(self, cases: int, strata: Any, weights: Any) -> FloatArray:
        if weights is None:
            message = "the bound was calibrated with weights; pass one for each new case"
            raise InputError(message, code="option.missing")
        new = as_weights(weights, cases)
        reached = np.cumsum(self.weights)
        needed = float(1 - exact_alpha(self.alpha)) * (reached[-1] + new)
        # A part in 1e12 absorbs rounding, so that equal weights give the unweighted rank exactly.
        index = np.searchsorted(reached, needed * (1 - 1e-12))
        return np.asarray(np.r_[self.scores, math.inf][index])

    def to_dict(self) -> dict[str, Any]:
        scores = [number_to_json(s) for s in self.scores]
        weights = self.weights.tolist()
        return {"kind": self.kind, "scores": scores, "weights": weights, "alpha": self.alpha}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> WeightedQuantile:
        scores = np.array([number_from_json(s) for s in record["scores"]])
        weights = as_weights(record["weights"], len(scores))
        exact_alpha(record["alpha"])
        if not scores.size or (scores[1:] < scores[:-1]).any():
            message = "the scores in the file are not increasing; calibrate again"
            raise InputError(message, code="file.damaged")
        return cls(scores, weights, record["alpha"])


@dataclass(frozen=True)
class EndQuantiles(Threshold):
    """Separate conformal quantiles of the lower and the upper end."""

    kind: ClassVar[str] = "each"
    lower: Threshold
    upper: Threshold

    @property
    def quantiles(self) -> tuple[float, ...]:
        return (self.lower.quantile, self.upper.quantile)

    def at(self, cases: int, strata: Any, weights: Any) -> FloatArray:
        return np.stack([end.at(cases, strata, weights) for end in (self.lower, self.upper)])

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "lower": self.lower.to_dict(), "upper": self.upper.to_dict()}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> EndQuantiles:
        ends = cls(_threshold_from_dict(record["lower"]), _threshold_from_dict(record["upper"]))
        if any(len(end.quantiles) > 1 for end in (ends.lower, ends.upper)):
            message = "the file holds two thresholds for one end; calibrate again"
            raise InputError(message, code="file.damaged")
        return ends


THRESHOLDS = (SingleQuantile, StratumQuantiles, WeightedQuantile, EndQuantiles)


def _threshold_from_dict(record: Mapping[str, Any]) -> Threshold:
    kind = record.get("kind")
    cls = next((cls for cls in THRESHOLDS if cls.kind == kind), None)
    if cls is None:
        raise InputError(f"unknown kind of threshold {kind!r} in the file", code="file.damaged")
    return cls.from_dict(record)


def as_weights(values: Any, cases: int) -> FloatArray:
    weights = as_real_array(values, "weights", ndim=(1,)).astype(float)
    if weights.shape != (cases,) or (weights <= 0).any():
        got = f"shape {weights.shape} with minimum {weights.min(initial=np.inf):g}"
        message = f"weights must be one positive number for each of {cases} cases, got {got}"
        raise InputError(message, code="value.invalid")
    return weights


SCHEMA = "taskuq.bound/1"


class BaseBound(Displayed, ABC):
    """Base class of single, joint and online bounds."""

    samples: int
    rounds: int = 1
    acceleration: float | None = None

    @property
    @abstractmethod
    def _parts(self) -> tuple[tuple[Score, float], ...]:
        """Each score of the bound, with its conformal quantile."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values."""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the bound as JSON and return the path."""
        return write_json(path, self.to_dict())


B = TypeVar("B", bound=BaseBound)


Reader: TypeAlias = Callable[[Mapping[str, Any], Score | None], B]


def read_bound(
    path: str | os.PathLike[str], readers: Mapping[str, Reader[B]], score: Score | None = None
) -> B:
    record = read_json(path, *readers, remedy="calibrate again")
    with complete_record(path, "bound", "calibrate again"):
        bound = readers[record["schema"]](record, score)
        for one, quantile in bound._parts:
            require_usable(path, one, quantile, bound.samples, bound.rounds)
    return bound


@dataclass(frozen=True, repr=False)
class Bound(BaseBound):
    """Calibrated intervals for new cases.

    Call it with the outputs of new cases, (case, sample) or (sample,), to get their intervals.

    Args:
        score: Score that defines the intervals.
        threshold: Conformal quantile, the same for all cases or one for each new case.
        guarantee: Finite-sample guarantee of the intervals.
        samples: Number of posterior samples per case; new cases need as many.
        rounds: Number of rounds whose outputs the score uses; 1 for the current round only.
        task_range: Range to which intervals are clipped.
        acceleration: Acceleration of the measurements, if given to :func:`taskuq.calibrate`.
        provenance: Origin of the calibration data.

    Example:
        >>> truth = rng.random(200)
        >>> outputs = truth[:, None] + 0.1 * rng.standard_normal((200, 8))
        >>> bound = tq.calibrate(outputs, truth, alpha=0.1, score="ar")
        >>> bound(outputs[:3]).width.round(3)
        array([0.119, 0.119, 0.119])
        >>> print(bound)
        ar at alpha 0.1, calibrated on 200 cases
          quantile  0.05948
          samples   8
        Guaranteed: the interval contains the target of a new case with probability at least 0.9, if
        the new case is exchangeable with the 200 calibration cases and nothing was chosen by
        looking at their targets.
    """

    score: Score
    threshold: Threshold
    guarantee: Guarantee
    samples: int
    rounds: int = 1
    task_range: TaskRange = None
    acceleration: float | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def alpha(self) -> float:
        """Error rate."""
        return self.guarantee.alpha

    @property
    def quantile(self) -> float:
        """Conformal quantile, the largest over strata; infinite with too few calibration units."""
        return self.threshold.quantile

    @property
    def is_finite(self) -> bool:
        """True if the quantile is finite; if not, ``guarantee.caveat`` gives the reason."""
        return bool(np.isfinite(self.quantile))

    @property
    def _parts(self) -> tuple[tuple[Score, float], ...]:
        return ((self.score, self.quantile),)

    def predict(
        self,
        outputs: ArrayLike,
        *,
        strata: ArrayLike | None = None,
        weights: ArrayLike | None = None,
    ) -> Interval:
        """Return the interval of each new case.

        Args:
            outputs: Task outputs of new cases (case, sample), or of one case (sample,).
            strata: Stratum of each case, for a bound calibrated with strata.
            weights: Weight of each case, for a bound calibrated with weights.

        Raises:
            InputError: If the number of samples differs from that in calibration.

        Warns:
            GuaranteeWarning: If some of these cases were used for calibration.
        """
        given, names = {"outputs": outputs, "strata": strata, "weights": weights}, case_ids(outputs)
        outputs, strata, weights = align_cases(given).values()
        array = as_real_array(outputs, "outputs", ndim=(1, 2, 3))
        array = array[:, None] if array.ndim == 1 and self.samples == 1 < len(array) else array
        single = array.ndim == 1
        array = array[None] if single else array
        if array.shape[-1] != self.samples:
            message = f"the bound needs {self.samples} samples per case, got {array.shape[-1]}"
            raise InputError(message, code="samples.mismatch")
        rounds = len(array) if array.ndim == 3 else 1
        if self.rounds > 1 and rounds != self.rounds:
            message = f"the bound needs the outputs of {self.rounds} rounds so far, got {rounds}"
            raise InputError(message, code="samples.mismatch")
        warn_of_calibration_cases(
            self.provenance.get("cases"), array if array.ndim == 2 else array[-1]
        )
        quantile = self.threshold.at(array.shape[-2], strata, weights)
        family = interval_family(self.score, array, self.guarantee.quantiles_per_interval)
        lower, upper = clipped(family.interval(quantile), self.task_range)
        interval = Interval(lower, upper, case=None if single else names)
        return interval[0] if single else interval

    __call__ = predict

    def coverage_law(self, n_test: int) -> CoverageLaw:
        """Return the exact distribution of coverage over ``n_test`` new cases, if no scores tie."""
        g = self.guarantee
        if g.unit == "group" or g.condition or g.weighted or g.quantiles_per_interval > 1:
            message = "the law of coverage needs exchangeable cases and one quantile for all"
            raise InputError(message, code="option.conflict")
        if n_test < 1:
            raise InputError(f"n_test must be at least 1, got {n_test}", code="value.invalid")
        return CoverageLaw(g.n_cases, g.rank(g.n_cases), n_test)

    @property
    def _quantiles(self) -> dict[str, float]:
        if isinstance(self.threshold, StratumQuantiles):
            return {f"quantile in {name}": q for name, q in self.threshold.by_stratum.items()}
        each = self.threshold.quantiles
        names = ("quantile",) if len(each) == 1 else ("quantile below", "quantile above")
        return dict(zip(names, each, strict=True))

    def _summary(self) -> Summary:
        g = self.guarantee
        rows = [(name, f"{q:.4g}") for name, q in self._quantiles.items()]
        units = f"{g.n_groups} groups" if g._unit.is_group else f"{g.n_cases} cases"
        title = f"{score_name(self.score)} at alpha {self.alpha:g}, calibrated on {units}"
        return Summary(title, [*rows, ("samples", str(self.samples))], str(g))

    def _picture(self) -> str:
        try:
            law = self.coverage_law(n_test=1000)
        except InputError:  # no single quantile of exchangeable cases
            bars = [(0.0, q) for q in self._quantiles.values()]
            names = [name.removeprefix("quantile ") for name in self._quantiles]
            return svg("quantile", bars=bars, labels=names)
        low, high = (round(1000 * end) for end in law.central(0.999))
        about = "coverage of 1000 new cases: probability"
        likely = law.pmf[low : high + 1].tolist()
        return svg(about, lines=[likely], labels=[low / 1000, high / 1000])

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return {
            "schema": SCHEMA,
            "alpha": self.alpha,
            "score": score_to_dict(self.score),
            "threshold": self.threshold.to_dict(),
            "guarantee": self.guarantee.to_dict(),
            "sentence": self.guarantee.statement,
            "samples": self.samples,
            "rounds": self.rounds,
            "task_range": self.task_range and [number_to_json(v) for v in self.task_range],
            "acceleration": self.acceleration,
            "provenance": dict(self.provenance),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any], score: Score | None = None) -> Bound:
        """Return the bound stored as JSON values by :meth:`to_dict`."""
        threshold = _threshold_from_dict(record["threshold"])
        guarantee = Guarantee.from_dict(record["guarantee"])
        if len(threshold.quantiles) != guarantee.quantiles_per_interval:
            message = "the file's threshold and guarantee do not match; calibrate again"
            raise InputError(message, code="file.damaged")
        return cls(
            score=score_from_dict(record["score"], score),
            threshold=threshold,
            guarantee=guarantee,
            samples=int(record["samples"]),
            rounds=int(record["rounds"]),
            task_range=as_task_range(record["task_range"]),
            acceleration=None if record["acceleration"] is None else float(record["acceleration"]),
            provenance=dict(record["provenance"]),
        )


def load_bound(path: str | os.PathLike[str], *, score: Score | None = None) -> Bound:
    """Read a bound written by :meth:`Bound.save`.

    Args:
        path: JSON file.
        score: Object of your own score class, if the bound uses one.

    Example:
        >>> import tempfile, os
        >>> bound = tq.calibrate(rng.random((99, 4)), rng.random(99), alpha=0.1, score="lwr")
        >>> path = bound.save(os.path.join(tempfile.mkdtemp(), "bound.json"))
        >>> load_bound(path) == bound
        True
    """
    return read_bound(path, {SCHEMA: Bound.from_dict}, score)
