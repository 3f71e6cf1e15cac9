"""Replay of stored scans against a server."""

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

from taskuq._io import content_fingerprint
from taskuq.errors import InputError, MachineError
from taskuq.service import _mrd as mrd
from taskuq.table._terminology import count_noun


@dataclass(frozen=True)
class _StoredScan:
    """Fully sampled scan as acquired; readouts may be oversampled."""

    header: mrd.ScanHeader
    kspace: Mapping[int, NDArray[np.complex64]]
    xml: str | None = None
    skipped: tuple[str, ...] = ()
    noise: tuple[Any, ...] = ()
    # Position, times and channels of the lines of each slice.
    frames: Mapping[int, tuple[Any, ...]] = field(default_factory=dict)

    def line(self, slice_: int, column: int) -> Any:
        """Return one line as an MRD acquisition."""
        import ismrmrd

        data = np.ascontiguousarray(self.kspace[slice_][..., column])
        line = ismrmrd.Acquisition.from_array(data.astype(np.complex64))
        line.idx.slice, line.idx.kspace_encode_step_1 = slice_, column
        line.center_sample = data.shape[1] // 2
        for name, value in self.frames.get(slice_, ()):
            if isinstance(value, tuple):
                getattr(line, name)[:] = value
            elif name != "number_of_samples":
                setattr(line, name, value)
        return line


def read_mrd(path: Path, scan_id: str | None = None) -> _StoredScan:
    """Read a Cartesian scan from an MRD file; if no id is known, use the file's fingerprint."""
    import ismrmrd

    from taskuq.data._volume import check_heaps

    try:
        check_heaps(path)
        with ismrmrd.File(str(path), mode="r") as file:
            dataset = file["dataset"]
            xml, acquisitions = dataset.header.toXML(), list(dataset.acquisitions)
    except Exception:
        text = f"{path} is not an MRD file with a group 'dataset', or it is damaged"
        raise InputError(text, code="file.format") from None
    try:
        header = mrd.read_header(xml, scan_id)
    except InputError as error:
        if error.code != "option.missing":
            raise
        scan_id = content_fingerprint(path)[:24]
        header = mrd.read_header(xml, scan_id)
    xml = xml if scan_id is None else mrd.with_scan_id(xml, scan_id)
    width, noise = header.shape[2], list[Any]()
    kspace: dict[int, NDArray[np.complex64]] = {}
    stored: set[tuple[int, int]] = set()
    frames: dict[int, tuple[Any, ...]] = {}
    reasons: Counter[str] = Counter()
    for one in acquisitions:
        place = int(one.idx.slice), int(one.idx.kspace_encode_step_1)
        reason = mrd.line_problem(one, header)
        if kind := mrd.non_imaging_kind(one):
            noise += [one] if one.is_flag_set(mrd.NOISE) else []
            reason = f"outside the image ({kind})"
        elif reason is None and place[1] >= width:
            reason = f"beyond the {width} lines of the header"
        if reason is not None:
            reasons[reason] += 1
            continue
        if place[0] not in kspace:
            kspace[place[0]] = np.zeros((*one.data.shape, width), np.complex64)
            frames[place[0]] = mrd.line_frame(one)
        problem = mrd.frame_problem(one, frames[place[0]])
        slice_ = kspace[place[0]]
        if problem is None and place in stored and (slice_[..., place[1]] != one.data).any():
            problem = "a line that occurs twice with different values"
        if problem is not None:
            text = f"{path}: slice {place[0]} has {problem}"
            raise InputError(text, code="shape.mismatch")
        stored.add(place)
        slice_[..., place[1]] = one.data
    skipped = tuple(f"{count_noun(n, 'line')} skipped: {reason}" for reason, n in reasons.items())
    if not kspace or (missing := len(kspace) * width - len(stored)):
        lacks = "; ".join([count_noun(missing, "line") if kspace else "all lines", *skipped])
        text = f"{path} is not a fully sampled scan: it lacks {lacks:.300}"
        raise InputError(text, code="table.incomplete")
    return _StoredScan(header, kspace, xml, skipped, tuple(noise), frames)


