"""What a service cannot work with is refused when it is started, in one sentence."""

import gc
import os
import socket

import pytest

import taskuq as tq
from taskuq.cli.app import main
from taskuq.errors import MachineError

pytest.importorskip("ismrmrd", reason="the extra mrd is not installed")
POSITIVE = {
    "--deadline": ["-1", "0", "nan", "inf"],
    "--connections": ["0", "-3"],
    "--max-message": ["0"],
    "--max-scan": ["-1"],
    "--max-buffer": ["0"],
    "--idle-timeout": ["-1", "nan"],
}


def refused(capsys, *options):
    with pytest.raises(SystemExit) as ended:
        main(["serve", "there-is-no-policy.json", *options])
    assert ended.value.code == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1
    return said


@pytest.mark.parametrize(
    ("option", "value"), [(o, v) for o, each in POSITIVE.items() for v in each]
)
def test_numbers_that_cannot_work_are_refused_at_the_start(capsys, option, value):
    assert f"{option} is {float(value):g}".removesuffix(".0") in refused(
        capsys, f"{option}={value}"
    ).replace(".0;", ";")


@pytest.mark.parametrize("option", ["--port", "--health-port"])
@pytest.mark.parametrize("value", ["99999", "-1"])
def test_a_port_that_there_is_not_is_refused(capsys, option, value):
    said = refused(capsys, f"{option}={value}")
    assert f"{option} is {value}; a port is a number from 0" in said


def test_a_port_that_is_taken_is_named_alone(serving, small):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MachineError, match=rf"port {port} \(.*another service"):
            serving(port=port)


def test_a_cut_monitor_is_begun_anew_and_a_cut_scan_too(small, small_policy, tmp_path):
    (tmp_path / "monitor.json").write_text('{"schema": "taskuq.mon')
    with pytest.raises(tq.InputError, match="truncated; begin a new one"):
        tq.Monitor(small_policy, state=tmp_path / "monitor.json")
    (tmp_path / "a.json").write_text('{"schema": "taskuq.acq')
    with pytest.raises(tq.InputError, match="truncated; start a new scan"):
        small.acquired(small_policy, 1, 0, scan_id="A", state=tmp_path / "a.json")


def test_a_monitor_of_another_policy_is_named_without_half_a_quotation(small, tmp_path):
    path = tmp_path / "monitor.json"
    tq.Monitor(small.policy(width=0.15), state=path).save(path)
    with pytest.raises(tq.InputError, match="is of another policy") as said:
        tq.Monitor(small.policy(), state=path)
    assert "'" not in str(said.value).replace(str(path), "")


def test_the_start_says_shadow_and_which_coils_nobody_knows(small, small_policy, capsys):
    from taskuq.cli.service import _say_terms
    from taskuq.service._session import ServiceModel

    chain = ServiceModel(small_policy, small.recover, small.task, small.COLUMNS, None, shadow=True)
    _say_terms(chain)
    said = capsys.readouterr().err
    assert said.startswith(str(small_policy))
    assert "In shadow: " in said
    assert "does not know the coils" in said


def test_what_is_not_promised_is_said_once_and_without_a_path(capsys, monkeypatch):
    import warnings

    from taskuq.cli import service as interval
    from taskuq.scan._round import void_reason

    monkeypatch.setattr(interval, "show", lambda text: void_reason(["other networks"], depth=1))
    monkeypatch.setattr("taskuq.policy._policy.load_policy", lambda path: None)
    monkeypatch.setattr("taskuq.service._interval.stored_interval", lambda *given: {})
    monkeypatch.setattr("taskuq.service._interval.scan_patient", lambda state: None)
    monkeypatch.setattr("taskuq.service._interval.write_interval", lambda *given, **more: "")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        main(["interval", "a", "b"])
    assert capsys.readouterr().err == "taskuq: nothing is promised: other networks\n"


def test_no_search_for_garbage_looks_at_networks_once_a_service_listens(tmp_path, monkeypatch):
    from taskuq.cli import service as mrd
    from taskuq.service import _server as opening
    from taskuq.service._server import Service

    class Network:
        """Something that was loaded, and that a search would look at."""

    loaded, looked_at = [], []

    def load(*given, **options):
        loaded.append(Network())

    def listen(service):
        looked_at.extend(one for one in gc.get_objects() if one is loaded[0])
        raise tq.InputError("enough")

    monkeypatch.setattr(opening, "open_chain", load)
    monkeypatch.setattr(Service, "start", listen)
    before = os.umask(0o022)
    try:
        with pytest.raises(tq.InputError, match="enough"):
            mrd.serve(tmp_path / "policy.json")
    finally:
        os.umask(before)
        gc.unfreeze()
    # Objects in the permanent generation are not listed.
    assert not looked_at
    assert any(one is loaded[0] for one in gc.get_objects())
