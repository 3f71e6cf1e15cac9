"""What rounds are: accelerations, or costs and what everything costs; and what they are called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from taskuq.checks import as_array
from taskuq.errors import InputError
from taskuq.interval import FloatArray


def as_rounds(
    accelerations: Any, costs: Any, full_cost: float | None, names: Any
) -> tuple[FloatArray, tuple[str, ...] | None]:
    """Take rounds by their accelerations, or by what they cost; return those and their names.

    An acceleration is the full cost over the cost of a round.

    Arguments:
        accelerations: One for each round, decreasing; or some by the rounds' names.
        costs: What each round costs in all, rising: views, lines, seconds; or some by name.
        full_cost: What it costs to measure everything.
        names: What rounds are called.

    Example:
        >>> rates, names = as_rounds(None, {"12 views": 12, "48 views": 48}, 192, None)
        >>> rates, names
        (array([16.,  4.]), ('12 views', '48 views'))
    """
    given = accelerations if costs is None else costs
    if given is None or (accelerations is not None and costs is not None):
        raise InputError("rounds are given by accelerations, or by costs and full_cost; give one")
    if isinstance(given, Mapping):
        if names is not None:
            raise InputError("rounds have names already; leave round_names out")
        names, given = list(given), list(given.values())
    values = np.atleast_1d(as_array(given, "accelerations" if costs is None else "costs"))
    if costs is not None:
        values = full_cost_over(values, full_cost)
    return as_accelerations(values, len(values)), as_round_names(names, len(values))


def called_rounds(accelerations: FloatArray, names: tuple[str, ...] | None) -> dict[str, str]:
    """Return the names of rounds by their accelerations, as a record holds them.

    Example:
        >>> called_rounds(np.array([16.0, 4.0]), ("12 views", "48 views"))
        {'16': '12 views', '4': '48 views'}
    """
    return {f"{R:g}": name for R, name in zip(accelerations, names or (), strict=False)}


def full_cost_over(costs: np.ndarray, full_cost: float | None) -> FloatArray:
    """Return accelerations: the full cost over the cost of each round."""
    if full_cost is None:
        raise InputError("costs need full_cost, what it costs to measure everything; give it")
    is_rising = costs.dtype.kind in "fiu" and (costs > 0).all() and (np.diff(costs) > 0).all()
    if not is_rising or not costs[-1] < full_cost < np.inf:
        raise InputError(
            f"costs must be positive, rise and stay below full_cost, got "
            f"{', '.join(map(str, costs.tolist()))[:80]} and {full_cost}"
        )
    return np.asarray(full_cost / costs.astype(float))


def as_accelerations(values: Any, rounds: int) -> FloatArray:
    """Take one acceleration for each round, decreasing and above 1.

    Arguments:
        values: What was handed in; None for one round of unknown acceleration.
        rounds: How many there must be.

    Example:
        >>> as_accelerations((4, 8), rounds=2)
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: accelerations must decrease and stay above 1 ...
    """
    if values is None:
        if rounds > 1:
            raise InputError(
                f"{rounds} rounds need their accelerations; give accelerations=, one for each, "
                "fewest measurements first"
            )
        # One round of unknown acceleration: nothing compares it with another.
        return np.full(1, np.nan)
    numbers = np.atleast_1d(as_array(values, "accelerations"))
    if numbers.dtype.kind not in "fiu":
        raise InputError(f"accelerations must be numbers, got an array of {numbers.dtype}")
    given = numbers.astype(float)
    if given.shape != (rounds,):
        raise InputError(f"{rounds} rounds need as many accelerations, got {given.size}")
    if rounds == 1 and np.isnan(given).all():
        return given
    if not (np.isfinite(given).all() and (given > 1).all() and (np.diff(given) < 0).all()):
        raise InputError(
            f"accelerations must decrease and stay above 1 (everything measured is implied), got "
            f"{', '.join(f'{R:g}' for R in given)}"
        )
    return given


def as_round_names(values: Any, rounds: int) -> tuple[str, ...] | None:
    """Take a different name for each round, or None where they have none.

    Arguments:
        values: What was handed in.
        rounds: How many there must be.
    """
    if values is None:
        return None
    names = as_texts(values, "round_names")
    if len(names) != rounds or len(set(names)) != rounds or not all(map(str.strip, names)):
        raise InputError(f"{rounds} rounds need as many different names, got {names}")
    return names


def as_texts(values: Any, name: str) -> tuple[str, ...]:
    """Take a list of names."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"{name} must be a list of names, got {values!r:.80}")
    return tuple(map(str, values))
