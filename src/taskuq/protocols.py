"""Protocols where user code joins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taskuq.interval import BoolArray, FloatArray, Interval, TaskRange


@runtime_checkable
class Measure(Protocol):
    """An imaging system :math:`y = h(x)` that can be run at several accelerations.

    Rounds are nested: what is measured at a high acceleration is part of what is measured at a
    lower one. A measurement may be any object that the matching :class:`Recover` understands.
    """

    def __call__(self, image: Any, acceleration: float) -> Any:
        """Measure one image at one acceleration."""


@runtime_checkable
class DisplayableMeasurement(Protocol):
    """Measurement with a preview image: zero-filled, back-projected, blurred."""

    @property
    def preview(self) -> Any:
        """Preview image, (height, width)."""


@runtime_checkable
class LineMeasure(Measure, Protocol):
    """Imaging system that measures arbitrary lines or views."""

    @property
    def n_lines(self) -> int:
        """Number of lines or views of a full measurement."""

    def initial_lines(self, n: int) -> BoolArray:
        """Return the n lines that every measurement should have, booleans (line,)."""

    def add_random_lines(
        self, lines: BoolArray, n: int, seed: int | np.random.Generator
    ) -> BoolArray:
        """Return these lines and n random others, distributed as in masks, booleans (line,)."""

    def measure_lines(self, image: Any, acceleration: float, lines: BoolArray) -> Any:
        """Measure the given lines of an image, booleans (line,), at an acceleration."""

    def line_values(self, images: Any, measurement: Any) -> Any:
        """Return the values of each line of images (sample, ...): a tensor (line, sample, value).

        The images are samples recovered from the measurement.
        """


@runtime_checkable
class AdaptiveMeasure(Measure, Protocol):
    """Adaptive sampling rule, frozen before calibration: chooses the lines of a case by round.

    It may use all measurements and samples of this case, and none of other cases. Called with an
    image and an acceleration it refuses all but the first round and R = 1, because the lines of
    the others depend on samples.
    """

    def initial_lines(self) -> BoolArray:
        """Return the lines of the first round, booleans (line,), the same for every case."""

    def measure_lines(self, image: Any, acceleration: float, lines: BoolArray) -> Any:
        """Measure the given lines of an image, booleans (line,), at an acceleration."""

    def next_lines(
        self, round: int, measurement: Any, recoveries: Any, task: Any, lines: BoolArray
    ) -> BoolArray:
        """Return the lines of the next round, including those measured so far.

        Args:
            round: The current round, counted from 0.
            measurement: Its measurement.
            recoveries: Its samples, (sample, ...).
            task: The task; in a scan it returns cached outputs for these samples.
            lines: Lines measured so far, booleans (line,).
        """

    def fallback_lines(self, round: int, lines: BoolArray) -> BoolArray:
        """Return the lines of the next round if no choice is possible and the scan continues."""


@runtime_checkable
class Scanner(Protocol):
    """Anything that can measure the next round of a scan.

    ``measure`` returns only what the round adds to what was measured before: a piece, or, of a
    scanner for all cases of a group, a piece for each case.
    """

    def measure(self, round: int) -> Any:
        """Measure what a round adds; the one after the policy's last round adds all the rest."""


@runtime_checkable
class CombiningScanner(Scanner, Protocol):
    """A scanner that joins what its rounds measured; without it a recovery is given the list."""

    def combine(self, measurements: list[Any]) -> Any:
        """Join the pieces of all rounds of a case so far into what the recovery takes."""


@runtime_checkable
class CompletableScanner(Scanner, Protocol):
    """A scanner that can tell whether its pieces are everything there is to measure."""

    def is_complete(self, measurements: list[Any]) -> bool:
        """Whether the pieces of all rounds leave nothing out."""


@runtime_checkable
class AdaptiveScanner(Scanner, Protocol):
    """A scanner that measures the lines it is asked for; a rule that chooses them needs one."""

    def request(self, round: int, lines: NDArray[np.int64]) -> None:
        """Be told which lines a round adds, before it is measured."""


