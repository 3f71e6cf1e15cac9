"""Nothing of a slice that was decided is kept."""

import gc
import mmap
import socket
import threading
import time

import pytest
from benchmarks.scanner import resident, small_chain, small_scan

from taskuq.service._mrd import ACQUISITION, CLOSE, HEADER, Connection, StreamLimits, header_xml
from taskuq.service._replay import replay_scan
from taskuq.service._server import LOOPBACK, Service
from taskuq.service._session import Session, _StreamedSlice

pytest.importorskip("ismrmrd", reason="the extra mrd is not installed")


def kept():
    """How many slices and connections are in memory, and how many threads there are."""
    gc.collect()
    slices = sum(type(one) in (_StreamedSlice, Session) for one in gc.get_objects())
    return slices, threading.active_count()


def let_go():
    """The same once a connection has ended, a moment after its scanner has heard everything."""
    until = time.monotonic() + 20
    while kept()[0] > 0 and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.2)
    return kept()


def test_slices_connections_and_threads_are_let_go(tmp_path):
    service = Service(small_chain(tmp_path), port=0)
    service.start()
    try:
        replay_scan(small_scan(0, slices=4), LOOPBACK, service.port)
        before = let_go()
        assert before[0] == 0
        for number in range(1, 4):
            replay_scan(small_scan(number, slices=4), LOOPBACK, service.port)
        assert let_go() == before
        assert service.counts["stops"] == 16
    finally:
        service.stop()


@pytest.mark.parametrize("how", ["cut off", "failed"])
def test_lines_are_let_go_with_their_connection_without_a_collection(tmp_path, how):
    chain, scan = small_chain(tmp_path), small_scan(0, slices=2)
    if how == "failed":
        (tmp_path / "log.jsonl").write_text("no trail\n")
    service = Service(chain, port=0)
    service.start()
    wire = Connection(socket.create_connection((LOOPBACK, service.port)), StreamLimits(idle=20))
    gc.disable()
    try:
        wire.send(HEADER, header_xml(scan.header))
        for column in chain.columns[0][: 1 if how == "cut off" else None]:
            wire.send(ACQUISITION, scan.line(0, int(column)))
        wire.send(CLOSE)
        said = []
        while (message := wire.read()) is not None:
            said.append(message.content)
        until = time.monotonic() + 20
        while slices_kept() and time.monotonic() < until:
            time.sleep(0.05)
        assert slices_kept() == 0
        assert any("cannot be decided" in one for one in said) == (how == "failed")
    finally:
        gc.enable()
        wire.close()
        service.stop()


def slices_kept():
    return sum(type(one) is _StreamedSlice for one in gc.get_objects())


def test_memory_is_read():
    # A mapping of its own: bytes of the heap may lie where memory was resident before.
    with mmap.mmap(-1, 64 * 2**20) as fresh:
        first = resident()
        fresh.write(b"1" * len(fresh))
        assert resident() - first > 32
