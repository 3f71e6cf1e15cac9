"""Display labels of cases, groups and rounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from taskuq.errors import InputError

_CASES_AND_GROUPS = re.compile(r"\b(?:case|group)s?\b")
# A word stands in menus and table heads; more than this is a sentence.
LONGEST = 60


@dataclass(frozen=True)
class Terminology:
    """Display names of case, group, round and measurement.

    Arguments:
        case: One image: 'slice', 'digit', 'scene'.
        group: What cases come in: 'patient', 'writer', 'film'.
        estimate: The picture of the measurement alone: 'zero-filled', 'back-projection', 'blurred'.
        round: One measurement configuration: 'round', 'exposure'.
        measurement: What is saved by stopping early: 'line of k-space', 'view', 'second'.
        truth: The picture that everything is measured for: 'fully measured', 'sharp'.

    Example:
        >>> words = Terminology(case="digit", group="writer")
        >>> words.case, words.many("case"), words.title("group")
        ('digit', 'digits', 'Writer')
        >>> Terminology(case="body").many("case"), MRI.many("measurement")
        ('bodies', 'lines of k-space')
    """

    case: str = "case"
    group: str = "group"
    estimate: str = "estimate"
    round: str = "round"
    measurement: str = "measurement"
    truth: str = "truth"

    def __post_init__(self) -> None:
        for field in fields(self):
            word = getattr(self, field.name)
            if not isinstance(word, str) or not word.strip() or len(word) > LONGEST:
                raise InputError(
                    f"the word for {field.name} must be a text of at most {LONGEST} letters, got "
                    f"{word!r:.80}; give one such as {field.default!r}",
                    code="value.invalid",
                )

    def many(self, name: str) -> str:
        """Return the plural of a word."""
        first, of, rest = str(getattr(self, name)).partition(" of ")
        return _plural(first) + of + rest

    def title(self, name: str) -> str:
        """Return a word with a capital, as headings and menus have it."""
        word = str(getattr(self, name))
        return word[:1].upper() + word[1:]

    def said(self, sentence: str) -> str:
        """Return a sentence about cases and groups in these words.

        Example:
            >>> MRI.said("a random case of a new group, one of 270 groups (2160 cases)")
            'a random slice of a new patient, one of 270 patients (2160 slices)'
        """
        called = {name: str(getattr(self, name)) for name in ("case", "group")}
        called |= {f"{name}s": self.many(name) for name in ("case", "group")}
        return _CASES_AND_GROUPS.sub(lambda found: called[found[0]], sentence)

    def to_dict(self) -> dict[str, str]:
        """Return the words by name, as JSON and TOML hold them."""
        return asdict(self)


def count_noun(count: int, word: str) -> str:
    """Return a count with its noun ("3 cases")."""
    return f"{count} {word if count == 1 else _plural(word)}"


def _plural(word: str) -> str:
    """Return the plural of an English noun, good enough for what cases are called."""
    if word.endswith("y") and word[-2:-1] not in set("aeiou"):
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "z", "ch", "sh")) else "s")


# Where k-space was measured, and nowhere else.
MRI = Terminology(
    case="slice",
    group="patient",
    estimate="zero-filled",
    measurement="line of k-space",
    truth="fully measured",
)


def as_terminology(given: Any) -> Terminology:
    """Validate display names."""
    if given is None or isinstance(given, Terminology):
        return given or Terminology()
    if not isinstance(given, Mapping):
        raise InputError(
            f"words must be names with words, got {type(given).__name__}", code="config.type"
        )
    known = [field.name for field in fields(Terminology)]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise InputError(
            f"there is no word for {unknown[0]!r:.40}; give words for {', '.join(known)}",
            code="config.key",
        )
    return Terminology(**given)


def round_label(acceleration: float, name: str | None = None) -> str:
    """Return what a round is called: its name where it has one, or else its acceleration."""
    if name is not None:
        return name
    if acceleration != acceleration:
        return "the only round"
    return "everything measured" if acceleration == 1 else f"R = {acceleration:g}"
