"""What a scan must not be stopped on: pieces and outputs that cannot be what they should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from taskuq.checks import as_array
from taskuq.decide.policy import Policy
from taskuq.errors import InputError
from taskuq.interval import FloatArray


def piece_fault(
    piece: Any, earlier: Sequence[Any], *, round: int, scan_id: str | None
) -> str | None:
    """Say what is wrong with what a round measured, or nothing.

    A piece that is no array and no dictionary of arrays cannot be looked into. A dictionary may
    name the ``round`` and the ``scan_id`` it belongs to, and a ``fault`` that whoever measured has
    seen; its largest arrays are what was measured.

    Arguments:
        piece: What was measured.
        earlier: What the rounds before measured.
        round: The round that was asked for.
        scan_id: The scan, where it has a name.

    Example:
        >>> piece_fault(np.zeros(3), [], round=0, scan_id=None)
        'what round 0 measured is zero everywhere'
        >>> piece_fault({"round": 1, "lines": np.ones(3)}, [], round=0, scan_id=None)
        'the piece of round 0 says that it is of round 1'
    """
    if piece is None:
        return f"round {round} measured nothing"
    if isinstance(piece, Mapping):
        if "round" in piece and not _is(piece["round"], round):
            return f"the piece of round {round} says that it is of round {_said(piece['round'])}"
        named = "scan_id" in piece and scan_id is not None
        if named and not _is(piece["scan_id"], scan_id):
            return f"the piece of round {round} says that it is of scan {_said(piece['scan_id'])}"
        if said := str(np.asarray(piece.get("fault", ""))):
            return f"round {round}: {said:.200}"
    arrays = arrays_of(piece)
    if arrays is None:
        return None
    measured = _largest(arrays)
    if not measured:
        return f"round {round} measured nothing"
    if not all(np.isfinite(a).all() for a in arrays.values() if a.dtype.kind in "fc"):
        return f"round {round} measured numbers that are not finite"
    if not all(a.any() for a in measured.values()):
        return f"what round {round} measured is zero everywhere"
    for k, other in enumerate(earlier):
        before = arrays_of(other) or {}
        if any(n in before and np.array_equal(a, before[n]) for n, a in measured.items()):
            return f"round {round} measured what round {k} had measured, number by number"
    return None


def output_fault(policy: Policy, outputs: FloatArray, *, round: int) -> str | None:
    """Say what is wrong with the outputs of a round before the last, or nothing.

    Arguments:
        policy: The policy, which knows how many outputs there are, and their range.
        outputs: (sample,) or (sample, task).
        round: The round.
    """
    if len(outputs) != policy.samples:
        return (
            f"the recovery and task gave {len(outputs)} outputs in round {round}, but "
            f"{policy.samples} samples were asked for"
        )
    if not np.isfinite(outputs).all():
        return f"the outputs of round {round} are not all finite"
    outside = _outside(policy, outputs)
    return outside and f"outputs of round {round} lie outside the {outside}"


def require_value(policy: Policy, outputs: FloatArray) -> None:
    """Refuse what is not the one value of a fully measured scan.

    Arguments:
        policy: The policy, which knows the range of its task.
        outputs: What recovery and task gave, (sample,) or (sample, task).
    """
    if len(outputs) != 1:
        raise InputError(
            f"recovery and task gave {len(outputs)} values where everything is measured; the "
            "target is one value"
        )
    outside = _outside(policy, outputs)
    if not np.isfinite(outputs).all() or outside:
        raise InputError(
            f"the value of the fully measured scan is {outputs[0]}, outside the "
            f"{outside or 'finite numbers'}; look at the recovery and the task"
        )


def _outside(policy: Policy, outputs: FloatArray) -> str | None:
    """Name the first task's range that values (value,) or (value, task) leave, if any."""
    values = outputs.reshape(len(outputs), -1)
    for t, range_ in enumerate(policy.task_ranges):
        low, high = range_ or (-np.inf, np.inf)
        if values[:, t].min() < low or values[:, t].max() > high:
            whose = "task's" if len(policy.task_names) == 1 else f"{policy.task_names[t]}'s"
            return f"{whose} range [{low:g}, {high:g}]"
    return None


def arrays_of(piece: Any) -> dict[str, np.ndarray] | None:
    """Return a piece as arrays by name, or None where it is something else.

    Example:
        >>> sorted(arrays_of({"lines": [1.0, 2.0], "columns": [3]}))
        ['of columns', 'of lines']
    """
    # The leading mark keeps names apart from the arguments of np.savez, and from a lone array.
    parts = {f"of {name}": v for name, v in piece.items()} if isinstance(piece, Mapping) else {
        "alone": piece
    }  # fmt: skip
    try:
        arrays = {name: as_array(value, "measurement") for name, value in parts.items()}
    except InputError:
        return None
    return arrays if all(a.dtype.kind in "biufcUS" for a in arrays.values()) else None


def _largest(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What was measured: the largest arrays of numbers; the others say where, when and how."""
    numbers = {n: a for n, a in arrays.items() if a.dtype.kind in "biufc" and a.size}
    most = max((a.size for a in numbers.values()), default=0)
    return {name: a for name, a in numbers.items() if a.size == most}


def _is(said: Any, meant: Any) -> bool:
    value = np.asarray(said)
    return value.size == 1 and str(value.ravel()[0]) == str(meant)


def _said(value: Any) -> str:
    return str(np.asarray(value).ravel()[:1].tolist() or [""])[1:-1][:60]
