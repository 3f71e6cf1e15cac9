"""What a scan found and did: the rounds of a case, and the cases of a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from taskuq.calibration.family import stacked
from taskuq.files import plain
from taskuq.interval import BoolArray, FloatArray, Interval


@dataclass(frozen=True)
class Found:
    """What recovery and task made of the cases of a round, by their names.

    Arguments:
        outputs: The task's outputs, (sample,) or (sample, task).
        chosen: The lines of the next round, where a rule chooses them.
        faults: What went wrong.
    """

    outputs: dict[str, FloatArray] = field(default_factory=dict)
    chosen: dict[str, BoolArray | None] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RoundRecord:
    """What happened to one case in one round.

    Arguments:
        round: The round, counted from 0.
        acceleration: Its acceleration.
        outputs: The task outputs (sample,) or (sample, task); one value when all is measured.
        stop: Whether the policy stopped here.
        lower: The lower end of the interval, one per task.
        upper: The upper end.
        reason: Why, in a sentence.
        case: The name of the case.
        fault: What was wrong in the round, so that it could not be decided; None for nothing.
        wanted: The lines that the next round adds, where a rule chooses them.
        void: Why nothing was promised when this was decided; None where the policy's promise stood.
        shadow: Whether the decision was told and not obeyed: a stop stopped nothing.
        again: Whether this was decided before, and is told from what was stored; not stored itself.
    """

    round: int
    acceleration: float
    outputs: FloatArray
    stop: bool
    lower: FloatArray
    upper: FloatArray
    reason: str
    case: str
    fault: str | None = None
    wanted: tuple[int, ...] = ()
    void: str | None = None
    shadow: bool = False
    again: bool = field(default=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as values that JSON can hold."""
        ends = {end: np.atleast_1d(getattr(self, end)).tolist() for end in ("lower", "upper")}
        kept = {name: value for name, value in vars(self).items() if name != "again"}
        return dict(plain({**kept, "outputs": self.outputs.tolist(), **ends}))


@dataclass(frozen=True)
class Acquisition:
    """The scan of one case, finished or under way.

    Arguments:
        rounds: What happened so far.
        pieces: What was measured in each round, and perhaps in one that is not decided yet.
        faults: What was wrong with pieces; a scan that has any is never known in full.
    """

    rounds: tuple[RoundRecord, ...] = ()
    pieces: tuple[Any, ...] = field(default=(), repr=False)
    faults: tuple[str, ...] = ()

    @property
    def is_finished(self) -> bool:
        """Whether the policy has stopped the scan."""
        return bool(self.rounds) and self.rounds[-1].stop

    @property
    def acceleration(self) -> float:
        """The acceleration of the last round."""
        return self.rounds[-1].acceleration

    @property
    def interval(self) -> Interval:
        """The interval of the last round."""
        return Interval(self.rounds[-1].lower, self.rounds[-1].upper)

    @property
    def reason(self) -> str:
        """The reason of the last decision."""
        return self.rounds[-1].reason

    @property
    def void(self) -> str | None:
        """Why nothing was promised when the scan was decided; None where the promise stood."""
        return next((r.void for r in reversed(self.rounds) if r.void is not None), None)

    def __repr__(self) -> str:
        if not self.rounds:
            return "a scan without a round yet"
        lines = [f"round {one.round}: {_interval(one)}, {one.reason}" for one in self.rounds]
        return "\n".join([*lines, *(f"fault: {fault}" for fault in self.faults)])


@dataclass(frozen=True)
class GroupAcquisition:
    """The scans of the cases of a group, finished or under way.

    Arguments:
        cases: The scan of each case by its name, in the order in which the cases were given.
    """

    cases: Mapping[str, Acquisition]

    @property
    def is_finished(self) -> bool:
        """Whether the policy has stopped every case."""
        return all(scan.is_finished for scan in self.cases.values())

    def __repr__(self) -> str:
        return "\n".join(
            f"{name}: {_interval(scan.rounds[-1])}, {scan.reason}" if scan.rounds else f"{name}: -"
            for name, scan in self.cases.items()
        )

    @property
    def mean_acceleration(self) -> float:
        """The harmonic mean of the accelerations at which the cases are now."""
        return 1 / float(np.mean([1 / scan.acceleration for scan in self.cases.values()]))

    @property
    def interval(self) -> Interval:
        """The last interval of each case, (case,) or (case, task)."""
        return stacked([scan.interval for scan in self.cases.values()], axis=0)


def _interval(record: RoundRecord) -> str:
    return ", ".join(repr(Interval(record.lower, record.upper)).splitlines())