def simulate_atlas_scans(patients: int, seed: int, first: int, coils: int) -> Iterator[_StoredScan]:
    """Yield synthetic atlas scans."""
    from taskuq.data._atlas import Atlas
    from taskuq.measure._fourier import fft2c

    atlas = Atlas(patients, seed, first=first, coils=coils)
    per = atlas.plan.slices
    for k in range(patients):
        kspace = {s: fft2c(atlas[k * per + s].image).numpy() for s in range(per)}
        name = f"patient-{first + k}"
        scan_id = f"{name}-seed-{seed}-coils-{coils}"
        size = (atlas.plan.field_of_view, atlas.plan.field_of_view, atlas.plan.spacing)
        yield _StoredScan(mrd.ScanHeader(scan_id, name, kspace[0].shape, per, size), kspace)


# Seconds that a service may take to load its networks, and between tries.
PATIENCE, PAUSE = 60.0, 0.25


@dataclass
class _ReplayResult:
    """Decisions and latencies of a replayed scan."""

    decisions: dict[int, dict[str, Any]] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)
    sent: set[tuple[int, int]] = field(default_factory=set, repr=False)
    reconnections: int = 0
    restored: int = 0

    @property
    def lines(self) -> int:
        return len(self.sent)


def replay_scan(
    scan: _StoredScan,
    host: str,
    port: int,
    *,
    tr: float = 0.0,
    log: Callable[[str], None] = lambda sentence: None,
) -> _ReplayResult:
    """Send a scan to a service and apply its decisions."""
    result, connections, remaining = _ReplayResult(), 0, list(scan.kspace)
    until, is_logged = time.monotonic() + PATIENCE, False
    while time.monotonic() < until:
        try:
            client = socket.create_connection((host, port), timeout=10)
            connection = mrd.Connection(client, mrd.StreamLimits())
        except OSError:
            if not is_logged:
                wait = until - time.monotonic()
                log(f"No service answers at {host}:{port} yet; trying for {wait:.0f} s.")
            is_logged = True
            time.sleep(PAUSE)
            continue
        result.reconnections = connections
        connections += 1
        try:
            _replay(_LineSender(connection, scan, result, tr), remaining)
            return result
        except (mrd.StreamError, OSError):
            until, is_logged = time.monotonic() + PATIENCE, False
            log("The connection was lost; resuming the scan from its stored state.")
            time.sleep(PAUSE)
        finally:
            connection.close()
    if connections:
        raise MachineError(f"the service at {host}:{port} no longer answers")
    message = f"no service answers at {host}:{port}; start taskuq serve"
    raise InputError(message, code="dependency.missing")


@dataclass
class _LineSender:
    """Sender of acquisitions at a fixed interval."""

    connection: mrd.Connection
    scan: _StoredScan
    result: _ReplayResult
    tr: float
    next: float = field(default_factory=time.monotonic)
    last_sent: float = field(default_factory=time.perf_counter)

    def send(self, slice_: int, columns: list[int]) -> None:
        for column in columns:
            line = self.scan.line(slice_, column)
            time.sleep(max(0.0, self.next - time.monotonic()))
            self.next, self.last_sent = time.monotonic() + self.tr, time.perf_counter()
            self.connection.send(mrd.ACQUISITION, line)
            self.result.sent.add((slice_, column))


def _replay(sender: _LineSender, remaining: list[int]) -> None:
    connection, scan = sender.connection, sender.scan
    connection.send(mrd.HEADER, scan.xml or mrd.header_xml(scan.header))
    first = _wait(connection, mrd.TEXT)
    if "lines" not in first:
        text = f"the service refuses the scan: {first['message']}"
        raise InputError(text, code="policy.mismatch")
    for noise in scan.noise:
        connection.send(mrd.ACQUISITION, noise)
    # Slices that are decided together need all their lines before the first decision.
    parts = [list(remaining)] if first.get("together") else [[slice_] for slice_ in remaining]
    for slices in parts:
        _rounds(sender, dict.fromkeys(slices, first["lines"]))
        remaining[:] = [slice_ for slice_ in remaining if slice_ not in slices]
    connection.send(mrd.CLOSE)
    while connection.read() is not None:
        pass


