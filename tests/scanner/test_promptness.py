"""Nothing of a message waits on the wire until the other end has said that it got the last one."""

import socket

import pytest

from taskuq.service._mrd import Connection, StreamLimits
from taskuq.service._server import LOOPBACK


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
        wire = Connection(end, StreamLimits())
        assert wire.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_sockets_that_know_no_delay_are_taken_too():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Connection(ours, StreamLimits()).send(5, "said")
        assert theirs.recv(100).endswith(b"said")
