"""Scores by name, and the way a score travels in a JSON file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from taskuq.calibration.family import SIDES, Side
from taskuq.calibration.learned import Learned, LocationScale
from taskuq.calibration.link import Link
from taskuq.calibration.mlwr import MLWR
from taskuq.calibration.moderation import SpreadPrior
from taskuq.calibration.rank import exact_level
from taskuq.calibration.regression import RobustRidge
from taskuq.calibration.scores import AR, CQR, LWR, FamilyScore
from taskuq.errors import InputError
from taskuq.protocols import Score

# More than anybody draws; a file that says more is damaged.
MOST_SAMPLES = 1_000_000
SCORE_NAMES = ("ar", "lwr", "cqr", "mlwr", "learned")


def resolve_score(score: str | Score, alpha: float, side: Side = "two") -> Score:
    """Turn a score's name into the score; an object with ``score`` and ``interval`` is one already.

    Arguments:
        score: One of ar, lwr, cqr, mlwr, learned, or a user's own object.
        alpha: The error rate, which CQR's sample quantiles depend on.
        side: ``two``, ``upper`` or ``lower``, for scores by name.

    Example:
        >>> resolve_score("cqr", alpha=0.1)
        CQR(alpha=0.1, side='two')
    """
    if side not in SIDES:
        raise InputError(f"side must be 'two', 'upper' or 'lower', got {side!r}")
    if not isinstance(score, str):
        if callable(getattr(score, "score", None)) and callable(getattr(score, "interval", None)):
            return score
        raise InputError(
            f"a score is a name or an object with methods score and interval, got {score!r}"
        )
    match score.lower():
        case "ar":
            return AR(side)
        case "lwr":
            return LWR(side)
        case "cqr":
            return CQR(float(exact_level(alpha)), side)
        case "mlwr":
            return MLWR(side)
        case "learned":
            return Learned(side)
    raise InputError(f"unknown score {score!r}; choose one of {', '.join(SCORE_NAMES)}")


def score_name(score: Score) -> str:
    """Return what to call a score in tables: its name, or its class.

    Example:
        >>> score_name(AR())
        'ar'
    """
    return str(getattr(score, "name", type(score).__name__))


def score_to_dict(score: Score) -> dict[str, Any]:
    """Describe a score so that JSON can hold it; a user's own is stored by its class name only."""
    if isinstance(score, AR | LWR | CQR | MLWR | Learned):
        return {"name": score.name, **asdict(score)}
    return {"name": "custom", "class": type(score).__name__}


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
    match name:
        case "ar":
            return AR(**fields)
        case "lwr":
            return LWR(**fields)
        case "cqr":
            return CQR(**fields)
        case "mlwr":
            fields["link"] = Link(**fields["link"])
            fields["prior"] = _prior(fields["prior"])
            return MLWR(**fields)
        case "learned":
            fields["link"] = Link(**fields["link"])
            fit = fields["fit"]
            if fit is not None:
                fields["fit"] = LocationScale(
                    prior=_prior(fit["prior"]),
                    location=_ridge(fit["location"]),
                    scale=_ridge(fit["scale"]),
                    typical_spreads=_numbers(fit["typical_spreads"]),
                    typical_moves=_numbers(fit["typical_moves"]),
                )
            return Learned(**fields)
        case "custom":
            if custom is None or type(custom).__name__ != record.get("class"):
                raise InputError(
                    f"the file was made with your own score {record.get('class')!r}; pass an "
                    "object of that class as score="
                )
            return custom
    raise InputError(f"unknown score {name!r} in the file; it may come from a newer version")


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
    if not isinstance(score, FamilyScore):
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


def _prior(record: Mapping[str, Any] | None) -> SpreadPrior | None:
    if record is None:
        return None
    return SpreadPrior(
        coefficients=_numbers(record["coefficients"]),  # type: ignore[arg-type]  # three, by use
        degrees=float(record["degrees"]),
        covariate_range=_numbers(record["covariate_range"]),  # type: ignore[arg-type]  # two
        typical=float(record["typical"]),
    )


def _ridge(record: Mapping[str, Any]) -> RobustRidge:
    vectors = {k: _numbers(v) for k, v in record.items() if k != "intercept"}
    return RobustRidge(intercept=float(record["intercept"]), **vectors)


def _numbers(values: Any) -> tuple[float, ...]:
    """Read a list of numbers; anything else in it raises, and the reader says so."""
    return tuple(float(value) for value in values)
