"""Protocols for user-defined imaging systems, reconstructions, tasks, scanners and scores.

An object supports a protocol if it has the methods and attributes of the protocol's class.
Optional attributes:

- ``names`` of a task: one string for each output;
- ``range`` of a task: two numbers (low, high), or one pair for each output;
- ``fingerprint`` of a reconstruction method, task or adaptive rule: a string that is different
  for every network.

An attribute that is ``None`` or of another type is ignored, but ``names`` must be strings.
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

    Rounds are nested: a measurement contains the data of every higher acceleration. A measurement
    may have an attribute ``preview``, an image (height, width) that the explorer shows.
    """

    def __call__(self, image: Any, acceleration: float, /) -> Any:
        """Measure one image at one acceleration."""


@runtime_checkable
class LineMeasure(Measure, Protocol):
    """An imaging system that can measure any set of lines or views."""

    @property
    def n_lines(self) -> int:
        """Number of lines or views of a full measurement."""

    def initial_lines(self, n: int, /) -> BoolArray:
        """Return a mask (line,) of the n lines that every measurement should include."""

    def add_random_lines(
        self, lines: BoolArray, n: int, seed: int | np.random.Generator, /
    ) -> BoolArray:
        """Return a mask (line,) with n more lines, drawn as for non-adaptive masks."""

    def measure_lines(self, image: Any, acceleration: float, lines: BoolArray, /) -> Any:
        """Measure the lines in the mask ``lines`` of an image, at an acceleration."""

    def line_values(self, images: Any, measurement: Any, /) -> Any:
        """Simulate the fully sampled data of images (sample, ...), as (line, sample, value)."""


@runtime_checkable
class AdaptiveMeasure(Measure, Protocol):
    """Imaging system that uses the posterior samples of a case to choose the next lines.

    ``__call__`` measures the lines of the first round, or all lines if the acceleration is 1.
    """

    def initial_lines(self) -> BoolArray:
        """Return the mask (line,) of the lines of the first round, the same for every case."""

    def measure_lines(self, image: Any, acceleration: float, lines: BoolArray, /) -> Any:
        """Measure the lines in the mask ``lines`` of an image, at an acceleration."""

    def next_lines(
        self, round: int, measurement: Any, recoveries: Any, task: Any, lines: BoolArray, /
    ) -> BoolArray:
        """Return a mask (line,) of the next round, including the lines measured so far.

        ``recoveries`` are posterior samples (sample, ...) of the current round, ``task`` is the
        task with cached outputs for these samples, and ``lines`` is the mask (line,) so far.
        """

    def fallback_lines(self, round: int, lines: BoolArray, /) -> BoolArray:
        """Return the mask (line,) of the next round if :meth:`next_lines` cannot be used."""


@runtime_checkable
class Scanner(Protocol):
    """A device that measures round by round.

    A scanner may have more methods:

    - ``combine(measurements)`` combines the measurements of all rounds of a case so far; without
      it, the reconstruction method receives a list of measurements.
    - ``request(round, lines)`` is called before a round of adaptive sampling is measured, with a
      mask (line,) of the lines to add.
    - ``is_complete(measurements)`` returns True if the measurements of all rounds are complete.
    - ``remeasure(round, measurement)`` measures a stored round again before a scan is resumed, and
      raises an error if the data differ.
    - ``finalize()`` is called before a scan stops and returns a fault in its data, or None; faults
      detected after this call are ignored.
    """

    def measure(self, round: int, /) -> Any:
        """Measure a round and return its new data; the last round completes the measurement."""


@runtime_checkable
class Recover(Protocol):
    """A reconstruction method; its images depend only on the measurement and the seed."""

    def __call__(self, measurement: Any, /, *, samples: int, seed: int) -> Any:
        """Return samples (sample, height, width), or one point estimate (1, height, width)."""


@runtime_checkable
class BatchRecover(Recover, Protocol):
    """A reconstruction method that processes several cases in one call."""

    def batch(self, measurements: Sequence[Any], /, *, samples: int, seeds: Sequence[int]) -> Any:
        """Return samples (case, sample, height, width), given one seed for each case."""


@runtime_checkable
class StoredRecover(Protocol):
    """Posterior samples computed elsewhere, which are loaded for each case and acceleration."""

    def load(self, case: str, acceleration: float, /, *, samples: int) -> Any:
        """Return the samples of a case in a round, an array (sample, height, width)."""


@runtime_checkable
class Task(Protocol):
    """A task :math:`f` from images to numbers."""

    def __call__(self, images: Any, /) -> Any:
        """Return one output per image, (image,), or several, (image, task)."""


@runtime_checkable
class FullReferenceTask(Task, Protocol):
    r"""Image quality :math:`m(\hat x, x)` of a reported image; the target depends on the round.

    A call with the samples :math:`\tilde x^{(j)}` of one case returns
    :math:`m(\hat x, \tilde x^{(j)})`; the reported image :math:`\hat x` is their mean.
    """

    def compare(self, reported: Any, images: Any, /) -> Any:
        """Return the quality of ``reported`` (height, width) relative to each of ``images``."""


