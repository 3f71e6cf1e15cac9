"""Findings in words: verdicts, lists and names, made from numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from taskuq.evaluation.result import Evaluation

BY = {"case": "by case", "group": "by group"}


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
    """Return what a sentence calls a score: the paper's acronyms in capitals.

    Example:
        >>> title("lwr"), title("learned")
        ('LWR', 'learned')
    """
    return score if score == "learned" else score.upper()


def falls(values: Iterable[float]) -> bool:
    """Return whether every number is below the one before it.

    Example:
        >>> falls([0.3, 0.2, 0.1]), falls([0.3, 0.3])
        (True, False)
    """
    found = list(values)
    return all(b < a for a, b in pairwise(found))


def shortage(found: Sequence[Evaluation]) -> str | None:
    """Return why nothing can be compared, where no score has a finite interval; None elsewhere.

    Arguments:
        found: Evaluations of the same cases and unit.
    """
    if any(r.infinite < 1 for r in found):
        return None
    first = found[0]
    return (
        f"an error rate of {first.alpha:g} cannot be promised from {first.n_calibration} "
        f"{first.unit}s, so every interval is everything and nothing is compared."
    )
