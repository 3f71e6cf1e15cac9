"""The state of a scan on disk: what was decided, and beside it what was measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from taskuq.decide.aside import beside
from taskuq.decide.faults import arrays_of
from taskuq.decide.policy import Policy
from taskuq.decide.scan import Acquisition, GroupAcquisition, RoundRecord
from taskuq.decide.terms import UNTOLD
from taskuq.disk import sync
from taskuq.errors import InputError
from taskuq.files import complete, json_text, number_from_json, open_npz, read_json, whole_file
from taskuq.interval import FloatArray

SCHEMA = "taskuq.acquisition/1"
Arrays = dict[str, np.ndarray]
# What the measurements of a round say about themselves.
SCAN, ROUND = "taskuq scan_id", "taskuq round"


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
        scan_id: What the scan is called.
        seed: The seed of its recoveries.
        rule: What the rule that chooses its lines calls itself; None without one.
        patient: Whose scan it is, where that is known.
    """

    path: Path
    policy: Policy
    cases: tuple[str, ...]
    is_group: bool
    scan_id: str
    seed: int
    rule: str | None = None
    patient: str | None = None

    def load(self) -> dict[str, Acquisition]:
        """Return the scan of each case as far as it was stored."""
        if not self.path.exists():
            return dict.fromkeys(self.cases, Acquisition())
        record = _record(self.path, self.policy)
        for name, mine in (("scan_id", self.scan_id), ("seed", self.seed), ("rule", self.rule)):
            if record.get(name) != mine:
                raise InputError(
                    f"{self.path} is of {name} {record.get(name)!r}, got {mine!r}; go on with the "
                    "former, or give this scan a state of its own"
                )
        scans, is_group = _read(self.path, self.policy, record)
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
        found = [arrays_of(piece) for piece in pieces]
        kept = [p if a is None else _from_arrays(a) for p, a in zip(pieces, found, strict=True)]
        marks = [_mark(self.cases.index(case), self.is_group) for case in going]
        arrays: Arrays = {}
        for mark, of_case in zip(marks, found, strict=True):
            if of_case is None:
                return kept, None
            arrays |= {mark + name: array for name, array in of_case.items()}
        return kept, arrays

    def keep_measured(self, round: int, arrays: Arrays, scans: Mapping[str, Acquisition]) -> None:
        """Store what a round measured, with the name of its scan, and then that it was measured.

        Arguments:
            round: The round.
            arrays: What it measured.
            scans: The scan of each case; all that was measured before is stored.
        """
        named: Arrays = {SCAN: np.array(self.scan_id), ROUND: np.array(round), **arrays}
        with whole_file(_pieces_path(self.path, round)) as partial, partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **named)
        self.keep(scans, pieces_stored=True)

    def keep(
        self,
        scans: Mapping[str, Acquisition],
        *,
        pieces_stored: bool,
        first: Callable[[], None] | None = None,
    ) -> None:
        """Store what was decided so far, and which rounds were measured.

        Arguments:
            scans: The scan of each case.
            pieces_stored: Whether all that was measured is stored beside it.
            first: What has to be on the disk before this is: the disk takes both at once, but the
                file has its name only when that is done, and not at all where it fails.
        """
        # On one line: an indented one is put together by Python, piece by piece, and not by C.
        with whole_file(self.path) as partial, beside(first):
            text = json_text(self._as_json(scans, pieces_stored), indent=None)
            partial.write_text(f"{text}\n", encoding="utf-8")
            sync(partial)

    def _as_json(self, scans: Mapping[str, Acquisition], pieces_stored: bool) -> dict[str, Any]:
        each = [[record.to_dict() for record in scan.rounds] for scan in scans.values()]
        return {
            "schema": SCHEMA,
            "scan_id": self.scan_id,
            "patient": self.patient,
            "policy": self.policy.fingerprint,
            "seed": self.seed,
            "rule": self.rule,
            "samples": self.policy.samples,
            "finished": all(scan.is_finished for scan in scans.values()),
            "pieces_stored": pieces_stored,
            "measured": [len(scan.pieces) for scan in scans.values()],
            "faults": [list(scan.faults) for scan in scans.values()],
            "cases": list(scans),
            **({"scans": each} if self.is_group else {"rounds": each[0]}),
        }


def load_acquisition(
    path: str | os.PathLike[str], policy: Policy
) -> Acquisition | GroupAcquisition:
    """Return a stored scan of a case, or of a group, to look at it.

    Arguments:
        path: The state that :func:`acquire` wrote.
        policy: The policy it was made with; another one is refused.
    """
    source = Path(path)
    scans, is_group = _read(source, policy, _record(source, policy))
    return GroupAcquisition(scans) if is_group else next(iter(scans.values()))


def _record(path: Path, policy: Policy) -> dict[str, Any]:
    record = read_json(path, SCHEMA, remedy="start a new scan")
    if record.get("policy") != policy.fingerprint:
        raise InputError(
            f"{path} is a scan under another policy; go on with that one or start a new scan"
        )
    return record


def _read(
    path: Path, policy: Policy, record: Mapping[str, Any]
) -> tuple[dict[str, Acquisition], bool]:
    """Read the scan of each case, and whether they are those of a group."""
    with complete(path, "scan"):
        is_group = "scans" in record
        scans = record["scans"] if is_group else [record["rounds"]]
        rounds = {
            str(name): tuple(_round(r, str(name)) for r in of_case)
            for name, of_case in zip(record["cases"], scans, strict=True)
        }
        listed = [tuple(map(str, of_case)) for of_case in record["faults"]]
        faults = dict(zip(rounds, listed, strict=True))
        measured = dict(zip(rounds, map(int, record["measured"]), strict=True))
        stored, scan_id = record["pieces_stored"] is True, str(record["scan_id"])
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
    pieces: dict[str, tuple[Any, ...]] = dict.fromkeys(rounds, ())
    if stored:
        pieces = _read_pieces(path, measured, is_group, scan_id)
    found = {
        name: Acquisition(rounds[name], pieces[name], of_case) for name, of_case in faults.items()
    }
    return found, is_group


def _round(record: Mapping[str, Any], case: str) -> RoundRecord:
    R = record["acceleration"]
    return RoundRecord(
        round=int(record["round"]),
        acceleration=np.nan if R is None else float(R),
        outputs=np.asarray(record["outputs"], dtype=float),
        stop=record["stop"] is True,
        lower=_ends(record["lower"]),
        upper=_ends(record["upper"]),
        reason=str(record["reason"]),
        case=case,
        fault=record["fault"],
        wanted=tuple(map(int, record.get("wanted", ()))),
        void=_void(record.get("void", UNTOLD)),
        shadow=record.get("shadow") is True,
    )


def _void(said: Any) -> str | None:
    return None if said is None else str(said)


def _read_pieces(
    path: Path, measured: Mapping[str, int], is_group: bool, scan_id: str
) -> dict[str, tuple[Any, ...]]:
    """Read what was measured of each case in each of its rounds."""
    pieces: dict[str, list[Any]] = {name: [] for name in measured}
    for k in range(max(measured.values(), default=0)):
        try:
            with open_npz(_pieces_path(path, k)) as archive:
                arrays = {name: archive[name] for name in archive}
            if [str(arrays.pop(SCAN, "")), str(arrays.pop(ROUND, ""))] != [scan_id, str(k)]:
                raise InputError("they are of another scan or round")
            for i, (name, rounds) in enumerate(measured.items()):
                if k < rounds:
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