def declared_names(task: Any) -> tuple[str, ...] | None:
    """Return the attribute ``names`` of a task, or None."""
    names = getattr(task, "names", None)
    if names is None or callable(names):
        return None
    listed = list(names) if isinstance(names, Sequence | np.ndarray) else [None]
    if isinstance(names, str) or not all(isinstance(name, str) for name in listed):
        text = f"names of the task must be strings, got {names!r:.80}; pass task_names="
        raise InputError(text, code="component.invalid")
    return tuple(map(str, listed))


def declared_range(task: Any) -> Any:
    """Return the attribute ``range`` of a task: one pair, one pair for each output, or None."""
    declared = getattr(task, "range", None)
    return declared if isinstance(declared, Sequence | Mapping | np.ndarray) else None


def declared_fingerprint(component: Any) -> str:
    """Return the attribute ``fingerprint`` of a component, or an empty string."""
    declared = getattr(component, "fingerprint", "")
    return declared if isinstance(declared, str) else ""


@runtime_checkable
class Score(Protocol):
    r"""A nonconformity score and the intervals it defines.

    Both methods describe one family of sets, which grow with the quantile :math:`q`:

    .. math:: \mathcal C_q(x) = \{ z : s(x, z) \le q \}

    There are two optional attributes. ``name`` is displayed instead of the name of the class. If
    ``uses_earlier_rounds`` is True, outputs are (round, case, sample), the current round last.
    """

    def score(self, outputs: FloatArray, targets: FloatArray, /) -> FloatArray:
        """Return the score of each target (case,) for outputs (case, sample); larger is worse."""

    def interval(self, outputs: FloatArray, quantile: ArrayLike, /) -> Interval:
        """Return, for each case, the interval of targets with a score of at most ``quantile``."""


class IntervalFamily(Protocol):
    """Nested intervals of given cases, as a function of the quantile."""

    def score(self, targets: FloatArray) -> FloatArray:
        """Return, for each case, the smallest quantile whose interval contains the target."""

    def interval(self, quantile: ArrayLike) -> Interval:
        """Return the interval of each case at one quantile, or at one quantile per case."""

    def select(self, index: NDArray[np.int64]) -> IntervalFamily:
        """Return this family restricted to the cases at the given indices, in their order."""


@runtime_checkable
class NestedScore(Score, Protocol):
    """A score with a method that returns the nested intervals of given cases."""

    def family(self, outputs: FloatArray) -> IntervalFamily:
        """Return the nested intervals of cases with outputs (case, sample)."""


@runtime_checkable
class FittedScore(Score, Protocol):
    """A score that is fitted to some cases and calibrated on other cases."""

    def fit(
        self, outputs: FloatArray, targets: Any = None, *, range_: Any = None, group: Any = None
    ) -> Score:
        """Return the score fitted to the given cases."""

    @property
    def needs_tuning(self) -> bool:
        """True before the score is fitted."""

    @property
    def tuning_fraction(self) -> float:
        """Approximate fraction of calibration units to hold out for the fit."""

    @property
    def tuning_needs_targets(self) -> bool:
        """True if the fit needs targets in addition to outputs."""


class SelfTuned(NamedTuple):
    """Fitted score, and scores with the extreme parameters of all fits with one unit replaced."""

    score: SelfTunedScore  # for new cases
    corners: tuple[SelfTunedScore, ...]  # for calibration cases: extreme shifts and scales


@runtime_checkable
class SelfTunedScore(FittedScore, Protocol):
    """A score that is fitted to the calibration units themselves, with none held out."""

    def summarise(self, outputs: FloatArray) -> Any:
        """Return an object with statistics of each case and a method ``take`` to select cases."""

    def summary_family(self, read: Any) -> IntervalFamily:
        """Return the nested intervals of cases from the result of :meth:`summarise`."""

    def leave_one_out(self, read: Any, targets: Any, range_: TaskRange) -> LeaveOneOutFit:
        """Return an object that fits the score to any subset of the summarised cases ``read``."""


class LeaveOneOutFit(Protocol):
    """A score fitted with any subset of the calibration units left out."""

    def for_classes(self, classes: Any) -> LeaveOneOutFit:
        """Return the same fit for a guarantee within each class, given the class of each case."""

    def fit(self, kept: BoolArray, index: NDArray[np.int64]) -> SelfTuned:
        """Fit the score to the cases in the mask ``kept``, given their units ``index``."""

    def between(
        self, kept: BoolArray, index: NDArray[np.int64], margin: float
    ) -> tuple[SelfTunedScore, ...]:
        """Return scores with extreme parameters of fits at quantile levels off by ``margin``."""
