"""Lines wanted next: how a rule that chooses measurements is asked in a scan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskuq.checks import as_array, require_lines
from taskuq.decide.scan import Acquisition
from taskuq.decide.scanners import Scanners
from taskuq.errors import InputError
from taskuq.interval import BoolArray
from taskuq.protocols import AskedScanner, ChoosingMeasure

# How pieces may call the numbers of the lines they hold.
NAMES = ("columns", "views", "lines")


@dataclass(frozen=True)
class Asking:
    """A rule in a scan.

    Arguments:
        rule: The rule, the one that calibration cases were replayed by.
        rounds: How many rounds there are before everything is measured.
    """

    rule: ChoosingMeasure
    rounds: int

    def measured(self, scan: Acquisition) -> BoolArray:
        """The lines of a case in the round that it is in, booleans (line,)."""
        lines = np.array(self.rule.first(), dtype=bool)
        for record in scan.rounds:
            lines[list(record.wanted)] = True
        return lines

    def chosen(
        self, k: int, measurement: Any, recoveries: Any, task: Any, lines: BoolArray
    ) -> BoolArray | None:
        """Ask the rule for the lines of round k + 1; nothing where all that is left is next."""
        if k + 1 >= self.rounds:
            return None
        found = self.rule.choose(k, measurement, recoveries, task, lines.copy())
        return require_lines(found, lines, k)

    def wanted(self, k: int, scan: Acquisition, chosen: BoolArray | None) -> tuple[int, ...]:
        """The lines that round k + 1 adds: as chosen, or as the rule has it where it cannot choose.

        Arguments:
            k: The round that is over.
            scan: The case, as it was before that round was decided.
            chosen: What :meth:`chosen` returned; nothing where that failed.
        """
        lines = self.measured(scan)
        if k + 1 >= self.rounds:
            after = np.ones_like(lines)
        elif chosen is None:
            after = require_lines(self.rule.otherwise(k, lines.copy()), lines, k)
        else:
            after = chosen
        return tuple(np.flatnonzero(after & ~lines).tolist())

    def require_wanted(
        self,
        k: int,
        scan: Acquisition,
        chosen: BoolArray | None,
        stored: tuple[int, ...],
        path: Path,
    ) -> None:
        """Refuse a stored round after which other lines were wanted than the rule wants now.

        Arguments:
            k: The round.
            scan: The case, as it was before that round was decided.
            chosen: What :meth:`chosen` returns now.
            stored: The lines that were wanted.
            path: Where they are stored, for the error.
        """
        if self.wanted(k, scan, chosen) != stored:
            raise InputError(
                f"after round {k} of {path} the rule wants other lines now: it is not the one that "
                "chose them, or the state is damaged; go on with the former or start a new scan"
            )

    def tell(self, k: int, scanners: Scanners, going: Mapping[str, Acquisition]) -> None:
        """Tell the scanner of each case which lines round k adds."""
        for name, scan in going.items():
            scanner = scanners.of_case[name]
            assert isinstance(scanner, AskedScanner), "seen to when the scan began"
            scanner.want(k, self.lines_of(k, scan))

    def lines_of(self, k: int, scan: Acquisition) -> NDArray[np.int64]:
        """The numbers of the lines that round k adds to a case."""
        if k == 0:
            return np.flatnonzero(self.rule.first())
        return np.array(scan.rounds[k - 1].wanted, dtype=np.int64)

    def fault(self, k: int, scan: Acquisition, piece: Any) -> str | None:
        """Say where a piece holds other lines than were asked for; what it does not name passes."""
        if not isinstance(piece, Mapping):
            return None
        for name in NAMES:
            if name in piece:
                held = np.sort(as_array(piece[name], name).ravel())
                if not np.array_equal(held, np.sort(self.lines_of(k, scan))):
                    return f"round {k} measured other lines than were asked for"
        return None


def asking(rule: Any, scanners: Scanners, rounds: int) -> Asking | None:
    """See that a rule can be asked, and that scanners do what it says; nothing without a rule.

    Arguments:
        rule: The rule, or None.
        scanners: Who measures.
        rounds: The rounds of the policy.
    """
    if rule is None:
        return None
    if not isinstance(rule, ChoosingMeasure):
        raise InputError(
            f"the rule is a {type(rule).__name__}; give one with first, take, choose and otherwise"
        )
    if scanners.is_shared or not all(
        isinstance(scanner, AskedScanner) for scanner in scanners.of_case.values()
    ):
        raise InputError(
            "a rule chooses lines for each case; give each a scanner with a method want(round, "
            "lines)"
        )
    return Asking(rule, rounds)