@runtime_checkable
class VerifiableScanner(Scanner, Protocol):
    """A scanner that is not believed to be the one whose scan was stored until it shows it."""

    def remeasure(self, round: int, measurement: Any) -> None:
        """Measure a stored round once more; raise an error where that is not what was stored."""


@runtime_checkable
class FinalizingScanner(Scanner, Protocol):
    """A scanner whose measurements may turn out wrong while a round is computed from them."""

    def finalize(self) -> str | None:
        """Say what has turned out wrong; where nothing has, what comes later changes nothing."""


@runtime_checkable
class Fingerprinted(Protocol):
    """A recovery or a task that says which one it is, e.g. by the SHA-256 of its weights."""

    @property
    def fingerprint(self) -> str:
        """A text that is another one for another network."""


@runtime_checkable
class Recover(Protocol):
    r"""A recovery method :math:`\hat x^{(j)} = g(y, v^{(j)})`.

    A point estimator returns one recovery whatever ``samples`` asks for. The same measurement and
    seed always give the same recoveries.
    """

    def __call__(self, measurement: Any, *, samples: int, seed: int) -> Any:
        """Return recoveries, (sample, height, width)."""


@runtime_checkable
class BatchRecover(Recover, Protocol):
    """A recovery method that draws the samples of several cases at once."""

    def batch(self, measurements: Sequence[Any], *, samples: int, seeds: Sequence[int]) -> Any:
        """Return recoveries, (case, sample, height, width), one seed for each case."""


@runtime_checkable
class PosteriorRecover(Recover, Protocol):
    """A recovery method that draws at a temperature, and draws again what is out of bounds.

    Attributes:
        temperature: Standard deviation of what is drawn from: one, or one for each acceleration.
        rejected: How many draws were out of bounds so far.
    """

    temperature: Any
    rejected: int


@runtime_checkable
class StoredRecover(Protocol):
    """Recoveries that were made elsewhere: found by the name of the case, not by a measurement."""

    def load(self, case: str, acceleration: float, *, samples: int) -> Any:
        """Return the recoveries of a case in a round, an array (sample, height, width)."""


@runtime_checkable
class MarkovChain(Protocol):
    """A deepinv model that walks through the posterior and keeps where it has been."""

    def get_chain(self) -> Any:
        """Return the states that were kept, the latest last."""


@runtime_checkable
class Task(Protocol):
    """A task :math:`f` that reads numbers off images."""

    def __call__(self, images: Any) -> Any:
        """Return one number for each image, (image,), or several, (image, task)."""


@runtime_checkable
class NamedTask(Task, Protocol):
    """A task that says what its numbers are called; None for names of no meaning."""

    names: Sequence[str] | None


@runtime_checkable
class RangedTask(Task, Protocol):
    """A task that says between which two numbers its numbers lie; None where there are none."""

    range: tuple[float, float] | None


@runtime_checkable
class HasImage(Protocol):
    """An item of a data set that holds its image among other things."""

    image: Any


@runtime_checkable
class HasCases(Protocol):
    """Images whose names, (case,), are known without reading them; None where not after all."""

    cases: Any


@runtime_checkable
class HasGroups(Protocol):
    """Images whose groups, (case,), are known without reading them."""

    groups: Any


@runtime_checkable
class HasLabels(Protocol):
    """Images whose classes, (case,), are known without reading them."""

    labels: Any


@runtime_checkable
class HasPrecision(Protocol):
    """A data set that knows whether its images were rounded when they were stored."""

    @property
    def precision(self) -> str | None:
        """``"half"`` or ``"single"``; None where nobody says."""


