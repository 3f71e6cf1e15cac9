"""The acquisition loop: measure a round, recover, run the task, decide, and survive a power cut."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from taskuq.checks import as_array, as_numbers, no_gradients, require_part
from taskuq.decide.policy import Policy
from taskuq.errors import InputError
from taskuq.files import (
    complete,
    number_from_json,
    open_npz,
    plain,
    read_json,
    whole_file,
    write_json,
)  # fmt: skip
from taskuq.interval import FloatArray, Interval
from taskuq.protocols import CombiningScanner, Recover, Scanner, Task
from taskuq.seeds import case_seed

SCHEMA = "taskuq.acquisition/1"
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class RoundRecord:
    """What happened in one round.

    Arguments:
        round: The round, counted from 0.
        acceleration: Its acceleration.
        outputs: The task outputs (sample,) or (sample, task); one value when all is measured.
        stop: Whether the policy stopped here.
        lower: The lower end of the interval, one per task.
        upper: The upper end.
        reason: Why, in a sentence.
    """

    round: int
    acceleration: float
    outputs: FloatArray
    stop: bool
    lower: FloatArray
    upper: FloatArray
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return everything as values that JSON can hold."""
        ends = {end: np.atleast_1d(getattr(self, end)).tolist() for end in ("lower", "upper")}
        return dict(plain({**vars(self), "outputs": self.outputs.tolist(), **ends}))


@dataclass(frozen=True)
class Acquisition:
    """A scan, finished or under way.

    Arguments:
        rounds: What happened so far.
        pieces: What was measured in each round.
    """

    rounds: tuple[RoundRecord, ...] = ()
    pieces: tuple[Any, ...] = field(default=(), repr=False)

    @property
    def is_finished(self) -> bool:
        """Whether the policy has stopped the scan."""
        return bool(self.rounds) and self.rounds[-1].stop

    @property
    def acceleration(self) -> float:
        """The acceleration of the last round."""
        return self.rounds[-1].acceleration

    @property
    def interval(self) -> Interval:
        """The interval of the last round."""
        return Interval(self.rounds[-1].lower, self.rounds[-1].upper)

    @property
    def reason(self) -> str:
        """The reason of the last decision."""
        return self.rounds[-1].reason


def acquire(
    policy: Policy,
    scanner: Scanner,
    *,
    recover: Recover,
    task: Task,
    samples: int,
    seed: int = 0,
    case: str = "0",
    state: str | os.PathLike[str] | None = None,
    on_round: Callable[[RoundRecord], None] | None = None,
) -> Acquisition:
    """Scan round by round until the policy stops.

    Each round measures only what it adds, recovers posterior samples from everything measured so
    far, runs the task on them and asks the policy. When all rounds have passed, the rest is
    measured and the target is known. What a round draws depends on the seed, the name of the case
    and the acceleration alone, as in :class:`taskuq.Pipeline`: a scan of a case repeats its row of
    a table.

    With ``state`` every round is stored before the next one begins: the record as a small JSON
    file, and what was measured beside it. Calling again with the same file goes on after the last
    stored round. Arrays, or a dictionary of them, can be stored; tensors become arrays, from the
    first round on, so that the recovery is given the same before and after a power cut.

    Arguments:
        policy: When to stop.
        scanner: What measures. Where it can ``combine`` the pieces of all rounds so far, the
            recovery is given what comes of that, otherwise the list of pieces.
        recover: The recovery method, called with the measurement, ``samples`` and ``seed``.
        task: The task, called with recoveries.
        samples: The number of posterior samples, as many as the policy was calibrated with.
        seed: The seed of the recoveries.
        case: The name of the case. Without one it is ``"0"``, as a pipeline calls the first of
            images without names.
        state: Where to keep the state of the scan.
        on_round: Called after each round, e.g. to show progress.
    """
    measures = "cannot measure a round; give an object with a method measure"
    require_part(scanner, "scanner", Scanner, measures)
    require_part(recover, "recover", Recover)
    require_part(task, "task", Task)
    if samples != policy.samples:
        raise InputError(
            f"this policy was calibrated with {policy.samples} samples, got samples={samples}"
        )
    combine = scanner.combine if isinstance(scanner, CombiningScanner) else list
    path = None if state is None else Path(state)
    scan = Acquisition() if path is None or not path.exists() else load_acquisition(path, policy)
    all_stored = True
    while not scan.is_finished:
        k = len(scan.rounds)
        piece = scanner.measure(k)
        arrays = None if path is None else _as_arrays(piece)
        all_stored = all_stored and arrays is not None
        pieces = (*scan.pieces, piece if arrays is None else _from_arrays(arrays))
        is_last = k == len(policy.accelerations)
        R = 1.0 if is_last else float(policy.accelerations[k])
        with no_gradients():
            recoveries = recover(
                combine(list(pieces)),
                samples=1 if is_last else samples,
                seed=case_seed(seed, case, R),
            )
            outputs = as_numbers(task(recoveries), "task outputs", ndim=(1, 2))
        record = _decided(policy, outputs, scan.rounds)
        scan = Acquisition((*scan.rounds, record), pieces)
        if path is not None:
            _store(path, policy, scan, arrays, all_stored)
        if on_round is not None:
            on_round(record)
    return scan


