import errno
import os
import select
import socket
import stat
import struct
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

import taskuq as tq
from raising import refused
from taskuq.cli.app import main
from taskuq.errors import InputError, MachineError
from taskuq.experiments._run import open_run, read_run
from taskuq.measure._masks import nested_masks, save_masks
from taskuq.service import _mrd as mrd
from taskuq.service import _replay as replay
from taskuq.service._operations import ServeConfig
from taskuq.service._replay import _StoredScan, replay_scan
from taskuq.service._server import export_service, open_service_model
from taskuq.service._session import Session

pytest.importorskip("ismrmrd", reason="the extra mrd is not installed")


@pytest.mark.parametrize("drips", [False, True])
def test_connection_without_header_is_closed(serving, connect, drips):
    service = serving(limits=mrd.StreamLimits(idle=60, header=0.3))
    wire = connect(service)
    begun = time.monotonic()
    try:
        while drips and time.monotonic() < begun + 300:
            # Something comes again and again, only never a header.
            wire.connection.sendall(struct.pack("<HI", mrd.CONFIG_TEXT, 1) + b" ")
            time.sleep(0.02)
    except OSError:
        pass
    else:
        assert not drips
        assert "no header arrived within 0.3 s" in wire.read().content
        assert wire.read() is None
    assert time.monotonic() < begun + 300


def test_half_a_message_closes_the_connection():
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sender = mrd.Connection(ours, mrd.StreamLimits(idle=0.2))
    reader = mrd.Connection(theirs, mrd.StreamLimits(idle=300, text=2**25))
    with pytest.raises(TimeoutError):
        sender.send(mrd.TEXT, "a" * 2**24)
    with pytest.raises(OSError):
        sender.send(mrd.CLOSE)
    with pytest.raises(mrd.StreamError, match="bytes short of a message"):
        reader.read()
    reader.close()


def test_states_and_service_are_private(serving, tmp_path):
    assert serving(folder=tmp_path / "new" / "states").host == "127.0.0.1"
    assert stat.S_IMODE((tmp_path / "new" / "states").stat().st_mode) == 0o700


def test_files_of_the_command_are_private(tmp_path, monkeypatch):
    from taskuq.cli import service as commands
    from taskuq.service import _server as opening

    def write(*given, **options):
        (tmp_path / "state").write_text("k-space")
        raise InputError("enough", code="value.invalid")

    monkeypatch.setattr(opening, "open_service_model", write)
    before = os.umask(0o022)
    try:
        with refused("value.invalid", "enough"):
            commands.serve(tmp_path / "policy.json")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o600


def test_stopped_service_leaves_no_thread(serving):
    # One that still ran while Python ended aborted the process.
    before = set(threading.enumerate())
    service = serving()
    listening = set(threading.enumerate()) - before
    service.stop()
    assert len(listening) == 2
    assert not any(thread.is_alive() for thread in listening)


def test_failed_accept_ends_no_service(serving, connect, monkeypatch):
    service, accept, failed = serving(), socket.socket.accept, []

    def accept_later(listener):
        if not failed:
            failed.append(listener)
            raise OSError(errno.EMFILE, "too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", accept_later)
    # Who waits already takes the first; whoever waits for the second fails once.
    connect(service)
    second = connect(service)
    second.send(mrd.HEADER, "no header")
    assert "cannot be read" in second.read().content
    assert len(failed) == 1


def test_health_connections_are_limited(serving):
    service = serving(limits=mrd.StreamLimits(connections=3))
    silent = [socket.create_connection(("127.0.0.1", service.health_port)) for _ in range(20)]
    let_go, until = [], time.monotonic() + 300
    while len(let_go) < 17 and time.monotonic() < until:
        let_go = select.select(silent, [], [], 0.1)[0]
        time.sleep(0.05)
    for one in silent:
        one.close()
    assert len(let_go) == 17


def test_internal_failure_is_sent_before_closing(small, serving, connect, monkeypatch):
    def fail(session, xml):
        raise ZeroDivisionError

    service = serving()
    monkeypatch.setattr(Session, "_begin", fail)
    wire = connect(service)
    wire.send(mrd.HEADER, mrd.header_xml(small.scan_of(1).header))
    assert "the service failed (ZeroDivisionError)" in wire.read().content
    assert small.ends_undecided(wire)
    assert service.counts["failed connections"] == 1


def test_second_client_of_a_running_scan_is_refused(small, serving, connect):
    service, scan = serving(limits=mrd.StreamLimits(claim=0.2)), small.scan_of(1)
    first, second = small.begun(connect, service, scan), connect(service)
    second.send(mrd.HEADER, mrd.header_xml(scan.header))
    assert "running on another connection" in second.read().content
    assert small.ends_undecided(second)
    # The first one is not disturbed, and when it has gone its place is free.
    for column in small.COLUMNS[0]:
        first.send(mrd.ACQUISITION, scan.line(0, int(column)))
    assert first.read().kind == mrd.IMAGE
    first.close()
    assert len(replay_scan(scan, HOST, service.port).decisions) == 3


