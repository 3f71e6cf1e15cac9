"""A scan played against a service as a scanner would: send lines, wait, obey."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from taskuq.errors import InputError, MachineError
from taskuq.runs.mrd.header import header_xml
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
from taskuq.runs.mrd.stored import StoredScan
from taskuq.words import counted

# Seconds that a service may take to be there, to come back (networks are loaded), between tries.
PATIENCE, PATIENCE_FOR_RETURN, PAUSE = 10.0, 60.0, 0.25


@dataclass
class Played:
    """What became of the slices of a scan.

    Arguments:
        decisions: Of each slice, what the service said last.
        latencies: Seconds from the last line of a round to its decision, of those decided now.
        sent: Slice and column of every line that was sent, once or again.
        said: What the service said in words.
        reconnections: How often the connection was lost and taken up.
        again: How many rounds were answered from what the service had stored of the scan.
    """

    decisions: dict[int, dict[str, Any]] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)
    sent: set[tuple[int, int]] = field(default_factory=set, repr=False)
    said: list[str] = field(default_factory=list)
    reconnections: int = 0
    again: int = 0

    @property
    def lines(self) -> int:
        """How many lines were measured; what was sent again was not measured again."""
        return len(self.sent)


def play(
    scan: StoredScan,
    host: str,
    port: int,
    *,
    limits: Limits | None = None,
    every: float = 0.0,
    tell: Callable[[str], None] = lambda sentence: None,
) -> Played:
    """Play a scan against a service, slice by slice, and obey what it decides.

    Where the connection is lost, it is taken up, and what was sent of the slice is sent again.

    Arguments:
        scan: The scan.
        host: Where the service is.
        port: Where the service is.
        limits: How long to wait for an answer.
        every: Seconds from one line to the next, the repetition time of a sequence. Where 0, lines
            go as fast as they can, and the last one waits behind all others.
        tell: Called with a sentence where the service is not there, or has gone.
    """
    played, connections = Played(), 0
    left, limits = list(scan.kspace), limits or Limits()
    until, is_told = time.monotonic() + PATIENCE, False
    while time.monotonic() < until:
        try:
            wire = Wire(socket.create_connection((host, port), timeout=PATIENCE), limits)
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
            _play(_Lines(wire, scan, played, every), left)
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


class _Lines:
    """Sends lines of a scan, one after the other at a pace."""

    def __init__(self, wire: Wire, scan: StoredScan, played: Played, every: float) -> None:
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


def _play(lines: _Lines, left: list[int]) -> None:
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


def _rounds(lines: _Lines, wanted: dict[int, list[int]]) -> None:
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


def told(found: dict[str, Any]) -> list[str]:
    """Return what a summary says, in sentences.

    Arguments:
        found: What :func:`summary` returned.
    """
    latency, slices = found["latency"], counted(found["slices"], "slice")
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
            f"{counted(stored, 'round')} of scans that the service has stored: it told again what "
            "it had decided, and how long that took is not counted."
        )
    if again := found["reconnections"]:
        said.append(
            f"The connection was lost and taken up {counted(again, 'time')}; lines that were sent "
            "again count once."
        )
    broken = dict.fromkeys(d["promise"] for d in found["decisions"] if not d["promised"])
    return [" ".join(said), *broken]
