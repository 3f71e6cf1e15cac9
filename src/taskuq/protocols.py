"""The four call signatures at which a user's own code joins: Measure, Recover, Task, Score."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from numpy.typing import ArrayLike

from taskuq.interval import FloatArray, Interval


@runtime_checkable
class Measure(Protocol):
    """An imaging system :math:`y = h(x)` that can be run at several accelerations.

    Rounds are nested: what is measured at a high acceleration is part of what is measured at a
    lower one. A measurement may be any object that the matching :class:`Recover` understands.
    """

    def __call__(self, image: Any, acceleration: float) -> Any:
        """Measure one image at one acceleration."""
        ...


@runtime_checkable
class Recover(Protocol):
    r"""A recovery method :math:`\hat x^{(j)} = g(y, v^{(j)})`.

    A point estimator returns one recovery whatever ``samples`` asks for. The same measurement and
    seed always give the same recoveries.
    """

    def __call__(self, measurement: Any, *, samples: int, seed: int) -> Any:
        """Return recoveries, (sample, height, width)."""
        ...


@runtime_checkable
class Task(Protocol):
    """A task :math:`f` that reads numbers off images."""

    def __call__(self, images: Any) -> Any:
        """Return one number for each image, (image,), or several, (image, task)."""
        ...


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
        ...

    def interval(self, outputs: FloatArray, quantile: ArrayLike) -> Interval:
        """Return the set of targets that score at most ``quantile``, for each case.

        ``quantile`` is one number, or one for each case.
        """
        ...