def test_client_that_reconnects_waits_for_its_last_round(small, serving, connect):
    held, scan = small.Held(), small.scan_of(1)
    service = serving(recover=held, limits=mrd.StreamLimits(claim=300))
    lost = small.begun(connect, service, scan, small.COLUMNS[0])
    assert held.computing.wait(300)
    lost.close()
    threading.Timer(0.3, held.go_on.set).start()
    assert len(replay_scan(scan, HOST, service.port).decisions) == 3
    assert not list(service.model.folder.glob(".scan-*.lock"))


HOST, MANY = "127.0.0.1", 100


def many_slices(small, number, slices=MANY):
    one = small.scan_of(number, slices=1)
    name = one.header.patient
    header = mrd.ScanHeader(one.header.scan_id, name, one.header.shape, slices)
    return _StoredScan(header, dict.fromkeys(range(slices), one.kspace[0]))


def all_read(wire, scan):
    wire.send(mrd.HEADER, mrd.header_xml(scan.header))
    while "this header already" not in getattr(wire.read(), "content", ""):
        pass


def test_late_rounds_wait_in_one_thread(small, serving, connect):
    held = small.Held()
    service, scan = serving(recover=held, deadline=0.02), many_slices(small, 1, slices=20)
    before = set(threading.enumerate())
    wire = small.begun(connect, service, scan)
    for slice_ in scan.kspace:
        for column in small.COLUMNS[0]:
            wire.send(mrd.ACQUISITION, scan.line(slice_, int(column)))
    faults = [replay._decision(wire.read())["fault"] for _ in scan.kspace]
    threads = set(threading.enumerate()) - before
    held.go_on.set()
    assert len(threads) <= 3
    assert all("took longer" in one or "still running" in one for one in faults)


def test_header_above_the_limit_is_refused(small, serving, connect):
    service = serving(geometry=mrd.Geometry())
    other = small.scan_of(2, slices=1)
    held = small.begun(connect, service, other)
    large = mrd.ScanHeader("MR-large", "large", (512, 60_000, small.SIZE), 1024)
    wire = connect(service)
    wire.send(mrd.HEADER, mrd.header_xml(large))
    answer = wire.read().content
    assert "3840000 MiB of k-space, the limit is 8192 MiB; raise --max-scan" in answer
    assert small.ends_undecided(wire)
    assert len(replay_scan(small.scan_of(3), HOST, service.port).decisions) == 3
    all_read(held, other)


@pytest.mark.parametrize("unit", ["case", "whole-group"])
def test_slices_above_the_buffer_are_refused(small, serving, connect, unit):
    scan = small.scan_of(1)
    room = scan.header.nbytes - 1 if unit == "whole-group" else scan.header.nbytes // 3 - 1
    wire = connect(
        serving(policy=small.policy(unit, width=0.2), limits=mrd.StreamLimits(buffer=room))
    )
    wire.send(mrd.HEADER, mrd.header_xml(scan.header))
    assert "--max-buffer" in wire.read().content
    assert small.ends_undecided(wire)


def test_full_buffer_closes_one_connection(small, serving, connect):
    slice_ = small.scan_of(1, slices=1).header.nbytes
    service = serving(limits=mrd.StreamLimits(buffer=2 * slice_))
    other, scan = small.scan_of(2, slices=1), many_slices(small, 1)
    held = small.begun(connect, service, other)
    wire = small.begun(connect, service, scan)
    last = int(small.COLUMNS[0][0])
    try:
        for column in [c for c in range(small.SIZE) if c != last]:
            for k in range(3):
                wire.send(mrd.ACQUISITION, scan.line(k, column))
    except OSError:
        pass
    said = wire.read().content
    assert "--max-buffer" in said
    assert small.ends_undecided(wire, slices=scan.header.slices)
    # Slices that are decided make room: many of them are scanned one after another.
    assert len(replay_scan(many_slices(small, 4, slices=5), HOST, service.port).decisions) == 5
    all_read(held, other)


def test_waiting_for_an_answer_is_not_idle(small, serving, connect):
    held, scan = small.Held(), small.scan_of(1, slices=1)
    wire = connect(serving(recover=held, limits=mrd.StreamLimits(idle=1)))
    lines = [small.raw(mrd.ACQUISITION, scan.line(0, int(column))) for column in small.COLUMNS[0]]
    text = mrd.header_xml(scan.header).encode()
    # All at once: nothing but the computation takes time.
    wire.connection.sendall(struct.pack("<HI", mrd.HEADER, len(text)) + text + b"".join(lines))
    assert "send these lines" in wire.read().content
    time.sleep(1.5)
    held.go_on.set()
    assert wire.read().kind == mrd.IMAGE


