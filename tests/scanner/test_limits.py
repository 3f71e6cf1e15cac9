"""No connection takes more threads or memory than it may, and those beside it go on."""

import struct
import threading
import time

import pytest

from taskuq.service import _replay as replay
from taskuq.service._mrd import (
    ACQUISITION,
    CLOSE,
    HEADER,
    IMAGE,
    ScanHeader,
    StreamLimits,
    header_xml,
)
from taskuq.service._replay import _StoredScan, replay_scan

pytest.importorskip("ismrmrd", reason="the extra mrd is not installed")
HOST, MANY = "127.0.0.1", 100


def many_slices(small, number, slices=MANY):
    """A scan of many slices, which are all alike."""
    one = small.scan_of(number, slices=1)
    name = one.header.patient
    header = ScanHeader(one.header.scan_id, name, one.header.shape, slices)
    return _StoredScan(header, dict.fromkeys(range(slices), one.kspace[0]))


def begun(connect, service, scan):
    """A connection whose header was taken."""
    wire = connect(service)
    wire.send(HEADER, header_xml(scan.header))
    assert "send these lines" in wire.read().content
    return wire


def all_read(wire):
    """Wait until everything that was sent has been read."""
    wire.send(HEADER, "again")
    while "a header already" not in getattr(wire.read(), "content", ""):
        pass


def test_a_connection_of_many_slices_has_two_threads(small, serving, connect):
    service, scan = serving(), many_slices(small, 1)
    before = set(threading.enumerate())
    wire = begun(connect, service, scan)
    for slice_ in scan.kspace:
        wire.send(ACQUISITION, scan.line(slice_, 0))
    all_read(wire)

    assert len(service.sessions) == 1
    assert len(set(threading.enumerate()) - before) <= 2


def test_rounds_that_are_late_wait_in_one_thread(small, serving, connect):
    go_on = threading.Event()

    def stuck(measurement, **options):
        assert go_on.wait(20)
        return small.recover(measurement, **options)

    service, scan = serving(recover=stuck, deadline=0.02), many_slices(small, 1, slices=20)
    before = set(threading.enumerate())
    wire = begun(connect, service, scan)
    for slice_ in scan.kspace:
        for column in small.COLUMNS[0]:
            wire.send(ACQUISITION, scan.line(slice_, int(column)))
    faults = [replay._decision(wire.read())["fault"] for _ in scan.kspace]
    threads = set(threading.enumerate()) - before
    go_on.set()

    assert len(threads) <= 3
    assert all("took longer" in one or "still running" in one for one in faults)


def test_slices_in_any_order_are_all_decided(small, small_policy, serving, connect):
    # Lines of all slices by turns, as scanners interleave them: more slices than may wait.
    scan = small.scan_of(6, slices=9)
    wire = begun(connect, serving(limits=StreamLimits(waiting=2)), scan)
    for column in range(small.SIZE):
        for slice_ in scan.kspace:
            wire.send(ACQUISITION, scan.line(slice_, column))
    wire.send(CLOSE)
    last = {}
    while (message := wire.read()) is not None:
        if message.kind == IMAGE:
            decision = replay._decision(message)
            last[decision["slice"]] = decision

    assert sorted(last) == [*range(9)]
    for slice_, decision in last.items():
        alone = small.acquired(small_policy, 6, slice_).rounds[-1].to_dict()
        assert decision["lower"] == alone["lower"]
        assert decision["round"] == alone["round"]


def test_a_header_that_announces_more_than_is_taken_is_refused(small, serving, connect):
    service = serving()
    held = begun(connect, service, small.scan_of(2, slices=1))
    large = ScanHeader("MR-large", "large", (512, 60_000, small.SIZE), 1024)
    wire = connect(service)
    wire.send(HEADER, header_xml(large))
    answer = wire.read().content

    assert "the header announces 3840000 MiB of k-space, and 8192 MiB are taken" in answer
    assert wire.read() is None
    assert len(replay_scan(small.scan_of(3), HOST, service.port).decisions) == 3
    all_read(held)


@pytest.mark.parametrize("unit", ["case", "whole-group"])
def test_slices_that_do_not_fit_at_once_are_refused(small, serving, connect, unit):
    scan = small.scan_of(1)
    room = scan.header.nbytes - 1 if unit == "whole-group" else scan.header.nbytes // 3 - 1
    wire = connect(serving(policy=small.policy(unit, width=0.2), limits=StreamLimits(kept=room)))
    wire.send(HEADER, header_xml(scan.header))

    assert "--max-buffer" in wire.read().content
    assert wire.read() is None


def test_who_sends_more_than_is_kept_is_let_go_and_no_one_else(small, serving, connect):
    slice_ = small.scan_of(1, slices=1).header.nbytes
    service = serving(limits=StreamLimits(kept=2 * slice_))
    held, scan = begun(connect, service, small.scan_of(2, slices=1)), many_slices(small, 1)
    wire = begun(connect, service, scan)
    last = int(small.COLUMNS[0][0])
    try:
        for column in [c for c in range(small.SIZE) if c != last]:
            for k in range(3):
                wire.send(ACQUISITION, scan.line(k, column))
    except OSError:
        pass
    said = wire.read().content

    assert "slices under way (" in said
    assert "--max-buffer" in said
    assert wire.read() is None
    # Slices that are decided make room: many of them are scanned one after another.
    assert len(replay_scan(many_slices(small, 4, slices=5), HOST, service.port).decisions) == 5
    all_read(held)


def test_who_waits_for_an_answer_is_not_idle(small, serving, connect):
    go_on = threading.Event()

    def slow(measurement, **options):
        assert go_on.wait(20)
        return small.recover(measurement, **options)

    scan, wire = (
        small.scan_of(1, slices=1),
        connect(serving(recover=slow, limits=StreamLimits(idle=0.2))),
    )
    lines = [raw(ACQUISITION, scan.line(0, int(column))) for column in small.COLUMNS[0]]
    text = header_xml(scan.header).encode()
    # All at once: nothing but the computation takes time.
    wire.connection.sendall(struct.pack("<HI", HEADER, len(text)) + text + b"".join(lines))
    assert "send these lines" in wire.read().content
    time.sleep(1)
    go_on.set()

    assert wire.read().kind == IMAGE


def raw(kind, content):
    parts = [struct.pack("<H", kind)]
    content.serialize_into(lambda part: parts.append(bytes(part)))
    return b"".join(parts)
