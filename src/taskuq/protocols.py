"""Protocols for user-supplied measurements, recoveries, tasks, scanners and scores.

An object supports a protocol if it has the methods and attributes listed here. Tasks,
recoveries and rules may declare attributes:

- ``names`` of a task: one string for each output;
- ``range`` of a task: two numbers (low, high), or one pair for each output;
- ``fingerprint`` of a recovery, task or rule: a string that differs between networks.

Attributes that are ``None`` or of another type are ignored, but ``names`` must be strings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray, Interval, TaskRange


@runtime_checkable
class Measure(Protocol):
    """An imaging system :math:`y = h(x)` with several accelerations.

    Rounds are nested: a measurement contains that of every higher acceleration. The explorer shows
    the optional attribute ``preview`` of a measurement, an image (height, width).
    """

    def __call__(self, image: Any, acceleration: float, /) -> Any:
        """Measure one image at one acceleration."""


@runtime_checkable
class LineMeasure(Measure, Protocol):
    """An imaging system that can measure arbitrary lines or views."""

    @property
    def n_lines(self) -> int:
        """Number of lines or views of a full measurement."""

    def initial_lines(self, n: int, /) -> BoolArray:
        """Return the n lines that every measurement should include, booleans (line,)."""

    def add_random_lines(
        self, lines: BoolArray, n: int, seed: int | np.random.Generator, /
    ) -> BoolArray:
        """Add n random lines, distributed as in the masks; return booleans (line,)."""

    def measure_lines(self, image: Any, acceleration: float, lines: BoolArray, /) -> Any:
        """Measure some lines of an image at an acceleration; ``lines`` are booleans (line,)."""

    def line_values(self, images: Any, measurement: Any, /) -> Any:
        """Return the values of samples (sample, ...) on each line, (line, sample, value)."""


@runtime_checkable
class AdaptiveMeasure(Measure, Protocol):
    """Imaging system that chooses lines for each case; a call measures the first round or R = 1."""

    def initial_lines(self) -> BoolArray:
        """Return the lines of the first round, booleans (line,), the same for every case."""

    def measure_lines(self, image: Any, acceleration: float, lines: BoolArray, /) -> Any:
        """Measure some lines of an image at an acceleration; ``lines`` are booleans (line,)."""

    def next_lines(
        self, round: int, measurement: Any, recoveries: Any, task: Any, lines: BoolArray, /
    ) -> BoolArray:
        """Return the lines of the next round, including those measured so far.

        ``recoveries`` are samples (sample, ...) of the current round; ``lines`` are booleans
        (line,); ``task`` returns the task outputs of images, from a cache for the samples.
        """

    def fallback_lines(self, round: int, lines: BoolArray, /) -> BoolArray:
        """Return the lines that the next round uses if no choice can be made."""


@runtime_checkable
class Scanner(Protocol):
    """A device that measures round by round.

    A scanner may have more methods:

    - ``combine(measurements)`` combines the measurements of all rounds of a case so far; without
      it, the recovery receives a list of rounds.
    - ``request(round, lines)``, for adaptive sampling, is called before a round is measured, with
      the lines (line,) that the round adds.
    - ``is_complete(measurements)`` returns True if the measurements of all rounds are complete.
    - ``remeasure(round, measurement)`` measures a stored round again before a scan is resumed, and
      raises an error if the data differ.
    - ``finalize()`` returns a fault found while a round was computed, or None; later faults are
      ignored.
    """

    def measure(self, round: int, /) -> Any:
        """Measure a round and return its new data; the last round completes the scan."""


@runtime_checkable
class Recover(Protocol):
    r"""A recovery method :math:`\hat x^{(j)} = g(y, v^{(j)})`, deterministic in y and the seed."""

    def __call__(self, measurement: Any, /, *, samples: int, seed: int) -> Any:
        """Return samples (sample, height, width), or one point estimate (1, height, width)."""


@runtime_checkable
class BatchRecover(Recover, Protocol):
    """A recovery method that samples several cases at once."""

    def batch(self, measurements: Sequence[Any], /, *, samples: int, seeds: Sequence[int]) -> Any:
        """Return samples (case, sample, height, width), one seed for each case."""


@runtime_checkable
class StoredRecover(Protocol):
    """Recoveries computed elsewhere, looked up by case instead of measurement."""

    def load(self, case: str, acceleration: float, /, *, samples: int) -> Any:
        """Return the samples of a case in a round, an array (sample, height, width)."""


@runtime_checkable
class Task(Protocol):
    """A task :math:`f` from images to numbers."""

    def __call__(self, images: Any, /) -> Any:
        """Return one output for each image, (image,), or several, (image, task)."""


@runtime_checkable
class FullReferenceTask(Task, Protocol):
    r"""Image quality :math:`m(\hat x, x)` of a reported image; the target depends on the round.

    A call with the samples of one case returns :math:`m(\hat x, \tilde x^{(j)})`, with their mean
    as the reported image :math:`\hat x`.
    """

    def compare(self, reported: Any, images: Any, /) -> Any:
        """Return the quality of one image (height, width) relative to each of several."""


def declared_names(task: Any) -> tuple[str, ...] | None:
    """Return the declared names of a task's outputs, or None."""
    names = getattr(task, "names", None)
    if names is None or callable(names):
        return None
    listed = list(names) if isinstance(names, Sequence | np.ndarray) else [None]
    if isinstance(names, str) or not all(isinstance(name, str) for name in listed):
        text = f"names of the task must be strings, got {names!r:.80}; pass task_names="
        raise InputError(text, code="component.invalid")
    return tuple(map(str, listed))


