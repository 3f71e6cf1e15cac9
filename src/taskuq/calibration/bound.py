"""A calibrated bound: frozen, callable, stored as JSON, and able to say what it promises."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from taskuq.calibration.family import clipped, family_of
from taskuq.calibration.guarantee import Guarantee
from taskuq.calibration.law import CoverageLaw
from taskuq.calibration.scores import (
    require_usable,
    score_from_dict,
    score_name,
    score_to_dict,
)
from taskuq.calibration.threshold import Threshold, threshold_from_dict
from taskuq.checks import as_numbers, as_range
from taskuq.errors import InputError
from taskuq.files import complete, number_to_json, read_json, write_json
from taskuq.interval import FloatArray, Interval, TaskRange
from taskuq.protocols import Score

SCHEMA = "taskuq.bound/1"


class AnyBound(ABC):
    """What bounds of every kind share: scores with a quantile each, and a JSON file."""

    samples: int
    rounds: int = 1
    acceleration: float | None = None

    @property
    @abstractmethod
    def parts(self) -> tuple[tuple[Score, float], ...]:
        """Each score with its quantile."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return everything as values that JSON can hold."""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the bound as JSON and return the path."""
        return write_json(path, self.to_dict())


B = TypeVar("B", bound=AnyBound)
Reader: TypeAlias = Callable[[Mapping[str, Any], Score | None], B]


def read_bound(
    path: str | os.PathLike[str], readers: Mapping[str, Reader[B]], score: Score | None = None
) -> B:
    """Read a bound of one of several kinds, or say why its file is not complete.

    Arguments:
        path: The JSON file.
        readers: How a record of each schema is read.
        score: An object of your own score class, where the bound was made with one.
    """
    record = read_json(path, *readers, remedy="calibrate again")
    with complete(path, "bound", "calibrate again"):
        bound = readers[record["schema"]](record, score)
        for one, quantile in bound.parts:
            require_usable(path, one, quantile, bound.samples, bound.rounds)
    return bound


@dataclass(frozen=True)
class Bound(AnyBound):
    """Intervals for new cases, from one calibration.

    Call it with the outputs of new cases, (case, sample) or (sample,), to get their intervals.

    Arguments:
        score: The score whose intervals are used.
        threshold: The quantile of each case.
        guarantee: What is promised.
        samples: The number of posterior samples per case; new cases need as many.
        rounds: The number of rounds the score reads (1 unless it uses the earlier ones).
        task_range: The range intervals are clipped to, if the task has one.
        acceleration: The acceleration the outputs were recovered at, if known.
        provenance: What else is known of the calibration.

    Example:
        >>> truth = rng.random(200)
        >>> outputs = truth[:, None] + 0.1 * rng.standard_normal((200, 8))
        >>> bound = tq.calibrate(outputs, truth, alpha=0.1, score="ar")
        >>> bound(outputs[:3]).width.round(3)
        array([0.119, 0.119, 0.119])
        >>> print(bound)
        ar at alpha 0.1, quantile 0.05948. Guaranteed: the interval contains the target of a new
        case with probability at least 0.9, if the new case is exchangeable with the 200
        calibration cases and nothing was chosen by looking at their targets.
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
        """The error rate."""
        return self.guarantee.alpha

    @property
    def quantile(self) -> float:
        """The quantile (the largest, where strata differ); infinite where there is a shortage."""
        return self.threshold.quantile

    @property
    def is_finite(self) -> bool:
        """Whether the quantile is finite; the guarantee's shortage says why it is not."""
        return bool(np.isfinite(self.quantile))

    @property
    def parts(self) -> tuple[tuple[Score, float], ...]:
        """The score with its quantile."""
        return ((self.score, self.quantile),)

    def __call__(self, outputs: Any, *, strata: Any = None, weights: Any = None) -> Interval:
        """Return the interval of each new case.

        Arguments:
            outputs: Outputs (case, sample), or (sample,) for one case, or (round, case, sample)
                for a score that reads the earlier rounds. Where there is one sample, (case,).
            strata: The stratum of each case, for a bound calibrated by strata.
            weights: The weight of each case, for a bound calibrated under a shift.
        """
        array = as_numbers(outputs, "outputs", ndim=(1, 2, 3))
        array = array[:, None] if array.ndim == 1 and self.samples == 1 < len(array) else array
        single = array.ndim == 1
        array = array[None] if single else array
        self._check(array)
        quantile = self.threshold.at(array.shape[-2], strata, weights)
        family = family_of(self.score, array, self.guarantee.ends)
        interval = clipped(family.interval(quantile), self.task_range)
        return interval[0] if single else interval

    def _check(self, outputs: FloatArray) -> None:
        if outputs.shape[-1] != self.samples:
            raise InputError(
                f"this bound was calibrated with {self.samples} samples per case, got "
                f"{outputs.shape[-1]}; draw {self.samples} or calibrate again"
            )
        rounds = outputs.shape[0] if outputs.ndim == 3 else 1
        if self.rounds > 1 and rounds != self.rounds:
            raise InputError(
                f"this bound reads the outputs of {self.rounds} rounds, (round, case, sample), "
                f"got {rounds}; pass all rounds so far, the current one last"
            )

    def coverage_law(self, n_test: int) -> CoverageLaw:
        """Return the exact law of the coverage that ``n_test`` new cases would show.

        It exists for cases as the unit, one quantile, and scores without ties.
        """
        promise = self.guarantee
        if promise.whom.is_group or promise.condition or promise.shifted or promise.ends > 1:
            raise InputError(
                "the law of empirical coverage is known for exchangeable cases with one quantile; "
                "this bound's unit or condition is another"
            )
        if n_test < 1:
            raise InputError(f"n_test must be at least 1, got {n_test}")
        n = promise.n_cases
        return CoverageLaw(n, promise.rank(n), n_test)

    def __repr__(self) -> str:
        each = [f"{quantile:.4g}" for quantile in self.threshold.quantiles]
        said = (
            f"quantile {each[0]}"
            if len(each) == 1
            else "quantiles {} below, {} above".format(*each)
        )
        return f"{score_name(self.score)} at alpha {self.alpha:g}, {said}. {self.guarantee.said}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as values that JSON can hold."""
        return {
            "schema": SCHEMA,
            "alpha": self.alpha,
            "score": score_to_dict(self.score),
            "threshold": self.threshold.to_dict(),
            "guarantee": asdict(self.guarantee),
            "sentence": self.guarantee.sentence,
            "samples": self.samples,
            "rounds": self.rounds,
            "task_range": self.task_range and [number_to_json(v) for v in self.task_range],
            "acceleration": self.acceleration,
            "provenance": dict(self.provenance),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any], score: Score | None = None) -> Bound:
        """Read back what :meth:`to_dict` wrote."""
        threshold = threshold_from_dict(record["threshold"])
        guarantee = Guarantee(**record["guarantee"])
        if len(threshold.quantiles) != guarantee.ends:
            raise InputError("the file's threshold and promise do not fit; calibrate again")
        return cls(
            score=score_from_dict(record["score"], score),
            threshold=threshold,
            guarantee=guarantee,
            samples=int(record["samples"]),
            rounds=int(record["rounds"]),
            task_range=as_range(record["task_range"]),
            acceleration=None if record["acceleration"] is None else float(record["acceleration"]),
            provenance=record["provenance"],
        )


def load_bound(path: str | os.PathLike[str], *, score: Score | None = None) -> Bound:
    """Read a bound that :meth:`Bound.save` wrote.

    Arguments:
        path: The JSON file.
        score: An object of your own score class, where the bound was made with one.

    Example:
        >>> import tempfile, os
        >>> bound = tq.calibrate(rng.random((99, 4)), rng.random(99), alpha=0.1, score="lwr")
        >>> path = bound.save(os.path.join(tempfile.mkdtemp(), "bound.json"))
        >>> load_bound(path) == bound
        True
    """
    return read_bound(path, {SCHEMA: Bound.from_dict}, score)