def _rounds(sender: _LineSender, lines: dict[int, list[int]]) -> None:
    """Send the requested lines of each slice, round by round, until every slice has stopped."""
    result = sender.result
    while lines:
        for slice_, columns in lines.items():
            sender.send(slice_, columns)
        begin, decisions = sender.last_sent, dict[int, dict[str, Any]]()
        while not lines.keys() <= decisions.keys():
            decision = _wait(sender.connection, mrd.IMAGE)
            if decision.get("stored", False):
                result.restored += 1
            else:
                result.latencies.append(time.perf_counter() - begin)
            decisions[decision["slice"]] = decision
        result.decisions |= decisions
        lines = {}
        for slice_, decision in decisions.items():
            if decision["would_stop"] == "true":
                # In shadow mode the remaining lines are requested, and not decided on.
                sender.send(slice_, decision["lines"])
            else:
                lines[slice_] = decision["lines"]


def _wait(connection: mrd.Connection, kind: int) -> dict[str, Any]:
    """Return the next reply of a given kind."""
    while (message := connection.read()) is not None:
        if message.kind == kind == mrd.IMAGE:
            decision = _decision(message)
            if decision["undecided"]:
                problem = f"slice {decision['slice']} cannot be decided: {decision['fault']}"
                raise InputError(problem, code="component.invalid")
            return decision
        if message.kind == mrd.TEXT:
            text = dict(json.loads(message.content))
            if kind == mrd.TEXT:
                return text
    raise mrd.StreamError("the service has closed the connection", code="file.damaged")


def _decision(message: mrd.Message) -> dict[str, Any]:
    meta = {name.removeprefix("taskuq_"): v for name, v in message.content.meta.items()}
    plain = ("decision", "would_stop", "guarantee", "scan_id")
    return {name: v if name in plain else json.loads(v) for name, v in meta.items()} | {
        "slice": int(message.content.slice), "image": np.asarray(message.content.data)[0, 0].T
    }  # fmt: skip


def summarise(results: Sequence[_ReplayResult], width: int) -> dict[str, Any]:
    """Return the accelerations and latencies of replayed scans as JSON values."""
    lines = sum(one.lines for one in results)
    latencies = np.concatenate([one.latencies for one in results])
    decisions = [d for one in results for d in one.decisions.values()]
    slices = len(decisions)
    early = sum(d["acceleration"] != 1 for d in decisions)
    shadow = any(d["shadow"] for d in decisions)
    return {
        "schema": "taskuq.replay/1",
        "scans": len(results),
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
        "answered_again": sum(one.restored for one in results),
        "reconnections": sum(one.reconnections for one in results),
        "decisions": [
            {name: v for name, v in d.items() if name not in ("image", "lines")} for d in decisions
        ],
    }


def format_summary(record: dict[str, Any]) -> list[str]:
    latency, slices = record["latency"], count_noun(record["slices"], "slice")
    early, lines = record["would_stop_early"], record["lines_sent"]
    if record["shadow"]:
        outcome = f"{early} would have stopped early (shadow mode): {lines} lines sent"
    else:
        outcome = f"{early} stopped early: {lines} lines instead of {record['lines_of_full_scans']}"
    sentences = [f"{slices}, {outcome} (mean acceleration {record['acceleration']:.2f})."]
    if latency["rounds"]:
        median, worst = (f"{1000 * latency[name]:.0f} ms" for name in ("median", "worst"))
        sentences.append(
            f"Latency of {latency['rounds']} decisions: median {median}, worst {worst}."
        )
    if restored := record["answered_again"]:
        sentences.append(f"Stored decisions, without latency: {count_noun(restored, 'round')}.")
    if reconnections := record["reconnections"]:
        sentences.append(f"The connection was resumed {count_noun(reconnections, 'time')}.")
    void = dict.fromkeys(d["guarantee"] for d in record["decisions"] if not d["guaranteed"])
    return [" ".join(sentences), *void]