POSITIVE = {
    "--deadline": ["-1", "0", "nan", "inf"],
    "--connections": ["0", "-3"],
    "--max-message": ["0"],
    "--max-scan": ["-1"],
    "--max-buffer": ["0"],
    "--idle-timeout": ["-1", "nan"],
}
PORTS = {"--port": ["99999", "-1"], "--health-port": ["99999", "-1"]}


@pytest.mark.parametrize(
    ("option", "value"), [(o, v) for o, each in (POSITIVE | PORTS).items() for v in each]
)
def test_invalid_limits_and_ports_are_refused(capsys, option, value):
    with pytest.raises(SystemExit) as ended:
        main(["serve", "there-is-no-policy.json", f"{option}={value}"])
    assert ended.value.code == 2
    (said,) = capsys.readouterr().err.strip().splitlines()
    needed = "[0, 65535]" if option in PORTS else ""
    assert f"{option} must be in {needed}" in said


def test_taken_port_is_named(serving, small):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MachineError, match=f"port {port} "):
            serving(port=port)


RATES = (8.0, 4.0)
RUN = """
subset = "all"
samples = 1
[data]
kind = "atlas"
patients = 2
slices = 1
coils = 2
seed = {seed}
[measure]
accelerations = [8, 4]
path = "{masks}"
[recover]
kind = "varnet"
weights = "varnet-atlas"
[task]
kind = "classifier"
weights = "classifier-atlas"
"""


def masks_file(path, seed, **more):
    masks = nested_masks(128, RATES, seed=seed)
    return save_masks(path, masks, RATES, **more)


def opened(tmp_path, masks, seed=3):
    (tmp_path / "run.toml").write_text(RUN.format(masks=masks, seed=seed))
    return open_run(read_run(tmp_path / "run.toml"), "cpu")


@pytest.fixture
def planned(tmp_path):
    """The masks of a run, and the file of a policy from its table."""
    masks = masks_file(tmp_path / "own.npz", 5)
    run = opened(tmp_path, masks)
    rng = np.random.default_rng(0)
    table = tq.TaskOutputs(
        rng.uniform(size=(2, 20, 1)), rng.uniform(size=20), RATES,
        provenance={"configuration": run.configuration}, task_range=(0, 1),
    )  # fmt: skip
    tq.plan(table, alpha=0.3, max_width=0.5).save(tmp_path / "policy.json")
    return masks, tmp_path / "policy.json"


OWN = {"recover": "varnet-atlas", "task": "classifier-atlas"}


def test_components_of_the_policy_are_served(planned, tmp_path):
    masks, policy = planned
    model = open_service_model(ServeConfig(policy, *OWN.values(), masks, output=tmp_path))
    known = model.policy.provenance["fingerprints"]
    assert model.void is None
    assert model.fingerprints == {name: known[name] for name in ("recover", "task")}


@pytest.mark.parametrize("other", ["other masks", "recover"])
def test_other_components_are_refused(planned, tmp_path, other):
    masks, policy = planned
    recover = "flow-atlas" if other == "recover" else OWN["recover"]
    lines = masks if other == "recover" else tmp_path / "other.npz"
    masks_file(tmp_path / "other.npz", 1)
    what = "recover" if other == "recover" else "masks"
    given = (policy, recover, OWN["task"], lines)
    config = ServeConfig(*given, output=tmp_path)
    with refused("policy.mismatch", f"calibrated with {what} ", "--allow-mismatch"):
        open_service_model(config)
    with refused("policy.mismatch", f"calibrated with {what} ", "--allow-mismatch"):
        export_service(*given, tmp_path, coils=2, height=None)
    with pytest.warns(UserWarning, match=what):
        model = open_service_model(replace(config, allow_mismatch=True))
    assert f"calibrated with {what}" in model.void


@pytest.mark.parametrize(("learned_with", "is_own"), [(3, True), (4, False)])
def test_masks_learned_on_own_cases_are_refused(tmp_path, learned_with, is_own):
    about = opened(tmp_path, masks_file(tmp_path / "plain.npz", 0), seed=learned_with)
    names = [str(item.case) for item in about.images]
    made = {"configuration": about.configuration, "cases": names[:1]}
    learned = masks_file(tmp_path / "learned.npz", 0, provenance=made)
    if not is_own:
        assert opened(tmp_path, learned).masks.shape == (2, 128)
        return
    with refused("data.leak"):
        opened(tmp_path, learned)
