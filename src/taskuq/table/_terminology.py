"""Names for cases, groups, rounds and measurements in reports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from taskuq.errors import InputError

_CASES_AND_GROUPS = re.compile(r"\b(?:case|group)s?\b")
LONGEST = 60  # for menus and table heads


@dataclass(frozen=True)
class Terminology:
    """Names by which reports call cases, groups, rounds and images.

    Args:
        case: Name of one image, e.g. 'slice', 'digit', 'scene'.
        group: Name of a set of related cases, e.g. 'patient', 'writer', 'film'.
        estimate: Name of the preview of a measurement, e.g. 'zero-filled', 'blurred'.
        round: Name of one round of measurement, e.g. 'round', 'exposure'.
        measurement: Unit that early stopping saves, e.g. 'line of k-space', 'view', 'second'.
        reference: Adjective for the reference image, e.g. 'fully measured', 'sharp'.

    Example:
        >>> terminology = Terminology(case="digit", group="writer")
        >>> terminology.case, terminology.many("case"), terminology.title("group")
        ('digit', 'digits', 'Writer')
        >>> Terminology(case="body").many("case"), MRI.many("measurement")
        ('bodies', 'lines of k-space')
    """

    case: str = "case"
    group: str = "group"
    estimate: str = "estimate"
    round: str = "round"
    measurement: str = "measurement"
    reference: str = "truth"

    def __post_init__(self) -> None:
        for field in fields(self):
            term = getattr(self, field.name)
            if not isinstance(term, str) or not term.strip() or len(term) > LONGEST:
                message = f"terminology.{field.name} must be a short text, got {term!r:.80}"
                raise InputError(message, code="value.invalid")

    def many(self, name: str) -> str:
        """Return the plural of a term, given the name of its field."""
        first, of, rest = str(getattr(self, name)).partition(" of ")
        return _plural(first) + of + rest

    def title(self, name: str) -> str:
        """Return a term with an initial capital, given the name of its field."""
        term = str(getattr(self, name))
        return term[:1].upper() + term[1:]

    def apply(self, sentence: str) -> str:
        """Replace the words case and group in a sentence by the terms for them.

        Example:
            >>> MRI.apply("a random case of a new group, one of 270 groups (2160 cases)")
            'a random slice of a new patient, one of 270 patients (2160 slices)'
        """
        terms = {name: str(getattr(self, name)) for name in ("case", "group")}
        terms |= {f"{name}s": self.many(name) for name in ("case", "group")}
        return _CASES_AND_GROUPS.sub(lambda match: terms[match[0]], sentence)

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


def count_noun(count: int, noun: str) -> str:
    return f"{count} {noun if count == 1 else _plural(noun)}"


def _plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2:-1] not in set("aeiou"):
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "z", "ch", "sh")) else "s")


MRI = Terminology(
    case="slice", group="patient", estimate="zero-filled", measurement="line of k-space",
    reference="fully measured",
)  # fmt: skip


def as_terminology(given: Any) -> Terminology:
    if given is None or isinstance(given, Terminology):
        return given or Terminology()
    if not isinstance(given, Mapping):
        raise InputError(f"terminology must be a mapping, got {given!r:.80}", code="config.type")
    names = [field.name for field in fields(Terminology)]
    unknown = [name for name in given if name not in names]
    if unknown:
        message = f"unknown term {unknown[0]!r:.40}; the terms are {', '.join(names)}"
        raise InputError(message, code="config.key")
    return Terminology(**given)


def round_label(acceleration: float, name: str | None = None) -> str:
    if name is not None:
        return name
    if acceleration != acceleration:
        return "the only round"
    return "everything measured" if acceleration == 1 else f"R = {acceleration:g}"
