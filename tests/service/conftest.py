"""Small scanner, its policy, and services on loopback."""

import socket

import pytest


@pytest.fixture(scope="session")
def small():
    import small_scanner

    return small_scanner


@pytest.fixture(scope="session")
def small_policy(small):
    return small.policy()


@pytest.fixture
def serving(small, small_policy, tmp_path):
    from taskuq.service._server import Service
    from taskuq.service._session import ServiceModel

    started = []

    def serve(limits=None, port=0, **options):
        given = {"policy": small_policy, "recover": small.recover, "task": small.task}
        given["geometry"] = small.GEOMETRY
        model = ServiceModel(
            **{**given, "columns": small.COLUMNS, "folder": tmp_path / "states", **options}
        )
        extra = {} if limits is None else {"limits": limits}
        service = Service(model, port=port, health_port=0, **extra)
        service.start()
        started.append(service)
        return service

    yield serve
    for service in started:
        service.stop()


@pytest.fixture
def connect():
    from taskuq.service._mrd import Connection, StreamLimits

    opened = []

    def connection(service):
        opened.append(
            Connection(socket.create_connection(("127.0.0.1", service.port)), StreamLimits())
        )
        return opened[-1]

    yield connection
    for wire in opened:
        wire.close()
