"""The state of a scan on disk: what was decided, and beside it what was measured."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from taskuq.checks import as_array
from taskuq.decide.policy import Policy
from taskuq.decide.scan import Acquisition, GroupAcquisition, RoundRecord
from taskuq.errors import InputError
from taskuq.files import complete, number_from_json, open_npz, read_json, whole_file, write_json
from taskuq.fingerprints import fingerprint
from taskuq.interval import FloatArray

SCHEMA = "taskuq.acquisition/1"
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class StateFile:
    """Where a scan is kept between its rounds.

    The record of a single case holds its ``rounds``; that of a group holds ``scans``, the rounds
    of each of its ``cases``. What a round measured is one file beside it.

    Arguments:
        path: The record.
        policy: The policy of the scan.
        cases: The names of its cases, in order.
        is_group: Whether they are the cases of a group.
    """

    path: Path
    policy: Policy
    cases: tuple[str, ...]
    is_group: bool

    def load(self) -> dict[str, Acquisition]:
        """Return the scan of each case as far as it was stored."""
        if not self.path.exists():
            return dict.fromkeys(self.cases, Acquisition())
        scans, is_group = _read(self.path, self.policy)
        if is_group != self.is_group or tuple(scans) != self.cases:
            raise InputError(
                f"{self.path} is a scan of {_listed(scans, is_group)}, got "
                f"{_listed(self.cases, self.is_group)}; go on with the former or start a new scan"
            )
        return scans

    def storable(
        self, going: Sequence[str], pieces: Sequence[Any]
    ) -> tuple[list[Any], Arrays | None]:
        """Return the pieces of a round as they will be read back, and as arrays to store.

        Arguments:
            going: The cases that were measured.
            pieces: What was measured of each; where one cannot be stored, nothing is.
        """
        found = [_as_arrays(piece) for piece in pieces]
        kept = [p if a is None else _from_arrays(a) for p, a in zip(pieces, found, strict=True)]
        marks = [_mark(self.cases.index(case), self.is_group) for case in going]
        arrays: Arrays = {}
        for mark, of_case in zip(marks, found, strict=True):
            if of_case is None:
                return kept, None
            arrays |= {mark + name: array for name, array in of_case.items()}
        return kept, arrays

    def store(self, scans: Mapping[str, Acquisition], arrays: Arrays | None) -> None:
        """Store what the last round measured, then the record that says it is there.

        Arguments:
            scans: The scan of each case.
            arrays: What the last round measured; None where not all of the scan can be stored.
        """
        if arrays is not None:
            last = max(len(scan.rounds) for scan in scans.values()) - 1
            with whole_file(_pieces_path(self.path, last)) as partial, partial.open("wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
        each = [[record.to_dict() for record in scan.rounds] for scan in scans.values()]
        write_json(
            self.path,
            {
                "schema": SCHEMA,
                "policy": fingerprint(self.policy.to_dict()),
                "finished": all(scan.is_finished for scan in scans.values()),
                "pieces_stored": arrays is not None,
                "cases": list(scans),
                **({"scans": each} if self.is_group else {"rounds": each[0]}),
            },
        )


def load_acquisition(
    path: str | os.PathLike[str], policy: Policy
) -> Acquisition | GroupAcquisition:
    """Return a stored scan of a case, or of a group, to look at it.

    Arguments:
        path: The state that :func:`acquire` wrote.
        policy: The policy it was made with; another one is refused.
    """
    scans, is_group = _read(Path(path), policy)
    return GroupAcquisition(scans) if is_group else next(iter(scans.values()))


def _read(path: Path, policy: Policy) -> tuple[dict[str, Acquisition], bool]:
    """Read the scan of each case, and whether they are those of a group."""
    record = read_json(path, SCHEMA)
    with complete(path, "scan"):
        if record["policy"] != fingerprint(policy.to_dict()):
            raise InputError(
                f"{path} is a scan under another policy; go on with that one or start a new scan"
            )
        is_group = "scans" in record
        scans = record["scans"] if is_group else [record["rounds"]]
        rounds = {
            str(name): tuple(_round(r, str(name)) for r in of_case)
            for name, of_case in zip(record["cases"], scans, strict=True)
        }
        stored = bool(record["pieces_stored"])
    longest = max(map(len, rounds.values()), default=0)
    going = [r for r in rounds.values() if not Acquisition(r).is_finished]
    in_order = all([r.round for r in each] == [*range(len(each))] for each in rounds.values())
    # Whole groups are stopped at once, so that some of their cases can never be ahead.
    is_torn = policy.whole_group and 0 < len(going) < len(rounds)
    if not in_order or is_torn or any(len(each) < longest for each in going):
        raise InputError(f"{path} has rounds out of order; it is damaged")
    if going and longest and not stored:
        raise InputError(
            f"{path} cannot be taken up: its measurements were not arrays and were not stored"
        )
    pieces = _read_pieces(path, rounds, is_group) if stored else dict.fromkeys(rounds, ())
    return {name: Acquisition(rounds[name], pieces[name]) for name in rounds}, is_group


def _round(record: Mapping[str, Any], case: str) -> RoundRecord:
    R = record["acceleration"]
    return RoundRecord(
        round=int(record["round"]),
        acceleration=np.nan if R is None else float(R),
        outputs=np.asarray(record["outputs"], dtype=float),
        stop=bool(record["stop"]),
        lower=_ends(record["lower"]),
        upper=_ends(record["upper"]),
        reason=str(record["reason"]),
        case=case,
    )


def _read_pieces(
    path: Path, rounds: Mapping[str, tuple[RoundRecord, ...]], is_group: bool
) -> dict[str, tuple[Any, ...]]:
    """Read what was measured of each case in each of its rounds."""
    pieces: dict[str, list[Any]] = {name: [] for name in rounds}
    for k in range(max(map(len, rounds.values()), default=0)):
        try:
            with open_npz(_pieces_path(path, k)) as archive:
                arrays = {name: archive[name] for name in archive}
            for i, (name, of_case) in enumerate(rounds.items()):
                if k < len(of_case):
                    pieces[name].append(_from_arrays(_marked(arrays, _mark(i, is_group))))
        except InputError as error:
            raise InputError(
                f"the measurements of round {k} beside {path} cannot be read ({error}); start again"
            ) from None
    return {name: tuple(of_case) for name, of_case in pieces.items()}


def _marked(arrays: Arrays, mark: str) -> Arrays:
    found = {n.removeprefix(mark): array for n, array in arrays.items() if n.startswith(mark)}
    if not found:
        raise InputError("a case is missing")
    return found


def _mark(position: int, is_group: bool) -> str:
    """What the names of a case's arrays begin with, in the file of a round."""
    return f"case {position} " if is_group else ""


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


def _pieces_path(path: Path, k: int) -> Path:
    # The whole name: scans named patient.1 and patient.2 must not share their measurements.
    return path.with_name(f"{path.name}-round{k}.npz")


def _ends(values: list[Any]) -> FloatArray:
    ends = np.array([number_from_json(v) for v in values])
    return ends if len(ends) > 1 else ends.reshape(())


def _listed(cases: Iterable[str], is_group: bool) -> str:
    names = list(cases)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    who = "a group with the cases" if is_group else "the one case"
    return f"{who} {', '.join(names[:3])}{more}"
