"""Who is slow, silent or curious keeps nobody from scanning and reads nothing."""

import os
import socket
import stat
import struct
import threading
import time

import pytest

from taskuq.errors import InputError
from taskuq.runs.mrd.messages import CLOSE, CONFIG_TEXT, HEADER, TEXT, Limits, StreamError, Wire
from taskuq.runs.mrd.replay import header_xml

pytest.importorskip("ismrmrd", reason="the extra mrd is not installed")


@pytest.mark.parametrize("drips", [False, True])
def test_a_connection_that_sends_no_header_is_let_go(serving, connect, drips):
    service = serving(limits=Limits(idle=60, header=0.3))
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
    service = serving(limits=Limits(idle=60, header=0.3))
    wire = connect(service)
    wire.send(HEADER, header_xml(small.scan_of(1).header))
    assert "send these lines" in wire.read().content
    time.sleep(0.5)
    wire.send(HEADER, "again")
    assert "a header already" in wire.read().content


def test_after_half_a_message_nothing_more_is_sent():
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sender, reader = Wire(ours, Limits(idle=0.2)), Wire(theirs, Limits(idle=20))
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
    from taskuq.commands import mrd
    from taskuq.runs import serving as opening

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
