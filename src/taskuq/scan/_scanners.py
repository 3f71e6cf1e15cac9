"""Scanners of cases and groups; adaptive choice of lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from taskuq._arrays import as_array, is_tensor, require_methods, require_nested_lines
from taskuq.errors import InputError
from taskuq.interval import BoolArray
from taskuq.protocols import AdaptiveMeasure, AdaptiveScanner, CombiningScanner, Scanner
from taskuq.scan._state import Scan

# What measures the cases of a group one by one: a scanner for each, in order or by name.
ScannerOfEach: TypeAlias = Sequence[Scanner] | Mapping[str, Scanner]

MEASURES = (
    "cannot measure a round; give an object with a method measure, or for a group a list of them"
)


@dataclass(frozen=True)
class Scanners:
    """Scanner of each case."""

    of_case: Mapping[str, Scanner]
    is_group: bool = True
    is_shared: bool = False
    combined: Callable[[], None] = lambda: None

    @property
    def cases(self) -> tuple[str, ...]:
        """The names of the cases, in order."""
        return tuple(self.of_case)

    def measure(self, round: int, going: Sequence[str]) -> list[Any]:
        """Measure what a round adds, and return a piece for each case that is still going."""
        if self.is_shared:
            piece_of = dict(zip(self.cases, self._pieces(round), strict=True))
            return [piece_of[case] for case in going]
        return [self.of_case[case].measure(round) for case in going]

    def combine(self, case: str, pieces: Sequence[Any]) -> Any:
        """Join the pieces of a case where its scanner can; otherwise they stay a list."""
        scanner, each = self.of_case[case], list(pieces)
        found = scanner.combine(each) if isinstance(scanner, CombiningScanner) else each
        self.combined()
        return found

    def _pieces(self, round: int) -> list[Any]:
        """Measure a round of all cases, and see that it is a piece for each."""
        found: Any = next(iter(self.of_case.values())).measure(round)
        is_array = is_tensor(found) or isinstance(found, np.ndarray)
        is_sequence = isinstance(found, list | tuple) or (is_array and found.ndim > 0)
        pieces = list(found) if is_sequence else []
        if len(pieces) != len(self.of_case):
            got = f"{len(pieces)} pieces" if is_sequence else f"a {type(found).__name__}"
            raise InputError(
                f"the scanner of a group measured {got} in round {round}; let measure return a "
                f"list of one piece for each of the {len(self.of_case)} cases, or an array with a "
                "leading case axis"
            )
        return pieces


def as_scanners(
    scanner: Scanner | ScannerOfEach, case: str | None, cases: Sequence[str] | None
) -> Scanners:
    """Take what a user gives to measure with, one case or those of a group."""
    if isinstance(scanner, Scanner) and cases is None:
        return Scanners({"0" if case is None else case: scanner}, is_group=False)
    if case is not None:
        raise InputError(f"case={case!r} names one case, and there are several; use cases=[...]")
    if isinstance(scanner, Scanner):
        return Scanners(dict.fromkeys(_names(cases), scanner), is_shared=True)
    if isinstance(scanner, Mapping):
        if cases is not None:
            raise InputError("the scanners name their cases already; leave out cases=")
        cases, scanner = list(scanner), list(scanner.values())
    if not isinstance(scanner, list | tuple):
        require_methods(scanner, "scanner", Scanner, MEASURES)
    for one in scanner:
        require_methods(one, "one of the scanners", Scanner, MEASURES.partition(", or")[0])
    names = _names(range(len(scanner)) if cases is None else cases)
    if len(scanner) != len(names):
        raise InputError(f"got {len(scanner)} scanners for {len(names)} cases; give one for each")
    return Scanners(dict(zip(names, scanner, strict=True)))


def _names(cases: Any) -> list[str]:
    """The names of the cases of a group, each once."""
    if isinstance(cases, str) or not isinstance(cases, Iterable) or not list(cases):
        raise InputError(f"cases must be a list that names every case of the group, got {cases!r}")
    names = [str(case) for case in cases]
    if len(set(names)) < len(names):
        raise InputError(f"cases must have a name of its own for each, got {', '.join(names):.80}")
    return names


# How pieces may call the numbers of the lines they hold.
NAMES = ("columns", "views", "lines")


@dataclass(frozen=True)
class LineSelector:
    """Adaptive line rule of a running scan."""

    rule: AdaptiveMeasure
    rounds: int

    def measured(self, scan: Scan) -> BoolArray:
        """The lines of a case in the round that it is in, booleans (line,)."""
        lines = np.array(self.rule.initial_lines(), dtype=bool)
        for record in scan.rounds:
            lines[list(record.next_lines)] = True
        return lines

    def chosen(
        self, k: int, measurement: Any, recoveries: Any, task: Any, lines: BoolArray
    ) -> BoolArray | None:
        """Ask the rule for the lines of round k + 1; nothing where all that is left is next."""
        if k + 1 >= self.rounds:
            return None
        found = self.rule.next_lines(k, measurement, recoveries, task, lines.copy())
        return require_nested_lines(found, lines, k)

    def wanted(self, k: int, scan: Scan, chosen: BoolArray | None) -> tuple[int, ...]:
        """The lines that round k + 1 adds: as chosen, or as the rule has it where it cannot
        choose.
        """
        lines = self.measured(scan)
        if k + 1 >= self.rounds:
            after = np.ones_like(lines)
        elif chosen is None:
            after = require_nested_lines(self.rule.fallback_lines(k, lines.copy()), lines, k)
        else:
            after = chosen
        return tuple(np.flatnonzero(after & ~lines).tolist())

    def require_wanted(
        self,
        k: int,
        scan: Scan,
        chosen: BoolArray | None,
        stored: tuple[int, ...],
        path: Path,
    ) -> None:
        """Refuse a stored round after which other lines were wanted than the rule wants now."""
        if self.wanted(k, scan, chosen) != stored:
            raise InputError(
                f"after round {k} of {path} the rule wants other lines now: it is not the one that "
                "chose them, or the state is damaged; go on with the former or start a new scan"
            )

    def tell(self, k: int, scanners: Scanners, going: Mapping[str, Scan]) -> None:
        for name, scan in going.items():
            scanner = scanners.of_case[name]
            assert isinstance(scanner, AdaptiveScanner), "seen to when the scan began"
            scanner.request(k, self.lines_of(k, scan))

    def lines_of(self, k: int, scan: Scan) -> NDArray[np.int64]:
        """The numbers of the lines that round k adds to a case."""
        if k == 0:
            return np.flatnonzero(self.rule.initial_lines())
        return np.array(scan.rounds[k - 1].next_lines, dtype=np.int64)

    def fault(self, k: int, scan: Scan, piece: Any) -> str | None:
        if not isinstance(piece, Mapping):
            return None
        for name in NAMES:
            if name in piece:
                held = np.sort(as_array(piece[name], name).ravel())
                if not np.array_equal(held, np.sort(self.lines_of(k, scan))):
                    return f"round {k} measured other lines than were asked for"
        return None


def make_line_selector(rule: Any, scanners: Scanners, rounds: int) -> LineSelector | None:
    """Validate an adaptive rule and its scanners."""
    if rule is None:
        return None
    if not isinstance(rule, AdaptiveMeasure):
        raise InputError(
            f"the rule is a {type(rule).__name__}; give one with initial_lines, measure_lines, next_lines and "
            "fallback_lines"
        )
    if scanners.is_shared or not all(
        isinstance(scanner, AdaptiveScanner) for scanner in scanners.of_case.values()
    ):
        raise InputError(
            "a rule chooses lines for each case; give each a scanner with a method request(round, "
            "lines)"
        )
    return LineSelector(rule, rounds)
