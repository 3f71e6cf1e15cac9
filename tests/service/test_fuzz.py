"""Malformed, truncated and repeated messages never stop a scan and never end the service."""

import socket
import struct

import numpy as np
import pytest

from taskuq.service import _replay as replay
from taskuq.service._mrd import ACQUISITION, HEADER, IMAGE, Connection, StreamLimits, header_xml
from taskuq.service._replay import _StoredScan, replay_scan

pytest.importorskip("ismrmrd", reason="the extra mrd is not installed")
MESSAGES = 2400


def raw(kind, content):
    parts = [struct.pack("<H", kind)]
    content.serialize_into(lambda part: parts.append(bytes(part)))
    return b"".join(parts)


def changed(rng, scan, small):
    """A line with something wrong about it, as it goes over the network."""
    line = scan.line(int(rng.integers(3)), int(rng.integers(small.SIZE)))
    match int(rng.integers(7)):
        case 0:
            line.data[:] = np.nan
        case 1:
            line.idx.kspace_encode_step_1 = int(rng.integers(small.SIZE, 2**16))
        case 2:
            line.idx.slice = int(rng.integers(3, 2**16))
        case 3:
            line.resize(int(rng.integers(0, 40)), int(rng.integers(1, 5)))
        case 4:
            whole = bytearray(raw(ACQUISITION, line))
            whole[int(rng.integers(2, 340))] ^= int(rng.integers(1, 256))
            return bytes(whole)
        case 5:
            whole = raw(ACQUISITION, line)
            return whole[: int(rng.integers(1, len(whole)))]
        case _:
            return rng.bytes(int(rng.integers(1, 60)))
    return raw(ACQUISITION, line)


def test_2400_spoilt_messages_stop_no_scan_and_end_no_service(small, small_policy, serving):
    service = serving(limits=StreamLimits(message=2**20, idle=2.0))
    rng, sent, early = np.random.default_rng(8), 0, []
    while sent < MESSAGES:
        # Of these scans nothing whole is sent beside the first round, so that none may stop.
        scan = small.scan_of(500 + sent)
        wire = Connection(
            socket.create_connection(("127.0.0.1", service.port)), StreamLimits(idle=20)
        )
        try:
            wire.send(HEADER, header_xml(scan.header))
            for _ in range(40):
                wire.connection.sendall(changed(rng, scan, small))
                sent += 1
            wire.connection.shutdown(socket.SHUT_WR)
            while (message := wire.read()) is not None:
                if message.kind == IMAGE:
                    early.append(replay._decision(message))
        except OSError:
            pass
        finally:
            wire.close()

    assert not any(one["would_stop"] == "true" for one in early)
    assert service.health()["status"] == "ready"
    assert "failed connections" not in service.health()["counts"]
    played = replay_scan(small.scan_of(2), "127.0.0.1", service.port)
    for slice_, decision in played.decisions.items():
        assert decision["lower"] == [
            *small.acquired(small_policy, 2, slice_).rounds[-1].to_dict()["lower"]
        ]


def test_nothing_is_told_about_finished_scans_to_whoever_knows_their_names(small, serving):
    service = serving(policy=small.policy(width=0.1), limits=StreamLimits(message=2**20, idle=2.0))
    known = small.scan_of(1)
    played = replay_scan(known, "127.0.0.1", service.port)
    assert any(one["acceleration"] > 1 for one in played.decisions.values())
    rng, told = np.random.default_rng(9), []
    for number in range(20):
        # Whole lines too, of another patient: none of them was stored.
        scan = _StoredScan(known.header, small.scan_of(500 + number).kspace)
        wire = Connection(
            socket.create_connection(("127.0.0.1", service.port)), StreamLimits(idle=20)
        )
        try:
            wire.send(HEADER, header_xml(scan.header))
            for _ in range(40):
                whole = raw(ACQUISITION, scan.line(int(rng.integers(3)), int(rng.integers(16))))
                spoilt = changed(rng, scan, small)
                wire.connection.sendall(spoilt if rng.random() < 0.1 else whole)
            wire.connection.shutdown(socket.SHUT_WR)
            while (message := wire.read()) is not None:
                told += [message] if message.kind == IMAGE else []
        except OSError:
            pass
        finally:
            wire.close()

    assert told == []
    again = replay_scan(known, "127.0.0.1", service.port)
    assert [d["upper"] for d in again.decisions.values()] == [
        d["upper"] for d in played.decisions.values()
    ]
