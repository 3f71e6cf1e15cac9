"""A line that changes while its round is computed stops nothing, now or after a reconnection."""

import threading
from dataclasses import dataclass, field

import pytest

from taskuq.scan._audit import read_audit_log
from taskuq.service import _replay as replay
from taskuq.service._mrd import ACQUISITION, CLOSE, HEADER, IMAGE, header_xml

pytest.importorskip("ismrmrd", reason="the extra mrd is not installed")


@dataclass
class Held:
    """A recovery that says when it computes, and goes on when it may."""

    recover: object
    computing: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def __call__(self, measurement, **options):
        self.computing.set()
        assert self.go_on.wait(20)
        return self.recover(measurement, **options)


def begun(connect, service, scan, columns):
    """A connection that has sent some lines of all slices."""
    wire = connect(service)
    wire.send(HEADER, header_xml(scan.header))
    for slice_ in scan.kspace:
        for column in columns:
            wire.send(ACQUISITION, scan.line(slice_, int(column)))
    assert "send these lines" in wire.read().content
    return wire


def decisions(wire):
    wire.send(CLOSE)
    found = []
    while (message := wire.read()) is not None:
        if message.kind == IMAGE:
            found.append(replay._decision(message))
    return found


@pytest.fixture(params=["case", "whole-group"])
def stopping(request, small):
    """A policy, and a scan that it stops in the first round."""
    if request.param == "whole-group":
        return small.policy("whole-group", width=0.8), small.scan_of(2)
    policy = small.policy(width=0.15)
    number = next(n for n in range(40) if small.acquired(policy, n, 0).acceleration == 8)
    return policy, small.scan_of(number, slices=1)


def test_a_scan_of_sound_lines_would_stop(small, serving, connect, stopping):
    policy, scan = stopping
    wire = begun(connect, serving(policy=policy), scan, small.COLUMNS[0])
    found = decisions(wire)

    assert len(found) == len(scan.kspace)
    assert all(one["decision"] == "stop" for one in found)


def test_a_line_that_changes_while_its_round_is_computed_never_stops_a_scan(
    small, serving, connect, stopping, tmp_path
):
    policy, scan = stopping
    held = Held(small.recover)
    service = serving(policy=policy, recover=held)
    wire = begun(connect, service, scan, small.COLUMNS[0])
    assert held.computing.wait(20)
    spoilt = scan.line(0, int(small.COLUMNS[0][0]))
    spoilt.data[:] = 1
    wire.send(ACQUISITION, spoilt)
    assert "came twice" in wire.read().content
    held.go_on.set()
    first = decisions(wire)
    again = decisions(begun(connect, service, scan, range(small.SIZE)))

    assert not any(one["would_stop"] == "true" for one in first + again)
    assert all("came twice" in one["fault"] for one in first)
    assert len(again) > len(first) == len(scan.kspace)
    told = read_audit_log(tmp_path / "states" / "log.jsonl")
    assert not any(line["stop"] for line in told)


def test_a_line_that_changes_after_a_stop_does_not_take_it_back(small, stopping):
    from taskuq.service._session import _StreamedSlice

    policy, scan = stopping
    slice_ = _StreamedSlice(small.COLUMNS, scan.header.shape, policy.accelerations, "MR")
    line = scan.kspace[0][..., 3]
    assert slice_.add(3, line) is None
    assert slice_.finalize() is None
    assert slice_.add(3, line + 1) is None
    assert slice_.finalize() is None
    assert slice_.add(4, line) is None
    assert sorted(slice_.lines) == [3, 4]
