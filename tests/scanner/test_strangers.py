"""Who is slow, silent or curious keeps nobody from scanning and reads nothing."""

import errno
import os
import select
import socket
import stat
import struct
import threading
import time
from contextlib import suppress

import pytest

from taskuq.errors import InputError
from taskuq.service._mrd import (
    CLOSE,
    CONFIG_TEXT,
    HEADER,
    TEXT,
    Connection,
    StreamError,
    StreamLimits,
    header_xml,
)
from taskuq.service._session import Session

pytest.importorskip("ismrmrd", reason="the extra mrd is not installed")


@pytest.mark.parametrize("drips", [False, True])
def test_a_connection_that_sends_no_header_is_let_go(serving, connect, drips):
    service = serving(limits=StreamLimits(idle=60, header=0.3))
    wire = connect(service)
    begun = time.monotonic()
    try:
        while drips and time.monotonic() < begun + 20:
            # Something comes again and again, only never a header.
            wire.connection.sendall(struct.pack("<HI", CONFIG_TEXT, 1) + b" ")
            time.sleep(0.02)
    except OSError:
        pass
    else:
        assert not drips
        assert "no header came in 0.3 s" in wire.read().content
        assert wire.read() is None
    assert time.monotonic() < begun + 20


def test_a_scan_may_take_longer_than_its_header(small, serving, connect):
    service = serving(limits=StreamLimits(idle=60, header=0.3))
    wire = connect(service)
    wire.send(HEADER, header_xml(small.scan_of(1).header))
    assert "send these lines" in wire.read().content
    time.sleep(0.5)
    wire.send(HEADER, "again")
    assert "a header already" in wire.read().content


def test_after_half_a_message_nothing_more_is_sent():
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sender, reader = (
        Connection(ours, StreamLimits(idle=0.2)),
        Connection(theirs, StreamLimits(idle=20)),
    )
    with pytest.raises(TimeoutError):
        sender.send(TEXT, "a" * 2**24)
    with pytest.raises(OSError):
        sender.send(CLOSE)
    with pytest.raises(StreamError, match="bytes short of a message"):
        reader.read()
    reader.close()


def test_states_are_for_their_owner_alone(serving, tmp_path):
    serving(folder=tmp_path / "new" / "states")
    assert stat.S_IMODE((tmp_path / "new" / "states").stat().st_mode) == 0o700


def test_what_the_command_writes_is_for_its_owner_alone(tmp_path, monkeypatch):
    from taskuq.cli import service as mrd
    from taskuq.service import _server as opening

    def write(*given, **options):
        (tmp_path / "state").write_text("k-space")
        raise InputError("enough")

    monkeypatch.setattr(opening, "open_chain", write)
    before = os.umask(0o022)
    try:
        with pytest.raises(InputError, match="enough"):
            mrd.serve(tmp_path / "policy.json")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o600


def test_a_service_that_has_stopped_leaves_no_thread_behind(serving):
    # One that still ran while Python ended aborted the process.
    before = set(threading.enumerate())
    service = serving()
    listening = set(threading.enumerate()) - before
    service.stop()

    assert len(listening) == 2
    assert not any(thread.is_alive() for thread in listening)


def test_a_connection_that_cannot_be_taken_keeps_nobody_else_out(serving, connect, monkeypatch):
    service, accept, failed = serving(), socket.socket.accept, []

    def accept_later(listener):
        if not failed:
            failed.append(listener)
            raise OSError(errno.EMFILE, "too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", accept_later)
    # Who waits already takes the first; whoever waits for the second fails once.
    connect(service)
    second = Connection(
        socket.create_connection(("127.0.0.1", service.port)), StreamLimits(idle=20)
    )
    second.send(HEADER, "no header")

    assert "cannot be read" in second.read().content
    assert len(failed) == 1
    second.close()


def test_a_thread_that_cannot_be_started_keeps_nobody_else_out(serving, monkeypatch):
    service, start, failed = serving(), threading.Thread.start, []

    def start_later(thread):
        if not failed:
            failed.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_later)
    for said in (None, "cannot be read"):
        wire = Connection(
            socket.create_connection(("127.0.0.1", service.port)), StreamLimits(idle=20)
        )
        if said is not None:
            wire.send(HEADER, "no header")
        answer = wire.read()
        wire.close()
        assert answer is None if said is None else said in answer.content


def test_those_who_ask_for_health_take_no_more_threads_than_scanners(serving):
    service = serving(limits=StreamLimits(connections=3))
    silent = [socket.create_connection(("127.0.0.1", service.health_port)) for _ in range(20)]
    let_go, until = [], time.monotonic() + 8
    while len(let_go) < 17 and time.monotonic() < until:
        let_go = select.select(silent, [], [], 0.1)[0]
        time.sleep(0.05)
    for one in silent:
        one.close()

    assert len(let_go) == 17


def test_a_failure_of_ours_is_said_before_the_connection_is_closed(small, serving, monkeypatch):
    def fail(session, xml):
        raise ZeroDivisionError

    service = serving()
    monkeypatch.setattr(Session, "_begin", fail)
    wire = Connection(socket.create_connection(("127.0.0.1", service.port)), StreamLimits(idle=20))
    wire.send(HEADER, header_xml(small.scan_of(1).header))

    assert "the service failed (ZeroDivisionError)" in wire.read().content
    assert wire.read() is None
    assert service.counts["failed connections"] == 1
    wire.close()


def test_two_connections_of_one_scan_at_once_leave_one_that_scans(small, serving, monkeypatch):
    service, scan, both = serving(), small.scan_of(1), threading.Barrier(2)
    take_over = service._take_over

    def at_once(header, session):
        take_over(header, session)
        # Whoever would be let go is given time to be overlooked.
        with suppress(threading.BrokenBarrierError):
            both.wait(1)

    monkeypatch.setattr(service, "_take_over", at_once)
    wires = [
        Connection(socket.create_connection(("127.0.0.1", service.port)), StreamLimits(idle=20))
        for _ in range(2)
    ]
    for wire in wires:
        wire.send(HEADER, header_xml(scan.header))
    until = time.monotonic() + 20
    while time.monotonic() < until and [s.header for s in service.sessions] != [scan.header]:
        time.sleep(0.02)
    left = [session.header for session in service.sessions]
    for wire in wires:
        wire.close()

    assert left == [scan.header]
