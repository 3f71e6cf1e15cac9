"""Scanners of cases and groups, and the adaptive choice of lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from taskuq._arrays import as_array, is_tensor, require_methods, require_nested_lines
from taskuq.errors import InputError
from taskuq.interval import BoolArray
from taskuq.protocols import AdaptiveMeasure, Scanner
from taskuq.scan._state import Scan

# Scanners of the cases of a group, in order or by name.
ScannerOfEach: TypeAlias = Sequence[Scanner] | Mapping[str, Scanner]
# Keys of the line numbers in measurements.
LINE_KEYS = ("columns", "views", "lines")
MEASURES = "has no method measure; pass an object that has one, or for a group a list of them"


@dataclass(frozen=True)
class Scanners:
    """Scanners by case; the cases of a group may share one scanner."""

    of_case: Mapping[str, Scanner]
    is_group: bool = True
    is_shared: bool = False

    @cached_property
    def cases(self) -> tuple[str, ...]:
        return tuple(self.of_case)

    def measure(self, round: int, active: Sequence[str]) -> list[Any]:
        """Return the new measurements of a round for each active case."""
        if self.is_shared:
            of_case = dict(zip(self.cases, self._measure_group(round), strict=True))
            return [of_case[case] for case in active]
        return [self.of_case[case].measure(round) for case in active]

    def combine(self, case: str, measurements: Sequence[Any]) -> Any:
        """Return the measurements of a case, combined if its scanner has a method ``combine``."""
        each, combine = list(measurements), getattr(self.of_case[case], "combine", None)
        return each if combine is None else combine(each)

    def _measure_group(self, round: int) -> list[Any]:
        measured: Any = next(iter(self.of_case.values())).measure(round)
        is_array = is_tensor(measured) or isinstance(measured, np.ndarray)
        is_sequence = isinstance(measured, list | tuple) or (is_array and measured.ndim > 0)
        each = list(measured) if is_sequence else []
        if len(each) != len(self.of_case):
            got = f"{len(each)} measurements" if is_sequence else f"a {type(measured).__name__}"
            raise InputError(
                f"the scanner of a group of {len(self.of_case)} cases returned {got} in round "
                f"{round}; return one measurement per case, or an array with a leading case axis",
                code="component.invalid",
            )
        return each


def as_scanners(
    scanner: Scanner | ScannerOfEach, case: str | None, cases: Sequence[str] | None
) -> Scanners:
    if isinstance(scanner, Scanner) and cases is None:
        return Scanners({"0" if case is None else case: scanner}, is_group=False)
    if case is not None:
        text = f"case={case!r} names one case, but there are several; pass cases=[...]"
        raise InputError(text, code="option.conflict")
    if isinstance(scanner, Scanner):
        return Scanners(dict.fromkeys(_names(cases), scanner), is_shared=True)
    if isinstance(scanner, Mapping):
        if cases is not None:
            raise InputError("scanners by case and cases= conflict", code="option.conflict")
        cases, scanner = list(scanner), list(scanner.values())
    if not isinstance(scanner, list | tuple):
        require_methods(scanner, "scanner", Scanner, MEASURES)
    for one in scanner:
        require_methods(one, "one of the scanners", Scanner, MEASURES.partition(", or")[0])
    names = _names(range(len(scanner)) if cases is None else cases)
    if len(scanner) != len(names):
        text = f"got {len(scanner)} scanners for {len(names)} cases; pass one for each"
        raise InputError(text, code="shape.mismatch")
    return Scanners(dict(zip(names, scanner, strict=True)))


def _names(cases: Any) -> list[str]:
    if isinstance(cases, str) or not isinstance(cases, Iterable) or not list(cases):
        text = f"cases must list the name of every case of the group, got {cases!r}"
        raise InputError(text, code="value.invalid")
    names = [str(case) for case in cases]
    if len(set(names)) < len(names):
        text = f"cases must be unique, got {', '.join(names):.80}"
        raise InputError(text, code="table.duplicate")
    return names


@dataclass(frozen=True)
class LineSelector:
    """Adaptive choice of lines in a running scan."""

    rule: AdaptiveMeasure
    rounds: int

    @classmethod
    def checked(cls, rule: Any, scanners: Scanners, rounds: int) -> LineSelector:
        """Return a selector for an adaptive rule, after checking the rule and the scanners."""
        require_methods(
            rule, "adaptive", AdaptiveMeasure,
            "lacks one of initial_lines, measure_lines, next_lines and fallback_lines",
        )  # fmt: skip
        if scanners.is_shared or not all(
            hasattr(scanner, "request") for scanner in scanners.of_case.values()
        ):
            text = "adaptive= needs one scanner per case with a method request(round, lines)"
            raise InputError(text, code="component.invalid")
        return cls(rule, rounds)

    def measured(self, scan: Scan) -> BoolArray:
        """Return the lines requested for a case so far, as a boolean mask (line,)."""
        lines = np.array(self.rule.initial_lines(), dtype=bool)
        for record in scan.rounds:
            lines[list(record.next_lines)] = True
        return lines

    def choose(
        self, k: int, measurement: Any, recoveries: Any, task: Any, lines: BoolArray
    ) -> BoolArray:
        """Return the mask (line,) of all lines that the rule has chosen up to round k + 1."""
        chosen = self.rule.next_lines(k, measurement, recoveries, task, lines.copy())
        return require_nested_lines(chosen, lines, k)

    def added(self, k: int, scan: Scan, chosen: BoolArray | None) -> tuple[int, ...]:
        """Return the indices of lines added in round k + 1: those of ``chosen`` or the fallback."""
        lines = self.measured(scan)
        if k + 1 >= self.rounds:
            after = np.ones_like(lines)
        elif chosen is None:
            after = require_nested_lines(self.rule.fallback_lines(k, lines.copy()), lines, k)
        else:
            after = chosen
        return tuple(np.flatnonzero(after & ~lines).tolist())

    def request(self, k: int, scanners: Scanners, active: Mapping[str, Scan]) -> None:
        """Request the lines of round k from each scanner."""
        for name, scan in active.items():
            scanner: Any = scanners.of_case[name]  # checked at the start
            scanner.request(k, self._lines_of(k, scan))

    def _lines_of(self, k: int, scan: Scan) -> NDArray[np.int64]:
        if k == 0:
            return np.flatnonzero(self.rule.initial_lines())
        return np.array(scan.rounds[k - 1].next_lines, dtype=np.int64)

    def fault(self, k: int, scan: Scan, measurement: Any) -> str | None:
        for key in LINE_KEYS if isinstance(measurement, Mapping) else ():
            if key in measurement:
                lines = np.sort(as_array(measurement[key], key).ravel())
                if not np.array_equal(lines, np.sort(self._lines_of(k, scan))):
                    return f"round {k} measured other lines than requested"
        return None
