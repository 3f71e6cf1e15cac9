"""What an evaluation found, as a record that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from taskuq.evaluation.exact import Histogram, Moments
from taskuq.files import plain
from taskuq.words import round_label


@dataclass(frozen=True)
class Stratum:
    """Coverage within a class, or within a range of interval widths.

    Arguments:
        name: The class, or the range of widths.
        coverage: Mean over the trials in which the stratum is not empty; NaN if it always is. With
            groups, of a random case of a test group given that it falls in the stratum.
        cases: The mean number of test cases in the stratum.
        trials: The number of trials in which it is not empty.
    """

    name: str
    coverage: float
    cases: float
    trials: int


@dataclass(frozen=True)
class Evaluation:
    """Coverage and width of one score over random splits.

    Arguments:
        score: The score's name.
        alpha: The error rate.
        unit: What is split and promised: cases or groups.
        samples: The number of posterior samples used.
        n: The number of units.
        n_calibration: Units in a calibration fold, tuning units among them.
        n_test: Units in a test fold.
        n_tuning: Units of the calibration fold that the score learns from.
        trials: The number of random splits; None when all were taken, exactly.
        coverage: Mean and standard deviation over splits of the share of the test fold for which
            the promise holds: of its cases, every group counting the same, or of its groups.
        case_coverage: The same of the share of its cases that are covered, every group counting
            the same; unlike coverage where all cases of a group, or a share, are promised.
        coverage_of: Whose targets coverage is about, in words.
        mean_over: What is drawn at random for all other means, in words.
        width: Mean and standard deviation over splits of its mean interval width.
        center_error: The same of its mean distance between target and interval centre; for a
            one-sided bound, between target and bound.
        infinite: The share of splits whose calibration fold gives no finite interval.
        whole_groups: With groups: the mean share of test groups whose cases are all covered.
        class_coverage: Coverage within each class.
        size_coverage: Coverage within each range of widths.
        histogram: The distribution of coverage, by cases.
        acceleration: The acceleration, if known.
        round_name: What the round is called, where it has a name.
        task: The task, where there are several.
        width_by_one: Where each end has a quantile of its own: what the width would be on the same
            splits with one quantile for both.
    """

    score: str
    alpha: float
    unit: str
    samples: int
    n: int
    n_calibration: int
    n_test: int
    n_tuning: int
    trials: int | None
    coverage: Moments
    case_coverage: Moments
    coverage_of: str
    mean_over: str
    width: Moments
    center_error: Moments
    infinite: float = 0.0
    whole_groups: float | None = None
    class_coverage: tuple[Stratum, ...] = ()
    size_coverage: tuple[Stratum, ...] = ()
    histogram: Histogram | None = None
    acceleration: float | None = None
    round_name: str | None = None
    task: str | None = None
    width_by_one: Moments | None = None

    @property
    def round_label(self) -> str | None:
        """What a person calls the round: its name, or its acceleration where that is known."""
        known = self.acceleration is not None or self.round_name is not None
        return round_label(self.acceleration or math.nan, self.round_name) if known else None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as values that JSON can hold."""
        return dict(plain(asdict(self)))

    def __repr__(self) -> str:
        how = "all splits, exactly" if self.trials is None else f"{self.trials} random splits"
        named = ", ".join(text for text in (self.score, self.task, self.round_label) if text)
        rows = {"coverage": self.coverage, "width": self.width, "centre error": self.center_error}
        return "\n".join([
            f"{named}: {how} by {self.unit}, {self.n_calibration} to calibrate, {self.n_test} to "
            f"test, alpha {self.alpha:g}",
            *(f"  {name:13}{found.mean:8.4g}  sd {found.sd:.2g}" for name, found in rows.items()),
            *([f"  no finite interval in {self.infinite:.3g} of the splits"] * (self.infinite > 0)),
        ])  # fmt: skip


@dataclass(frozen=True)
class EvaluationRecord:
    """All evaluations of one command, with what made them.

    Arguments:
        results: One per acceleration, score and number of samples.
        inputs: What was asked for.
    """

    results: tuple[Evaluation, ...]
    inputs: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the record in the layout of ``taskuq.evaluate/1``."""
        first = self.results[0]
        return {
            "schema": "taskuq.evaluate/1",
            "alpha": first.alpha,
            "unit": first.unit,
            "trials": first.trials,
            "n": first.n,
            "n_calibration": first.n_calibration,
            "n_test": first.n_test,
            "inputs": plain(dict(self.inputs)),
            "results": [result.to_dict() for result in self.results],
        }

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.results))