def declared_range(task: Any) -> Any:
    """Return the declared range of a task, one pair or one for each output, or None."""
    declared = getattr(task, "range", None)
    return declared if isinstance(declared, Sequence | Mapping | np.ndarray) else None


def declared_fingerprint(component: Any) -> str:
    """Return the declared fingerprint of a recovery, task or rule, or an empty string."""
    declared = getattr(component, "fingerprint", "")
    return declared if isinstance(declared, str) else ""


@runtime_checkable
class Score(Protocol):
    r"""A nonconformity score and the intervals it defines.

    Both methods describe one family of sets, nested in the quantile :math:`q`:

    .. math:: \mathcal C_q(x) = \{ z : s(x, z) \le q \}

    The attribute ``name`` is displayed instead of the name of the class. A score whose attribute
    ``uses_earlier_rounds`` is True takes outputs (round, case, sample), the current round last.
    """

    def score(self, outputs: FloatArray, targets: FloatArray, /) -> FloatArray:
        """Score targets (case,) against outputs (case, sample); larger is worse."""

    def interval(self, outputs: FloatArray, quantile: ArrayLike, /) -> Interval:
        """Return the interval of targets with a score of at most ``quantile``, for each case."""


class IntervalFamily(Protocol):
    """The nested intervals of a fixed set of cases."""

    def score(self, targets: FloatArray) -> FloatArray:
        """Return the smallest quantile whose interval contains the target."""

    def interval(self, quantile: ArrayLike) -> Interval:
        """Return the interval of each case for one quantile, or for one quantile per case."""

    def select(self, index: NDArray[np.int64]) -> IntervalFamily:
        """Return the family of some of the cases, in the given order."""


@runtime_checkable
class NestedScore(Score, Protocol):
    """A score that returns the nested intervals of fixed cases as a family."""

    def family(self, outputs: FloatArray) -> IntervalFamily:
        """Return the nested intervals of cases."""


@runtime_checkable
class FittedScore(Score, Protocol):
    """A score that is fitted to some cases before it is calibrated on others."""

    def fit(
        self, outputs: FloatArray, targets: Any = None, *, range_: Any = None, group: Any = None
    ) -> Score:
        """Return the score fitted to these cases."""

    @property
    def needs_tuning(self) -> bool:
        """True if the score is not fitted yet."""

    @property
    def tuning_fraction(self) -> float:
        """Approximate fraction of calibration units to set aside for tuning."""

    @property
    def tuning_needs_targets(self) -> bool:
        """True if the score is fitted to targets as well as outputs."""


class SelfTuned(NamedTuple):
    """A score fitted to calibration units, and its extremes if one unit is replaced."""

    score: SelfTunedScore  # for new cases
    corners: tuple[SelfTunedScore, ...]  # for calibration cases: extreme shifts and scales


@runtime_checkable
class SelfTunedScore(FittedScore, Protocol):
    """A score that is fitted to the calibration units themselves."""

    def summarise(self, outputs: FloatArray) -> Any:
        """Return a summary of outputs (case, sample); its method ``take`` selects cases."""

    def summary_family(self, read: Any) -> IntervalFamily:
        """Return the nested intervals of summarised cases."""

    def leave_one_out(self, read: Any, targets: Any, range_: TaskRange) -> LeaveOneOutFit:
        """Return a fit that can be repeated for any calibration units among summarised cases."""


class LeaveOneOutFit(Protocol):
    """Fit of a score to calibration units, repeatable for any choice of these units."""

    def for_classes(self, classes: Any) -> LeaveOneOutFit:
        """Return the fit for a guarantee within each class, given classes (case,)."""

    def fit(self, kept: BoolArray, index: NDArray[np.int64]) -> SelfTuned:
        """Fit the score to the kept cases, given the unit of each case."""

    def between(
        self, kept: BoolArray, index: NDArray[np.int64], margin: float
    ) -> tuple[SelfTunedScore, ...]:
        """Return the extreme scores if quantiles over units are off by at most a margin."""
