"""Malformed messages stop no scan and end no service."""

import socket
import struct
from contextlib import suppress

import numpy as np
import pytest

from taskuq.service import _replay as replay
from taskuq.service._mrd import ACQUISITION, HEADER, IMAGE, StreamLimits, header_xml
from taskuq.service._replay import replay_scan

pytest.importorskip("ismrmrd", reason="the extra mrd is not installed")
MESSAGES = 2400


def changed(rng, scan, small):
    """A line with something wrong about it, as it goes over the network."""
    line = scan.line(int(rng.integers(3)), int(rng.integers(small.SIZE)))
    match int(rng.integers(11)):
        case 0:
            line.data[:] = np.nan
        case 1:
            line.idx.kspace_encode_step_1 = int(rng.integers(small.SIZE, 2**16))
        case 2:
            line.idx.slice = int(rng.integers(3, 2**16))
        case 3:
            line.resize(int(rng.integers(0, 40)), int(rng.integers(1, 5)))
        case 4:
            whole = bytearray(small.raw(ACQUISITION, line))
            whole[int(rng.integers(2, 340))] ^= int(rng.integers(1, 256))
            return bytes(whole)
        case 5:
            whole = small.raw(ACQUISITION, line)
            return whole[: int(rng.integers(1, len(whole)))]
        case 6:
            line.resize(int(rng.choice([8, 15, 24, 32, 64])), 2, int(rng.integers(2)))
            line.center_sample = int(rng.integers(64))
        case 7:
            line.discard_pre, line.discard_post = (int(k) for k in rng.integers(1, 9, 2))
        case 8:
            line.encoding_space_ref = int(rng.integers(1, 9))
        case 9:
            xml = header_xml(scan.header)
            name = str(rng.choice(["matrixSize", "trajectory", "encodedSpace", "maximum", "x"]))
            other = xml.replace(f"{name}>", f"{name}{int(rng.integers(9))}>").encode()
            return struct.pack("<HI", HEADER, len(other)) + other
        case _:
            return rng.bytes(int(rng.integers(1, 60)))
    return small.raw(ACQUISITION, line)


def images(wire, header, messages):
    """Send messages, of which none may be valid, and return the images that come back."""
    found = []
    with suppress(OSError):
        wire.send(HEADER, header_xml(header))
        for message in messages:
            wire.connection.sendall(message)
        wire.connection.shutdown(socket.SHUT_WR)
        while (message := wire.read()) is not None:
            found += [message] if message.kind == IMAGE else []
    wire.close()
    undecided = [one for one in found if replay._decision(one)["undecided"]]
    assert all(one.content.meta["taskuq_decision"] == "continue" for one in undecided)
    return [one for one in found if one not in undecided]


def test_2400_malformed_messages_stop_nothing(small, small_policy, serving, connect):
    service = serving(limits=StreamLimits(message=2**20, idle=2.0))
    rng, early = np.random.default_rng(8), []
    for sent in range(0, MESSAGES, 40):
        # Of these scans nothing whole is sent in addition to the first round: none may stop.
        scan = small.scan_of(500 + sent)
        spoilt = [changed(rng, scan, small) for _ in range(40)]
        early += images(connect(service), scan.header, spoilt)
    assert not any(replay._decision(one)["would_stop"] == "true" for one in early)
    assert service.health()["status"] == "ready"
    assert "failed connections" not in service.health()["counts"]
    played = replay_scan(small.scan_of(2), "127.0.0.1", service.port)
    for slice_, decision in played.decisions.items():
        assert decision["lower"] == [
            *small.acquired(small_policy, 2, slice_).rounds[-1].to_dict()["lower"]
        ]
