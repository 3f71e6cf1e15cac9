"""Stored scans replayed against a server."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskuq.errors import InputError, MachineError
from taskuq.service._mrd import (
    ACQUISITION,
    CLOSE,
    HEADER,
    IMAGE,
    TEXT,
    Connection,
    Message,
    ScanHeader,
    StreamError,
    StreamLimits,
    header_xml,
    line_problem,
    non_imaging_kind,
    read_header,
)
from taskuq.table._terminology import count_noun


@dataclass(frozen=True)
class _StoredScan:
    """A scan that is known in full."""

    header: ScanHeader
    kspace: Mapping[int, NDArray[np.complex64]]
    xml: str | None = None
    left_out: tuple[str, ...] = ()

    def line(self, slice_: int, column: int) -> Any:
        """One line as the acquisition that a scanner sends."""
        import ismrmrd

        data = np.ascontiguousarray(self.kspace[slice_][..., column])
        found = ismrmrd.Acquisition.from_array(data.astype(np.complex64))
        found.idx.slice, found.idx.kspace_encode_step_1 = slice_, column
        return found

    def save(self, path: Path) -> Path:
        """Write an MRD file of all lines, with the ismrmrd package."""
        import ismrmrd

        with ismrmrd.Dataset(str(path), "dataset", create_if_needed=True) as file:
            file.write_xml_header((self.xml or header_xml(self.header)).encode())
            for slice_ in self.kspace:
                for column in range(self.header.shape[2]):
                    file.append_acquisition(self.line(slice_, column))
        return path


def read_mrd(path: Path) -> _StoredScan:
    """Read a Cartesian scan from an MRD file."""
    xml, acquisitions = _opened(path)
    header = read_header(xml)
    coils, height, width = header.shape
    kspace: dict[int, NDArray[np.complex64]] = {}
    seen: set[tuple[int, int]] = set()
    left: Counter[str] = Counter()
    for one in acquisitions:
        place = int(one.idx.slice), int(one.idx.kspace_encode_step_1)
        if why := _left_out(one, place, seen, width):
            left[why] += 1
            continue
        if one.data.shape != (coils, height):
            raise InputError(
                f"{path}: a line has {one.data.shape[0]} channels of {one.data.shape[1]} samples, "
                f"and the header says {coils} and {height}; crop oversampling away first"
            )
        seen.add(place)
        kspace.setdefault(place[0], np.zeros(header.shape, np.complex64))[..., place[1]] = one.data
    said = tuple(f"{count_noun(count, 'line')} left out: {why}" for why, count in left.items())
    if not kspace:
        why = "; ".join(said) or "it holds no line"
        raise InputError(f"{path} holds no line that a service would take ({why:.300})")
    if missing := len(kspace) * width - len(seen):
        raise InputError(
            f"{path} lacks {count_noun(missing, 'line')} of {count_noun(len(kspace), 'slice')}; a replay "
            "needs all of them, since a service may ask for any"
            + (f" ({'; '.join(said):.300})" if said else "")
        )
    return _StoredScan(header, kspace, xml, said)


def _opened(path: Path) -> tuple[str, list[Any]]:
    """The header and all acquisitions of an MRD file."""
    import ismrmrd

    holds = "an MRD file is HDF5 with a group 'dataset' that holds a header, 'xml', and 'data'"
    try:
        with ismrmrd.File(str(path), mode="r") as file:
            if "dataset" not in file:
                raise InputError(f"{path} is HDF5 and no MRD file: {holds}")
            dataset = file["dataset"]
            if not dataset.has_header() or not dataset.has_acquisitions():
                lacks = "lines" if dataset.has_header() else "header"
                raise InputError(f"{path} has no MRD {lacks}: {holds}")
            return dataset.header.toXML(), list(dataset.acquisitions)
    except InputError:
        raise
    except Exception:
        # Whatever HDF5 and the package say of damaged bytes helps nobody to mend them.
        raise InputError(
            f"{path} cannot be read as MRD: it is truncated, damaged or of another kind; {holds}"
        ) from None


def _left_out(
    acquisition: Any, place: tuple[int, int], seen: set[tuple[int, int]], width: int
) -> str | None:
    """Why an acquisition is not played; None where it is."""
    if kind := non_imaging_kind(acquisition):
        return f"beside the image ({kind})"
    if why := line_problem(acquisition):
        return why
    if place[1] >= width:
        return f"beyond the {width} lines of the header"
    if place in seen:
        return "measured before; of lines that were measured twice the first is played"
    return None


def simulate_atlas_scans(patients: int, seed: int, first: int, coils: int) -> Iterator[_StoredScan]:
    """Yield synthetic atlas scans."""
    from taskuq.data._atlas import Atlas
    from taskuq.measure._fourier import fft2c

    atlas = Atlas(patients, seed, first=first, coils=coils)
    per = atlas.plan.slices
    for k in range(patients):
        kspace = {s: fft2c(atlas[k * per + s].image).numpy() for s in range(per)}
        name = f"patient-{first + k}"
        # Patients of another seed are others, and so are their scans.
        scan_id = f"{name}-seed-{seed}-coils-{coils}"
        yield _StoredScan(ScanHeader(scan_id, name, kspace[0].shape, per), kspace)


# Seconds that a service may take to be there, to come back (networks are loaded), between tries.
PATIENCE, PATIENCE_FOR_RETURN, PAUSE = 10.0, 60.0, 0.25


@dataclass
class _ReplayResult:
    """Decisions and latencies of a replayed scan."""

    decisions: dict[int, dict[str, Any]] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)
    sent: set[tuple[int, int]] = field(default_factory=set, repr=False)
    said: list[str] = field(default_factory=list)
    reconnections: int = 0
    again: int = 0

    @property
    def lines(self) -> int:
        return len(self.sent)


def replay_scan(
    scan: _StoredScan,
    host: str,
    port: int,
    *,
    limits: StreamLimits | None = None,
    every: float = 0.0,
    tell: Callable[[str], None] = lambda sentence: None,
) -> _ReplayResult:
    """Send a scan to a service and follow its decisions."""
    played, connections = _ReplayResult(), 0
    left, limits = list(scan.kspace), limits or StreamLimits()
    until, is_told = time.monotonic() + PATIENCE, False
    while time.monotonic() < until:
        try:
            wire = Connection(socket.create_connection((host, port), timeout=PATIENCE), limits)
        except OSError:
            if not is_told:
                left_s = until - time.monotonic()
                tell(f"No service answers at {host}:{port} yet; trying for {left_s:.0f} s.")
            is_told = True
            time.sleep(PAUSE)
            continue
        played.reconnections = connections
        connections += 1
        try:
            _play(_LineSender(wire, scan, played, every), left)
            return played
        except (StreamError, OSError):
            until, is_told = time.monotonic() + PATIENCE_FOR_RETURN, False
            tell("The connection was lost; the scan is taken up where the service stored it.")
            time.sleep(PAUSE)
        finally:
            wire.close()
    if connections:
        raise MachineError(f"the service at {host}:{port} has gone and does not come back")
    raise InputError(f"no service answers at {host}:{port}; start one with taskuq serve")


class _LineSender:
    """Send acquisitions at a fixed interval."""

    def __init__(
        self, wire: Connection, scan: _StoredScan, played: _ReplayResult, every: float
    ) -> None:
        self.wire, self.scan, self.played, self.every = wire, scan, played, every
        self.next, self.left = time.monotonic(), time.perf_counter()

    def send(self, slice_: int, columns: list[int]) -> None:
        """Send some lines of a slice; ``left`` says when the last one left."""
        for column in columns:
            line = self.scan.line(slice_, column)
            time.sleep(max(0.0, self.next - time.monotonic()))
            self.next, self.left = time.monotonic() + self.every, time.perf_counter()
            self.wire.send(ACQUISITION, line)
            self.played.sent.add((slice_, column))


def _play(lines: _LineSender, left: list[int]) -> None:
    wire, scan = lines.wire, lines.scan
    wire.send(HEADER, scan.xml or header_xml(scan.header))
    first = _wait(wire, TEXT, lines.played)
    if "lines" not in first:
        raise InputError(f"the service refuses the scan: {first.get('said')}")
    # What is decided together is scanned together: nothing is decided before all have come.
    turns = [list(left)] if first.get("together") else [[slice_] for slice_ in left]
    for slices in turns:
        _rounds(lines, dict.fromkeys(slices, first["lines"]))
        left[:] = [slice_ for slice_ in left if slice_ not in slices]
    wire.send(CLOSE)
    while wire.read() is not None:
        pass


def _rounds(lines: _LineSender, wanted: dict[int, list[int]]) -> None:
    """Send the lines that are wanted of slices and obey what is decided, round by round."""
    played = lines.played
    while wanted:
        for slice_, columns in wanted.items():
            lines.send(slice_, columns)
        begun, answers = lines.left, dict[int, dict[str, Any]]()
        while not wanted.keys() <= answers.keys():
            decision = _wait(lines.wire, IMAGE, played)
            if decision.get("stored", False):
                played.again += 1
            else:
                played.latencies.append(time.perf_counter() - begun)
            answers[decision["slice"]] = decision
        played.decisions |= answers
        wanted = {}
        for slice_, decision in answers.items():
            if decision["would_stop"] == "true":
                # In shadow mode the rest is asked for, and looked at no more.
                lines.send(slice_, decision["lines"])
            else:
                wanted[slice_] = decision["lines"]


def _wait(wire: Connection, kind: int, played: _ReplayResult) -> dict[str, Any]:
    """Wait for an answer; what is said in words meanwhile is kept."""
    while (message := wire.read()) is not None:
        if message.kind == kind == IMAGE:
            return _decision(message)
        if message.kind == TEXT:
            said = json.loads(message.content)
            played.said.append(str(said.get("said")))
            if kind == TEXT:
                return dict(said)
            if "cannot be decided" in played.said[-1]:
                raise InputError(played.said[-1])
    raise StreamError("the service has gone")


def _decision(message: Message) -> dict[str, Any]:
    meta = {name.removeprefix("taskuq_"): v for name, v in message.content.meta.items()}
    plain = ("decision", "would_stop", "promise", "scan_id")
    return {name: v if name in plain else json.loads(v) for name, v in meta.items()} | {
        "slice": int(message.content.slice), "image": np.asarray(message.content.data)[0, 0].T
    }  # fmt: skip


def summary(played: Sequence[_ReplayResult], width: int) -> dict[str, Any]:
    """Return what was saved, and how long decisions took, as values that JSON can hold."""
    slices = sum(len(one.decisions) for one in played)
    lines = sum(one.lines for one in played)
    latencies = np.concatenate([one.latencies for one in played])
    decisions = [d for one in played for d in one.decisions.values()]
    early = sum(d["acceleration"] != 1 for d in decisions)
    shadow = any(d["shadow"] for d in decisions)
    return {
        "schema": "taskuq.replay/1",
        "scans": len(played),
        "slices": slices,
        "lines_sent": lines,
        "lines_of_full_scans": slices * width,
        "acceleration": slices * width / lines,
        "shadow": shadow,
        "stopped_early": 0 if shadow else early,
        "would_stop_early": early,
        "latency": {
            "rounds": len(latencies),
            "median": float(np.median(latencies)) if len(latencies) else None,
            "worst": float(latencies.max()) if len(latencies) else None,
        },
        "answered_again": sum(one.again for one in played),
        "reconnections": sum(one.reconnections for one in played),
        "decisions": [
            {name: v for name, v in d.items() if name not in ("image", "lines")} for d in decisions
        ],
    }


def format_summary(found: dict[str, Any]) -> list[str]:
    """Format the summary of a replay."""
    latency, slices = found["latency"], count_noun(found["slices"], "slice")
    early, lines = found["would_stop_early"], found["lines_sent"]
    if found["shadow"]:
        said = [f"{slices}, in shadow: {early} would have stopped early, and all {lines} lines "
                "were sent."]  # fmt: skip
    else:
        said = [f"{slices}, {early} stopped early: {lines} lines instead of "
                f"{found['lines_of_full_scans']} (average acceleration "
                f"{found['acceleration']:.2f})."]  # fmt: skip
    if latency["rounds"]:
        said.append(
            "From the last line of a round to its decision: median "
            f"{1000 * latency['median']:.0f} ms, worst {1000 * latency['worst']:.0f} ms of "
            f"{latency['rounds']}."
        )
    if stored := found["answered_again"]:
        said.append(
            f"{count_noun(stored, 'round')} of scans that the service has stored: it told again what "
            "it had decided, and how long that took is not counted."
        )
    if again := found["reconnections"]:
        said.append(
            f"The connection was lost and taken up {count_noun(again, 'time')}; lines that were sent "
            "again count once."
        )
    broken = dict.fromkeys(d["promise"] for d in found["decisions"] if not d["promised"])
    return [" ".join(said), *broken]
