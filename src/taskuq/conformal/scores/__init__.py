"""Scores by name, and their storage as JSON."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from functools import cache
from typing import Any

import numpy as np

from taskuq._config import from_toml_table
from taskuq._registry import VARIABLE, Registry
from taskuq.conformal._family import SIDES, Side
from taskuq.conformal._quantiles import exact_alpha
from taskuq.errors import InputError, first_line
from taskuq.protocols import FittedScore, NestedScore, Score

SCORES: Registry[type[Score]] = Registry(
    "score",
    {
        "ar": "taskuq.conformal.scores._paper:AR",
        "lwr": "taskuq.conformal.scores._paper:LWR",
        "cqr": "taskuq.conformal.scores._paper:CQR",
        "mlwr": "taskuq.conformal.scores._mlwr:MLWR",
        "learned": "taskuq.conformal.scores._learned:LearnedScore",
    },
)
# Plausible numbers of samples and rounds; a file with more is damaged.
MOST_SAMPLES = 1_000_000


def resolve_score(score: str | Score, alpha: float, side: Side = "two") -> Score:
    """Return the score with the given name, or a given score object unchanged.

    The registered class is called with ``alpha`` and ``side`` if its constructor has these
    parameters, and with no other arguments.

    Example:
        >>> resolve_score("cqr", alpha=0.1)
        CQR(alpha=0.1, side='two')
    """
    if side not in SIDES:
        message = f"side must be 'two', 'upper' or 'lower', got {side!r}"
        raise InputError(message, code="choice.unknown")
    if isinstance(score, str):
        kind, parameters = _score_class(score)
        options: dict[str, Any] = {"side": side} if "side" in parameters else {}
        if side != "two" and not options:
            message = f"score {score!r} has no one-sided bounds, got side={side!r}; use side='two'"
            raise InputError(message, code="option.conflict")
        if "alpha" in parameters:
            options["alpha"] = float(exact_alpha(alpha))
        score = kind(**options)
    if isinstance(score, type) or not isinstance(score, Score):
        message = f"a score is a name or an object with methods score and interval, got {score!r}"
        raise InputError(message, code="component.invalid")
    if hasattr(score, "fit") and not isinstance(score, FittedScore):
        missing = "needs_tuning, tuning_fraction or tuning_needs_targets"
        message = f"the score {score_name(score)!r} has a method fit, but no {missing}"
        raise InputError(message, code="component.invalid")
    return score


@cache
def _score_class(name: str) -> tuple[type[Score], frozenset[str]]:
    kind = SCORES[next((n for n in (name, name.lower()) if n in SCORES), name)]
    return kind, frozenset(inspect.signature(kind).parameters)


def score_name(score: Score) -> str:
    """Return the name under which a score is registered, else its ``name`` or class name."""
    return SCORES.find(type(score)) or str(getattr(score, "name", type(score).__name__))


def score_to_dict(score: Any) -> dict[str, Any]:
    """Return the name and fields of a registered score, or the class name of any other score."""
    name, fields = SCORES.find(type(score)), None
    if is_dataclass(score):
        stored = getattr(score, "STORED", {})
        fields = {stored.get(key, key): value for key, value in asdict(score).items()}  # type: ignore[arg-type]  # an object, not a class
    elif hasattr(score, "__dict__") and not vars(score):
        fields = {}
    if name is None or fields is None:
        return {"name": "custom", "class": type(score).__name__}
    return {"name": name, **fields}


def score_from_dict(record: Mapping[str, Any], custom: Score | None = None) -> Score:
    """Return the score stored by :func:`score_to_dict`, or ``custom`` if it is not registered."""
    name = record.get("name")
    if name == "custom":
        if custom is None or type(custom).__name__ != record.get("class"):
            message = f"the file needs your own score {record.get('class')!r}; pass it as score="
            raise InputError(message, code="option.missing")
        return custom
    if not isinstance(name, str) or name not in SCORES:
        message = f"unknown score {name!r} in the file; name the module of the score in {VARIABLE}"
        raise InputError(message, code="choice.unknown")
    kind = SCORES[name]
    names = {stored: field for field, stored in getattr(kind, "STORED", {}).items()}
    fields = {names.get(key, key): value for key, value in record.items() if key != "name"}
    return from_toml_table(kind, fields, "score") if is_dataclass(kind) else kind(**fields)


def require_usable(
    path: str | os.PathLike[str], score: Score, quantile: float, samples: int, rounds: int = 1
) -> None:
    """Raise InputError if a stored score gives no valid interval for a test input."""
    if not isinstance(score, NestedScore):
        return
    try:
        if not (1 <= samples <= MOST_SAMPLES and 1 <= rounds <= MOST_SAMPLES):
            raise ValueError(f"{samples} samples in {rounds} rounds")
        zeros = np.zeros((rounds, 1, samples) if rounds > 1 else (1, samples))
        with np.errstate(all="ignore"):
            interval = score.family(zeros).interval(quantile)
        if np.isnan([interval.lower, interval.upper]).any():
            raise ValueError("its intervals are not numbers")
    except Exception as error:  # any error that numbers of the wrong kind lead to
        message = f"{path}: the score's fields do not match ({first_line(error):.80})"
        raise InputError(f"{message}; calibrate again", code="file.damaged") from None
