"""Findings in words: verdicts, lists and names, made from numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from taskuq.calibration.rank import cases_needed
from taskuq.calibration.units import Unit
from taskuq.evaluation.result import Evaluation
from taskuq.report.figures import Figure
from taskuq.report._records import (
    HELD,
    IN_PART,
    NOT_HELD,
    NOT_MEASURED,
    SUMMARY,
    experiment_record,
)


@dataclass
class Account:
    """What is shown and found of one claim, split by case and by group.

    Arguments:
        name: A short name for files and links.
        title: The heading.
        claim: What the paper says, or what we say.
        figures: Figures as data.
        tables: Tables as records hold them.
        compared: What was measured, by what it is and how cases were split.
        parts: Whether each part of the claim held, by what it says and how cases were split.
        reasons: Why nothing could be compared.
        rows_are: What the rows of the comparison are.

    Example:
        >>> from taskuq.calibration.units import NewCase
        >>> account = Account("short", "Short intervals", "They are.")
        >>> account.find(NewCase(), {"length": 0.2}, {"they are": True, "all are": False})
        >>> record = account.record({}, "the mean length is 0.2", "length 0.2")
        >>> record["finding"], record["tables"][0]["rows"]
        ('Held in part: the mean length is 0.2. Not so by case: all are.', [['length', 0.2]])

    Several numbers of one thing get columns of their own:

        >>> account = Account("fast", "Fast scans", "They are.", rows_are="R")
        >>> account.find(NewCase(), {"8": {"ours": 3.0, "theirs": 2.0}}, {"ours is faster": True})
        >>> account.record({}, "they are", "3")["tables"][0]["columns"]
        ['R', 'ours by case', 'theirs by case']
    """

    name: str
    title: str
    claim: str
    figures: list[Figure] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    compared: dict[str, dict[str, Any]] = field(default_factory=dict)
    parts: dict[str, dict[str, bool]] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    rows_are: str = "what"

    def find(self, unit: Unit, compared: Mapping[str, Any], parts: Mapping[str, bool]) -> None:
        """Add what was measured in splits by a unit, and which parts of the claim held there."""
        by = f"by {unit.counted}"
        self.parts[by] = dict(parts)
        for what, value in compared.items():
            self.compared.setdefault(what, {})[by] = value

    def lack(self, unit: Unit, reason: str) -> None:
        """Add why nothing can be compared in splits by a unit."""
        self.reasons.append(f"by {unit.counted}, {reason}")

    def record(
        self, settings: Mapping[str, Any], said: str | None, number: str | None, *, note: str = ""
    ) -> dict[str, Any]:
        """Return the record ``taskuq.experiment/1``.

        Arguments:
            settings: What decided the numbers.
            said: What was found, in a sentence without its end; None where nothing was.
            number: The one number to remember.
            note: What is to be said beside the comparison.
        """
        judged = verdict(held for of in self.parts.values() for held in of.values())
        return experiment_record(
            self.name, self.title, self.claim, finding(judged, said, self._but), settings,
            self.figures, [*self.tables, *self._summary(note)], verdict=judged, number=number,
        )  # fmt: skip

    @property
    def _but(self) -> str:
        """What did not hold, and what could not be judged."""
        wrong: dict[str, list[str]] = {}
        for by, of in self.parts.items():
            if not all(of.values()):
                parts = listing(part for part, held in of.items() if not held)
                wrong.setdefault(parts, []).append(by)
        said = [f"{' and '.join(by)}: {parts}" for parts, by in wrong.items()]
        return "; ".join([*(["not so " + "; ".join(said)] if said else []), *self.reasons])

    def _summary(self, note: str) -> list[dict[str, Any]]:
        if not self.compared:
            return []
        splits = list(self.parts)
        caption = " and ".join(f"splits {by}" for by in splits)
        caption = f"{caption[0].upper()}{caption[1:]}, side by side." if splits[1:] else ""
        first = next(iter(next(iter(self.compared.values())).values()))
        names = list(first) if isinstance(first, Mapping) else [""]
        return [
            {
                "name": SUMMARY,
                "caption": f"{caption} {note}".strip() or "What was measured.",
                "columns": [
                    self.rows_are,
                    *(f"{name} {by}".strip() for by in splits for name in names),
                ],
                "rows": [
                    [what, *(_of(of.get(by), name) for by in splits for name in names)]
                    for what, of in self.compared.items()
                ],
            }
        ]


def _of(value: Any, name: str) -> Any:
    """One of several numbers by its name, or the only one."""
    return value.get(name) if isinstance(value, Mapping) else value


def finding(judged: str, said: str | None, but: str = "") -> str:
    """Return what was found in at most two sentences, the verdict first.

    Arguments:
        judged: The verdict.
        said: What was found, without its end; None where nothing was.
        but: What did not hold or could not be judged, without its end.

    Example:
        >>> finding("held", "lengths fall"), finding("not measured", None, "there is one round")
        ('Held: lengths fall.', 'Not measured: there is one round.')
    """
    head = judged[:1].upper() + judged[1:]
    if said is None:
        return f"{head}: {but.rstrip('.')}."
    return f"{head}: {said}." + (f" {but[:1].upper()}{but[1:].rstrip('.')}." if but else "")


def verdict(parts: Iterable[bool]) -> str:
    """Return whether a claim held, from whether its parts did.

    Example:
        >>> verdict([True, True]), verdict([True, False]), verdict([False]), verdict([])
        ('held', 'held in part', 'not held', 'not measured')
    """
    found = list(parts)
    if not found:
        return NOT_MEASURED
    if all(found):
        return HELD
    return IN_PART if any(found) else NOT_HELD


def between(values: Iterable[float], digits: int = 2) -> str:
    """Return from where to where numbers go; those that are missing are left out.

    Example:
        >>> between([0.2, 0.31]), between([0.2, 0.2]), between([math.nan]), between([1, math.inf])
        ('0.20 to 0.31', '0.20', '–', '1.00 to ∞')
    """
    known = [v for v in values if not math.isnan(v)]
    if not known:
        return "–"
    low, high = (f"{v:.{digits}f}" if math.isfinite(v) else "∞" for v in (min(known), max(known)))
    return low if low == high else f"{low} to {high}"


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
