"""The list of scores: by name, and in JSON files."""

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
from taskuq.errors import InputError
from taskuq.protocols import FittedScore, NamedScore, NestedScore, Score, TunableScore

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
# More than anybody draws; a file that says more is damaged.
MOST_SAMPLES = 1_000_000


def resolve_score(score: str | Score, alpha: float, side: Side = "two") -> Score:
    """Turn a score's name into the score; an object with ``score`` and ``interval`` is one already.

    A score by name is made from its class in :data:`SCORES`, which is given the error rate and
    the side if it has arguments called ``alpha`` and ``side``, and nothing else.

    Arguments:
        score: A name, e.g. ar, lwr, cqr, mlwr, learned, or a user's own object.
        alpha: The error rate, which CQR's sample quantiles depend on.
        side: ``two``, ``upper`` or ``lower``, for scores by name.

    Example:
        >>> resolve_score("cqr", alpha=0.1)
        CQR(alpha=0.1, side='two')
    """
    if side not in SIDES:
        raise InputError(f"side must be 'two', 'upper' or 'lower', got {side!r}")
    made = _made(score, alpha, side) if isinstance(score, str) else score
    if isinstance(made, type) or not isinstance(made, Score):
        raise InputError(
            f"a score is a name or an object with methods score and interval, got {score!r}"
        )
    if isinstance(made, TunableScore) and not isinstance(made, FittedScore):
        raise InputError(
            f"the score {score_name(made)!r} has a method tuned; to learn it needs needs_tuning, "
            "tuning_share and tuning_needs_targets too"
        )
    return made


def _made(name: str, alpha: float, side: Side) -> Score:
    known = next((n for n in (name, name.lower()) if n in SCORES), name)
    kind = SCORES[known]
    takes = _arguments(kind)
    if side != "two" and "side" not in takes:
        raise InputError(f"the score {name!r} knows no one-sided bounds; use side='two'")
    given: dict[str, Any] = {"side": side} if "side" in takes else {}
    if "alpha" in takes:
        given["alpha"] = float(exact_alpha(alpha))
    return kind(**given)


@cache
def _arguments(kind: type[Score]) -> frozenset[str]:
    """What the class of a score can be given."""
    return frozenset(inspect.signature(kind).parameters)


def score_name(score: Score) -> str:
    """Return what to call a score in tables: its name in the list, its own, or its class.

    Example:
        >>> from taskuq.conformal.scores._paper import AR
        >>> score_name(AR())
        'ar'
    """
    return SCORES.find(type(score)) or (
        score.name if isinstance(score, NamedScore) else type(score).__name__
    )


def score_to_dict(score: Score) -> dict[str, Any]:
    """Describe a score so that JSON can hold it.

    A score of the list is stored by its name and, if it is a dataclass, its fields. An object
    with any other state is stored by the name of its class only.
    """
    name = SCORES.find(type(score))
    fields = None if name is None else _fields(score)
    if fields is None:
        return {"name": "custom", "class": type(score).__name__}
    return {"name": name, **fields}


def _fields(score: Any) -> dict[str, Any] | None:
    """What there is to store of a score, or None where it keeps things we cannot write."""
    if is_dataclass(score):
        return asdict(score)  # type: ignore[arg-type]  # an object, not a class
    return None if not hasattr(score, "__dict__") or vars(score) else {}


def score_from_dict(record: Mapping[str, Any], custom: Score | None = None) -> Score:
    """Read a score back from its description.

    Arguments:
        record: What :func:`score_to_dict` wrote.
        custom: The object to use where the file names a user's own class.

    Example:
        >>> score_from_dict({"name": "lwr", "side": "upper"})
        LWR(side='upper')
    """
    fields = {key: value for key, value in record.items() if key != "name"}
    name = record.get("name")
    if name == "custom":
        if custom is None or type(custom).__name__ != record.get("class"):
            raise InputError(
                f"the file was made with your own score {record.get('class')!r}; pass an "
                "object of that class as score="
            )
        return custom
    if not isinstance(name, str) or name not in SCORES:
        raise InputError(
            f"unknown score {name!r} in the file; name the file that registers it in {VARIABLE}, "
            "or update taskuq"
        )
    kind = SCORES[name]
    return from_toml_table(kind, fields, "score") if is_dataclass(kind) else kind(**fields)


def require_usable(
    path: str | os.PathLike[str], score: Score, quantile: float, samples: int, rounds: int = 1
) -> None:
    """Refuse a score from a file whose parts do not fit each other, by trying it once.

    Arguments:
        path: The file, for the error.
        score: What it holds.
        quantile: The quantile it is used with.
        samples: The number of samples it expects.
        rounds: The number of rounds it reads.
    """
    if not isinstance(score, NestedScore):
        return
    try:
        if not (1 <= samples <= MOST_SAMPLES and 1 <= rounds <= MOST_SAMPLES):
            raise ValueError(f"{samples} samples in {rounds} rounds")
        nothing = np.zeros((rounds, 1, samples) if rounds > 1 else (1, samples))
        with np.errstate(all="ignore"):
            interval = score.family(nothing).interval(quantile)
        if np.isnan([interval.lower, interval.upper]).any():
            raise ValueError("its intervals are not numbers")
    except Exception as error:  # whatever numbers of the wrong kind lead to
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{path} holds a score whose parts do not fit ({reason:.80}); calibrate again"
        ) from None
