"""Who measures: one scanner for a case, one for each case of a group, or one for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from taskuq.checks import is_tensor, require_part
from taskuq.errors import InputError
from taskuq.protocols import CombiningScanner, Scanner

# What measures the cases of a group one by one: a scanner for each, in order or by name.
ScannerOfEach: TypeAlias = Sequence[Scanner] | Mapping[str, Scanner]

MEASURES = (
    "cannot measure a round; give an object with a method measure, or for a group a list of them"
)


@dataclass(frozen=True)
class Scanners:
    """What measures the cases of a scan.

    Arguments:
        of_case: The scanner of each case, by its name.
        is_group: Whether the cases were given as those of a group.
        is_shared: Whether all have the same scanner, which measures all of them in a round.
        combined: Called each time the pieces of a case have been joined.
    """

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
    """Take what a user gives to measure with, one case or those of a group.

    Arguments:
        scanner: One scanner, or one for each case of a group, in order or by name.
        case: The name of the case, where there is one case.
        cases: The names of the cases of a group; one scanner then measures all of them.

    Example:
        >>> class Camera:
        ...     def measure(self, round):
        ...         return np.ones(3)
        >>> as_scanners(Camera(), "a", None).is_group
        False
        >>> as_scanners([Camera(), Camera()], None, None).cases  # as a pipeline calls its images
        ('0', '1')
        >>> as_scanners(Camera(), None, ["a", "b", "c"]).is_shared
        True
    """
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
        require_part(scanner, "scanner", Scanner, MEASURES)
    for one in scanner:
        require_part(one, "one of the scanners", Scanner, MEASURES.partition(", or")[0])
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