@runtime_checkable
class Score(Protocol):
    r"""A nonconformity score and the intervals it stands for.

    The two methods describe one family of sets, nested in the quantile :math:`q`:

    .. math:: \mathcal C_q(x) = \{ z : s(x, z) \le q \}

    ``score`` says how badly a target fits; ``interval`` gives the set for a quantile. Any object
    with these two methods can be calibrated, evaluated and used to decide.
    """

    def score(self, outputs: FloatArray, targets: FloatArray) -> FloatArray:
        """Score targets (case,) against outputs (case, sample); larger is worse."""

    def interval(self, outputs: FloatArray, quantile: ArrayLike) -> Interval:
        """Return the set of targets that score at most ``quantile``, for each case.

        ``quantile`` is one number, or one for each case.
        """


class IntervalFamily(Protocol):
    """The nested intervals of a fixed set of cases."""

    def score(self, targets: FloatArray) -> FloatArray:
        """Return the smallest quantile whose interval contains the target."""

    def interval(self, quantile: ArrayLike) -> Interval:
        """Return the interval of each case for one quantile, or for one quantile per case."""

    def take(self, index: NDArray[np.int64]) -> IntervalFamily:
        """Return the family of some of the cases, in the given order."""


@runtime_checkable
class NestedScore(Score, Protocol):
    """A score that gives the nested intervals of some cases once, to be read many times."""

    def family(self, outputs: FloatArray) -> IntervalFamily:
        """Return the nested intervals of some cases."""


@runtime_checkable
class MultiRoundScore(Score, Protocol):
    """A score that can read the earlier rounds of a scan too."""

    @property
    def uses_earlier_rounds(self) -> bool:
        """Whether it takes outputs (round, case, sample), the current round last."""


@runtime_checkable
class NamedScore(Score, Protocol):
    """A score that says what to call it in tables; without it that is the name of its class."""

    @property
    def name(self) -> str:
        """Its name."""


@runtime_checkable
class TunableScore(Score, Protocol):
    """A score that can learn from some cases before it is calibrated on others."""

    def tuned(
        self,
        outputs: FloatArray,
        targets: FloatArray | None = None,
        *,
        range_: TaskRange = None,
        group: Any = None,
    ) -> Score:
        """Return the score that learnt from these cases."""


@runtime_checkable
class FittedScore(TunableScore, Protocol):
    """A score that learns, and says what it needs for that; whoever can be tuned has to."""

    @property
    def needs_tuning(self) -> bool:
        """Whether it has still to learn."""

    @property
    def tuning_share(self) -> float:
        """The share of calibration units to set aside for it, roughly."""

    @property
    def tuning_needs_targets(self) -> bool:
        """Whether it looks at targets, and not at outputs alone."""


class SelfTuned(NamedTuple):
    """A score that has learnt from calibration units, and what it could be for each of them.

    Arguments:
        score: What new cases are judged with.
        narrow: What each calibration case is judged with: a scale as small as the other units
            could give it, whatever the new unit is.
        wide: The same with the largest scale.
    """

    score: SelfTunedScore
    narrow: SelfTunedScore
    wide: SelfTunedScore


@runtime_checkable
class SelfTunedScore(FittedScore, Protocol):
    """A score that learns from the outputs of the calibration units themselves."""

    def read(self, outputs: FloatArray) -> Any:
        """Return all that it reads of outputs (case, sample); ``take`` selects some cases."""

    def grown(self, read: Any) -> IntervalFamily:
        """Return the nested intervals of cases from what was read of their outputs."""

    def learner(self, read: Any, range_: TaskRange) -> LeaveOneOutFit:
        """Return what learns from any calibration units among the cases that were read."""


class LeaveOneOutFit(Protocol):
    """What a steady score learns with."""

    def learn(self, kept: BoolArray, index: NDArray[np.int64]) -> SelfTuned:
        """Learn from some cases, the unit of each of them given."""

    def between(
        self, kept: BoolArray, index: NDArray[np.int64], margin: float
    ) -> tuple[SelfTunedScore, SelfTunedScore]:
        """Return the ends of what it is if quantiles over units are off by up to a margin."""