def _decided(policy: Policy, outputs: FloatArray, earlier: tuple[RoundRecord, ...]) -> RoundRecord:
    """Ask the policy about the outputs of a round."""
    k = len(earlier)
    if k == len(policy.accelerations):
        decision = policy.decide(k, None, value=outputs[0])
    else:
        if len(outputs) != policy.samples:
            raise InputError(
                f"the recovery and task gave {len(outputs)} outputs in round {k}, but "
                f"{policy.samples} samples were asked for"
            )
        so_far = np.stack([*(record.outputs for record in earlier), outputs])
        decision = policy.decide(k, so_far)
    return RoundRecord(
        round=k,
        acceleration=decision.acceleration,
        outputs=outputs,
        stop=decision.stop,
        lower=decision.interval.lower,
        upper=decision.interval.upper,
        reason=decision.reason,
    )


def _store(
    path: Path, policy: Policy, scan: Acquisition, arrays: Arrays | None, all_stored: bool
) -> None:
    """Store what the last round measured, then the record that says it is there."""
    if arrays is not None:
        last = _piece_path(path, len(scan.rounds) - 1)
        with whole_file(last) as partial, partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
    write_json(
        path,
        {
            "schema": SCHEMA,
            "policy": _fingerprint(policy),
            "finished": scan.is_finished,
            "pieces_stored": all_stored,
            "rounds": [record.to_dict() for record in scan.rounds],
        },
    )


def load_acquisition(path: str | os.PathLike[str], policy: Policy) -> Acquisition:
    """Return a stored scan, to go on with it.

    Arguments:
        path: The state that :func:`acquire` wrote.
        policy: The policy it was made with; another one is refused.
    """
    source = Path(path)
    record = read_json(source, SCHEMA)
    with complete(path, "scan"):
        if record["policy"] != _fingerprint(policy):
            raise InputError(
                f"{path} is a scan under another policy; go on with that one or start a new scan"
            )
        rounds = tuple(
            RoundRecord(
                round=int(r["round"]),
                acceleration=np.nan if r["acceleration"] is None else float(r["acceleration"]),
                outputs=np.asarray(r["outputs"], dtype=float),
                stop=bool(r["stop"]),
                lower=_ends(r["lower"]),
                upper=_ends(r["upper"]),
                reason=str(r["reason"]),
            )
            for r in record["rounds"]
        )
        stored = bool(record["pieces_stored"])
    if [r.round for r in rounds] != list(range(len(rounds))):
        raise InputError(f"{path} has rounds out of order; it is damaged")
    if rounds and not rounds[-1].stop and not stored:
        raise InputError(
            f"{path} cannot be taken up: its measurements were not arrays and were not stored"
        )
    pieces = tuple(_read_piece(source, k) for k in range(len(rounds))) if stored else ()
    return Acquisition(rounds, pieces)


def _as_arrays(piece: Any) -> Arrays | None:
    """What can be stored without pickling: an array, or a dictionary of arrays."""
    # The leading mark keeps names apart from the arguments of np.savez, and from a lone array.
    parts = {f"of {name}": v for name, v in piece.items()} if isinstance(piece, dict) else {
        "alone": piece
    }  # fmt: skip
    try:
        arrays = {name: as_array(value, "measurement") for name, value in parts.items()}
    except InputError:
        return None
    return arrays if all(a.dtype.kind in "biufcUS" for a in arrays.values()) else None


def _from_arrays(arrays: Arrays) -> Any:
    if list(arrays) == ["alone"]:
        return arrays["alone"]
    return {name.removeprefix("of "): array for name, array in arrays.items()}


def _read_piece(path: Path, k: int) -> Any:
    try:
        with open_npz(_piece_path(path, k)) as archive:
            arrays = {name: archive[name] for name in archive}
    except InputError as error:
        raise InputError(
            f"the measurements of round {k} beside {path} cannot be read ({error}); start again"
        ) from None
    return _from_arrays(arrays)


def _piece_path(path: Path, k: int) -> Path:
    # The whole name: scans named patient.1 and patient.2 must not share their measurements.
    return path.with_name(f"{path.name}-round{k}.npz")


def _fingerprint(policy: Policy) -> str:
    text = json.dumps(policy.to_dict(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _ends(values: list[Any]) -> FloatArray:
    ends = np.array([number_from_json(v) for v in values])
    return ends if len(ends) > 1 else ends.reshape(())
