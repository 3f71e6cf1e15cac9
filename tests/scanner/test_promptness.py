"""Nothing of a message waits on the wire until the other end has said that it got the last one."""

import socket

import pytest

from taskuq.runs.mrd.messages import Limits, Wire
from taskuq.runs.mrd.service import LOOPBACK


@pytest.fixture
def ends():
    """Both ends of a TCP connection."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        scanner = socket.create_connection(listener.getsockname())
        service, _ = listener.accept()
        with scanner, service:
            yield scanner, service


def test_both_ends_of_a_connection_send_at_once(ends):
    for end in ends:
        assert not end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        wire = Wire(end, Limits())
        assert wire.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_sockets_that_know_no_delay_are_taken_too():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Wire(ours, Limits()).send(5, "said")
        assert theirs.recv(100).endswith(b"said")
