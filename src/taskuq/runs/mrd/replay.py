"""A scan played against a service as a scanner would: send lines, wait, obey."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskuq.errors import InputError, MachineError
from taskuq.runs.mrd.header import ScanHeader, header_xml, read_header
from taskuq.runs.mrd.lines import beside_image, unfit
from taskuq.runs.mrd.messages import (
    ACQUISITION,
    CLOSE,
    HEADER,
    IMAGE,
    TEXT,
    Limits,
    Message,
    StreamError,
    Wire,
)

# Seconds that a service may take to come, or to come back, and between tries.
PATIENCE, PAUSE = 60.0, 0.25


@dataclass(frozen=True)
class StoredScan:
    """A scan that is known in full.

    Arguments:
        header: Who is scanned, and how large k-space is.
        kspace: Of each slice, complex (coil, height, width), by its number.
        xml: The header as it was found; made anew where None.
    """

    header: ScanHeader
    kspace: Mapping[int, NDArray[np.complex64]]
    xml: str | None = None

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


def read_scan(path: Path) -> StoredScan:
    """Read a Cartesian scan from an MRD file; of lines measured more than once, the first.

    What a service would not take is left out: lines beside the image, reversed ones, and those of
    other contrasts, repetitions, averages and encoding spaces.

    Arguments:
        path: The file, HDF5 with a group ``dataset``.
    """
    import ismrmrd

    try:
        with ismrmrd.File(str(path), mode="r") as file:
            dataset = file["dataset"]
            xml = dataset.header.toXML()
            acquisitions = list(dataset.acquisitions)
    except Exception as error:
        raise InputError(
            f"{path} cannot be read as MRD ({type(error).__name__}: {error})"
        ) from None
    header = read_header(xml)
    coils, height, width = header.shape
    kspace: dict[int, NDArray[np.complex64]] = {}
    seen: set[tuple[int, int]] = set()
    for one in acquisitions:
        if beside_image(one) or unfit(one):
            continue
        place = int(one.idx.slice), int(one.idx.kspace_encode_step_1)
        if place in seen or place[1] >= width:
            continue
        if one.data.shape != (coils, height):
            raise InputError(
                f"{path}: a line has {one.data.shape[0]} channels of {one.data.shape[1]} samples, "
                f"and the header says {coils} and {height}; crop oversampling away first"
            )
        seen.add(place)
        kspace.setdefault(place[0], np.zeros(header.shape, np.complex64))[..., place[1]] = one.data
    missing = len(kspace) * width - len(seen)
    if not kspace or missing:
        raise InputError(
            f"{path} lacks {missing} lines of {len(kspace)} slices; a replay needs all of them, "
            "since a service may ask for any"
        )
    return StoredScan(header, kspace, xml)


@dataclass
class Played:
    """What became of the slices of a scan.

    Arguments:
        decisions: Of each slice, what the service said last.
        latencies: Seconds from the last line of a round to its decision.
        lines: How many lines were sent.
        said: What the service said in words.
        reconnections: How often the connection was lost and taken up.
    """

    decisions: dict[int, dict[str, Any]] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)
    lines: int = 0
    said: list[str] = field(default_factory=list)
    reconnections: int = 0


def play(scan: StoredScan, host: str, port: int, *, limits: Limits | None = None) -> Played:
    """Play a scan against a service, slice by slice, and obey what it decides.

    Where the connection is lost, it is taken up, and what was sent of the slice is sent again.

    Arguments:
        scan: The scan.
        host: Where the service is.
        port: Where the service is.
        limits: How long to wait for an answer.
    """
    played, connections = Played(), 0
    left, limits = list(scan.kspace), limits or Limits()
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            wire = Wire(socket.create_connection((host, port), timeout=10), limits)
        except OSError:
            time.sleep(PAUSE)
            continue
        played.reconnections = connections
        connections += 1
        try:
            _play(wire, scan, left, played)
            return played
        except (StreamError, OSError):
            until = time.monotonic() + PATIENCE
            time.sleep(PAUSE)
        finally:
            wire.close()
    raise MachineError(f"no service answers at {host}:{port}; start one with taskuq serve")


def _play(wire: Wire, scan: StoredScan, left: list[int], played: Played) -> None:
    wire.send(HEADER, scan.xml or header_xml(scan.header))
    first = _wait(wire, TEXT, played)
    if "lines" not in first:
        raise InputError(f"the service refuses the scan: {first.get('said')}")
    # What is decided together is scanned together: nothing is decided before all have come.
    turns = [list(left)] if first.get("together") else [[slice_] for slice_ in left]
    for slices in turns:
        _rounds(wire, scan, dict.fromkeys(slices, first["lines"]), played)
        left[:] = [slice_ for slice_ in left if slice_ not in slices]
    wire.send(CLOSE)
    while wire.read() is not None:
        pass


def _rounds(wire: Wire, scan: StoredScan, wanted: dict[int, list[int]], played: Played) -> None:
    """Send the lines that are wanted of slices and obey what is decided, round by round."""
    while wanted:
        for slice_, columns in wanted.items():
            _send(wire, scan, slice_, columns, played)
        begun, answers = time.perf_counter(), dict[int, dict[str, Any]]()
        while not wanted.keys() <= answers.keys():
            decision = _wait(wire, IMAGE, played)
            played.latencies.append(time.perf_counter() - begun)
            answers[decision["slice"]] = decision
        played.decisions |= answers
        wanted = {}
        for slice_, decision in answers.items():
            if decision["would_stop"] == "true":
                # In shadow mode the rest is asked for, and looked at no more.
                _send(wire, scan, slice_, decision["lines"], played)
            else:
                wanted[slice_] = decision["lines"]


def _send(wire: Wire, scan: StoredScan, slice_: int, columns: list[int], played: Played) -> None:
    for column in columns:
        wire.send(ACQUISITION, scan.line(slice_, column))
    played.lines += len(columns)


def _wait(wire: Wire, kind: int, played: Played) -> dict[str, Any]:
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


def summary(played: Sequence[Played], width: int) -> dict[str, Any]:
    """Return what was saved, and how long decisions took, as values that JSON can hold.

    Arguments:
        played: What became of some scans.
        width: The lines of a slice.
    """
    slices = sum(len(one.decisions) for one in played)
    lines = sum(one.lines for one in played)
    latencies = np.concatenate([one.latencies for one in played])
    stopped = [d for one in played for d in one.decisions.values() if d["acceleration"] != 1]
    return {
        "schema": "taskuq.replay/1",
        "scans": len(played),
        "slices": slices,
        "lines_sent": lines,
        "lines_of_full_scans": slices * width,
        "acceleration": slices * width / lines,
        "stopped_early": len(stopped),
        "latency": {
            "rounds": len(latencies),
            "median": float(np.median(latencies)),
            "worst": float(latencies.max()),
        },
        "reconnections": sum(one.reconnections for one in played),
        "decisions": [
            {name: v for name, v in d.items() if name not in ("image", "lines")}
            for one in played
            for d in one.decisions.values()
        ],
    }


def atlas_scans(patients: int, seed: int, first: int, coils: int) -> Iterator[StoredScan]:
    """Yield scans of synthetic patients of the embedded atlas.

    Arguments:
        patients: How many.
        seed: Their seed.
        first: The number of the first.
        coils: Receiver coils.
    """
    from taskuq.data.atlas import Atlas
    from taskuq.measure.fourier import fft2c

    atlas = Atlas(patients, seed, first=first, coils=coils)
    per = atlas.plan.slices
    for k in range(patients):
        kspace = {s: fft2c(atlas[k * per + s].image).numpy() for s in range(per)}
        name = f"patient-{first + k}"
        # Patients of another seed are others, and so are their scans.
        scan_id = f"{name}-seed-{seed}-coils-{coils}"
        yield StoredScan(ScanHeader(scan_id, name, kspace[0].shape, per), kspace)
