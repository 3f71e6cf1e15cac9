"""Malformed messages stop no scan and end no service."""

import re
import socket
import struct
from contextlib import suppress

import numpy as np
import pytest

from taskuq.service import _replay as replay
from taskuq.service._mrd import ACQUISITION, CONFIG_TEXT, HEADER, IMAGE, StreamLimits, header_xml
from taskuq.service._replay import replay_scan

pytest.importorskip("ismrmrd", reason="the extra mrd is not installed")
CONNECTIONS, LINES, ENDS = 60, 40, 10


def whole(rng, scan, small):
    """A message of the right length with something wrong about it."""
    line = scan.line(int(rng.integers(3)), int(rng.integers(small.SIZE)))
    match int(rng.integers(11)):
        case 0:
            line.data[:] = np.nan
        case 1:
            line.idx.kspace_encode_step_1 = int(rng.integers(small.SIZE, 2**16))
        case 2:
            line.idx.slice = int(rng.integers(3, 2**16))
        case 3:
            line.resize(int(rng.choice([0, 8, 15, 17, 24, 33, 64])), int(rng.integers(1, 5)))
        case 4:
            # Oversampled, around another centre.
            line.resize(2 * small.SIZE, 2, int(rng.integers(2)))
            line.data[:], line.center_sample = 1, int(rng.choice([0, 8, 15, 17, 31]))
        case 5:
            line.discard_pre, line.discard_post = (int(k) for k in rng.integers(1, 9, 2))
        case 6:
            line.encoding_space_ref = int(rng.integers(1, 9))
        case 7:
            names = ("average", "contrast", "phase", "repetition", "set", "kspace_encode_step_2")
            setattr(line.idx, str(rng.choice(names)), int(rng.integers(1, 2**16)))
        case 8:
            line._head.flags = 1 << int(rng.integers(31, 52))
        case 9:
            line._head.version = int(rng.integers(2, 2**16))
        case _:
            text = rng.bytes(int(rng.integers(1, 60)))
            return struct.pack("<HI", CONFIG_TEXT, len(text)) + text
    return small.raw(ACQUISITION, line)


def last(rng, scan, small):
    """A message that breaks off the stream, or may."""
    line = small.raw(ACQUISITION, scan.line(0, int(rng.integers(small.SIZE))))
    match int(rng.integers(4)):
        case 0:
            flipped = bytearray(line)
            flipped[int(rng.integers(2, 340))] ^= int(rng.integers(1, 256))
            return bytes(flipped)
        case 1:
            return line[: int(rng.integers(1, len(line)))]
        case 2:
            xml = header_xml(scan.header)
            name = str(rng.choice(sorted(set(re.findall(r"<(\w+)>", xml)))))
            other = xml.replace(f"{name}>", f"{name}{int(rng.integers(9))}>").encode()
            return struct.pack("<HI", HEADER, len(other)) + other
        case _:
            return rng.bytes(int(rng.integers(1, 60)))


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


def test_malformed_messages_stop_nothing(small, small_policy, serving, connect):
    service = serving(limits=StreamLimits(message=2**20, idle=2.0))
    rng, early = np.random.default_rng(8), []
    for number in range(CONNECTIONS):
        # Nothing sound is sent of these scans but the header: none may stop.
        scan = small.scan_of(500 + 40 * number)
        spoilt = [whole(rng, scan, small) for _ in range(LINES)]
        ends = [last(rng, scan, small) for _ in range(ENDS)]
        early += images(connect(service), scan.header, spoilt + ends)
    # The first message that breaks off the stream hides the others of its connection.
    assert service.counts["lines"] > 0.8 * CONNECTIONS * LINES
    assert not any(replay._decision(one)["would_stop"] == "true" for one in early)
    assert service.health()["status"] == "ready"
    assert "failed connections" not in service.health()["counts"]
    played = replay_scan(small.scan_of(2), "127.0.0.1", service.port)
    for slice_, decision in played.decisions.items():
        assert decision["lower"] == [
            *small.acquired(small_policy, 2, slice_).rounds[-1].to_dict()["lower"]
        ]
