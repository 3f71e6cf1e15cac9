"""The terms of a scan: whether anything is promised, and whether its decisions are obeyed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from taskuq.decide.monitor import Monitor
from taskuq.decide.scan import RoundRecord

# What is promised of a scan whose state does not say it.
UNTOLD = (
    "Nobody can tell whether anything was promised: an earlier version stored this scan, and did "
    "not store whether the promise stood."
)


@dataclass(frozen=True)
class Terms:
    """What holds for all decisions of a scan, and is stored with each of them.

    Arguments:
        void: Why nothing is promised; None where the policy's promise stands.
        shadow: Whether decisions are told and not obeyed.
        patient: Whose scan it is, where that is known.
    """

    void: str | None = None
    shadow: bool = False
    patient: str | None = None

    def stamped(
        self, records: Sequence[RoundRecord], monitor: Monitor | None = None
    ) -> list[RoundRecord]:
        """Return records that say on which terms they were decided.

        Arguments:
            records: What was decided in a round.
            monitor: What watches whether the promise still stands, if anything does.
        """
        void = self.void
        if void is None and monitor is not None and monitor.is_withdrawn:
            void = monitor.sentence
        return [replace(record, void=void, shadow=self.shadow) for record in records]


def as_told(reason: str, *, shadow: bool) -> str:
    """Return the reason of a decision as a person is told it: in shadow a stop stopped nothing.

    Arguments:
        reason: The reason.
        shadow: Whether the decision was not obeyed.

    Example:
        >>> as_told("stop at R = 16: the interval is at most 0.1 wide", shadow=True)
        'would have stopped at R = 16: the interval is at most 0.1 wide'
        >>> as_told("stop: everything is measured, so the target is known", shadow=True)
        'stop: everything is measured, so the target is known'
    """
    is_early = reason.startswith("stop ")
    return f"would have stopped {reason.removeprefix('stop ')}" if shadow and is_early else reason
