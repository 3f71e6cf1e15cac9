"""Findings in words: verdicts, lists and names, made from numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from taskuq.calibration.rank import cases_needed
from taskuq.calibration.units import Unit
from taskuq.evaluation.result import Evaluation
from taskuq.report.figure import Figure
from taskuq.report.records import experiment_record


@dataclass
class Account:
    """What is shown and found of one claim, split by case and by group.

    Arguments:
        name: A short name for files and links.
        title: The heading.
        claim: What the paper says, or what we say.
        figures: Figures as data.
        tables: Tables as records hold them.
        findings: A sentence for each way of splitting.
        held: Whether each part of the claim held.

    Example:
        >>> from taskuq.calibration.units import NewCase
        >>> account = Account("short", "Short intervals", "They are.")
        >>> account.find(NewCase(), "intervals are short.", [True])
        >>> account.record({}, end=" Measured.")["finding"]
        'Held: By case, intervals are short. Measured.'
    """

    name: str
    title: str
    claim: str
    figures: list[Figure] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    held: list[bool] = field(default_factory=list)

    def find(self, unit: Unit, sentence: str, held: Iterable[bool]) -> None:
        """Add what was found in splits by a unit, and which parts of the claim held there."""
        self.findings.append(f"By {unit.counted}, {sentence}")
        self.held += held

    def record(
        self, settings: Mapping[str, Any], *, scope: str = "", end: str = ""
    ) -> dict[str, Any]:
        """Return the record ``taskuq.experiment/1``.

        Arguments:
            settings: What decided the numbers.
            scope: What the verdict is restricted to.
            end: What else is to be said.
        """
        finding = f"{verdict(self.held)}{scope}: {' '.join(self.findings)}{end}"
        return experiment_record(
            self.name, self.title, self.claim, finding, settings, self.figures, self.tables
        )


def verdict(parts: Iterable[bool]) -> str:
    """Return whether a claim held, from whether its parts did.

    Example:
        >>> verdict([True, True]), verdict([True, False]), verdict([False]), verdict([])
        ('Held', 'Held in part', 'Did not hold', 'Could not be judged')
    """
    found = list(parts)
    if not found:
        return "Could not be judged"
    if all(found):
        return "Held"
    return "Held in part" if any(found) else "Did not hold"


def listing(words: Iterable[str]) -> str:
    """Return words as a list in a sentence.

    Example:
        >>> listing(["LWR", "CQR", "MLWR"]), listing(["LWR"]), listing([])
        ('LWR, CQR and MLWR', 'LWR', 'none')
    """
    found = list(words)
    if len(found) < 2:
        return found[0] if found else "none"
    return f"{', '.join(found[:-1])} and {found[-1]}"


def title(score: str) -> str:
    """Return what a sentence calls a score: short names are acronyms, in capitals.

    Example:
        >>> title("lwr"), title("learned")
        ('LWR', 'learned')
    """
    return score.upper() if len(score) <= 4 else score


def falls(values: Iterable[float]) -> bool:
    """Return whether every number is below the one before it.

    Example:
        >>> falls([0.3, 0.2, 0.1]), falls([0.3, 0.3])
        (True, False)
    """
    found = list(values)
    return all(b < a for a, b in pairwise(found))


def shortage(found: Sequence[Evaluation]) -> str | None:
    """Return why nothing can be compared, where no score has a finite interval; None elsewhere."""
    if any(r.infinite < 1 for r in found):
        return None
    first = found[0]
    reason = f"an error rate of {first.alpha:g} cannot be promised from {first.n_calibration} "
    reason += f"{first.unit}s"
    if all(r.n_calibration - r.n_tuning >= cases_needed(r.alpha) for r in found):
        reason = f"too many scores are infinite for an error rate of {first.alpha:g}"
    return f"{reason}, so every interval is everything and nothing is compared."
