import json
import re
import shutil
import socket
import struct
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from raising import refused
from taskuq.cli.app import main
from taskuq.service import _mrd as mrd
from taskuq.service._operations import ServeConfig, open_log, read_serve_config
from taskuq.service._replay import _decision, read_mrd, replay_scan
from taskuq.service._server import FAILING

ismrmrd = pytest.importorskip("ismrmrd", reason="the extra mrd is not installed")
HOST, DEPLOY = "127.0.0.1", Path(__file__).parents[2] / "deploy"
GENERATOR = shutil.which("ismrmrd_generate_cartesian_shepp_logan")


def get(service, path="/"):
    try:
        with urllib.request.urlopen(f"http://{HOST}:{service.health_port}{path}") as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_configuration_holds_everything_that_serve_takes(tmp_path):
    deployed = read_serve_config({"policy": DEPLOY / "service.toml"})
    assert deployed.shadow
    assert deployed.geometry.unrecorded == []
    assert mrd.Geometry().unrecorded == ["coils", "matrix", "field_of_view"]
    from inspect import signature

    from taskuq.cli.service import serve

    options = set(signature(serve).parameters)
    names = set(ServeConfig.__dataclass_fields__) - {"geometry"}
    assert options == names | set(mrd.Geometry.__dataclass_fields__)
    path = tmp_path / "service.toml"
    path.write_text('policy = "p.json"\nport = 5\n[geometry]\ncoils = 4\nmatrix = [8, 6]\n')
    config = read_serve_config({"policy": path, "port": 7, "field_of_view": (1.0, 2.0, 3.0)})
    assert (config.policy, config.port, config.host) == (Path("p.json"), 7, HOST)
    assert config.geometry == mrd.Geometry(4, (8, 6), (1.0, 2.0, 3.0))
    for text, code in (("port = 9002", "config.missing"), ('policy = "p"\nprot = 1', "config.key"),
                       ('policy = "p"\nport = -1', "value.invalid")):  # fmt: skip
        path.write_text(text)
        with refused(code):
            read_serve_config({"policy": path})


def test_log_is_json_lines_without_patients(small, serving, tmp_path):
    logger = open_log(tmp_path / "service.log", "info")
    service = serving()
    service.logger = logger
    scan = small.scan_of(7)
    replay_scan(scan, HOST, service.port)
    service.log("debug", "not logged")
    lines = [json.loads(line) for line in (tmp_path / "service.log").read_text().splitlines()]
    assert {"scan", "decision"} <= {line["event"] for line in lines}
    assert {line["level"] for line in lines} == {"info"}
    text = (tmp_path / "service.log").read_text()
    assert scan.header.scan_id not in text
    assert scan.header.patient not in text
    for handler in logger.handlers:
        handler.close()


def test_health_is_degraded_by_a_fault_and_failing_after_several(small, serving, connect):
    def fail(measurement, **options):
        raise ZeroDivisionError

    service = serving()
    status, text = get(service)
    found = json.loads(text)
    assert (status, found["status"]) == (200, "ready")
    assert found["policy"] == service.model.policy.fingerprint
    assert re.match(r"\d+\.\d+", found["version"])
    service.note_outcome(False)
    assert json.loads(get(service)[1])["status"] == "degraded"
    broken = serving(recover=fail, folder=service.model.folder / "broken")
    wire = connect(broken)
    small.begin(wire, small.scan_of(1), small.COLUMNS[0])
    small.heard(wire)
    assert broken.counts["faults"] == FAILING
    status, text = get(broken)
    assert (status, json.loads(text)["status"]) == (503, "failing")


def test_metrics_are_read_by_the_official_parser(small, serving):
    parser = pytest.importorskip("prometheus_client.parser", reason="the extra mrd is incomplete")
    service = serving()
    played = replay_scan(small.scan_of(1), HOST, service.port)
    status, text = get(service, "/metrics")
    families = {f.name: f for f in parser.text_string_to_metric_families(text)}
    assert status == 200
    samples = {(s.name, *s.labels.values()): s.value for f in families.values() for s in f.samples}
    assert samples["taskuq_scans_total",] == 1
    assert samples["taskuq_decisions_total", "stop"] == service.counts["stops"] == 3
    assert samples["taskuq_decision_seconds_count",] == len(played.latencies)
    assert samples["taskuq_ready",] == samples["taskuq_guarantee",] == 1
    assert families["taskuq_decision_seconds"].type == "histogram"


def test_systemd_accepts_the_unit(tmp_path):
    if (analyze := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd is not installed")
    unit = str(DEPLOY / "taskuq.service")
    done = subprocess.run([analyze, "verify", "--man=no", unit], capture_output=True, text=True)
    if "Failed to initialize manager" in done.stderr:
        pytest.skip("systemd cannot verify units here")
    assert (done.returncode, done.stderr) == (0, "")


TEXT_IN = {"en": str}
LABEL = {
    "general": {
        "name": TEXT_IN, "version": str, "vendor": str, "information": TEXT_IN, "id": str,
        "regulatory_information": dict.fromkeys(
            ("device_trade_name", "production_identifier", "manufacturer_address", "made_in",
             "manufacture_date", "material_number", "gtin", "udi", "safety_advices",
             "special_operating_instructions", "additional_relevant_information"), str),
    },
    "reconstruction": {
        "transfer_protocol": {"protocol": str, "version": str}, "port": int, "emitter": str,
        "injector": str, "can_process_adjustment_data": bool, "can_use_gpu": bool,
        "min_count_required_gpus": int, "min_required_gpu_memory": int,
        "min_required_memory": int, "min_count_required_cpu_cores": int,
        "content_qualification_type": str,
    },
    "parameters": list,
}  # fmt: skip


def require_shape(value, shape):
    if not isinstance(shape, dict):
        assert type(value) is shape
        return
    assert value.keys() == shape.keys()
    for name, inner in shape.items():
        require_shape(value[name], inner)


def test_openrecon_label_has_the_documented_fields():
    label = json.loads((DEPLOY / "OpenReconLabel.json").read_text())
    require_shape(label, LABEL)
    assert re.fullmatch(r"\d+\.\d+\.\d+", label["general"]["version"])
    assert re.fullmatch(r"[a-z0-9]+", label["general"]["id"])
    assert label["reconstruction"]["emitter"] in ("raw", "image")
    assert label["reconstruction"]["content_qualification_type"] in ("RESEARCH", "PRODUCT")
    for one in label["parameters"]:
        assert re.fullmatch(r"[A-Za-z0-9]+", one["id"])
        kind = {"choice": str, "boolean": bool, "string": str, "int": int, "double": float}
        assert type(one["default"]) is kind[one["type"]]
        require_shape(one["label"], TEXT_IN)
        require_shape(one["information"], TEXT_IN)
        if one["type"] == "choice":
            assert one["default"] in [value["id"] for value in one["values"]]
    with pytest.raises(AssertionError):
        require_shape(label | {"parameter": []}, LABEL)


@pytest.mark.parametrize("given", [True, "true", False, None])
def test_clients_can_turn_on_shadow_mode(small, serving, connect, given):
    scan, wire = small.scan_of(1, slices=1), connect(serving(policy=small.policy(width=0.5)))
    wire.send(mrd.CONFIG_TEXT, json.dumps({"parameters": {"shadow": given}}))
    small.begin(wire, scan, range(small.SIZE))
    (decision, *_), _ = small.heard(wire)
    assert decision["would_stop"] == "true"
    assert decision["shadow"] is (given in (True, "true"))
    assert decision["decision"] == ("continue" if decision["shadow"] else "stop")


def test_long_texts_and_slow_messages_end_the_connection(small, serving, connect):
    service = serving(limits=mrd.StreamLimits(text=1000, grace=0.2, pace=10**6))
    wire = connect(service)
    wire.send(mrd.HEADER, "x" * 1001)
    assert "at most 1000" in wire.read().content
    assert small.ends_undecided(wire)
    service = serving(limits=mrd.StreamLimits(grace=0.3, pace=10**6))
    wire, scan = connect(service), small.scan_of(1, slices=1)
    wire.send(mrd.HEADER, mrd.header_xml(scan.header))
    assert "send these lines" in wire.read().content
    line = small.raw(mrd.ACQUISITION, scan.line(0, 0))
    with pytest.raises(OSError):  # noqa: PT012
        # Bytes keep coming, so that the connection is never idle.
        for k in range(len(line)):
            wire.connection.sendall(line[k : k + 1])
            time.sleep(0.05)
    wire.connection.settimeout(30)


def test_messages_without_lines_are_idle(small, serving, connect):
    service = serving(limits=mrd.StreamLimits(idle=0.5))
    wire, scan = connect(service), small.scan_of(1, slices=1)
    wire.send(mrd.HEADER, mrd.header_xml(scan.header))
    assert "send these lines" in wire.read().content
    with pytest.raises(OSError):  # noqa: PT012
        for _ in range(600):
            wire.send(mrd.CONFIG_TEXT, "still here")
            time.sleep(0.1)


def stock_client(port, xml, lines):
    """Send a scan as clients of the python-ismrmrd-server family do; return images and texts.

    They name a configuration, count a closing zero in texts, send everything, and then read.
    """
    found = []
    with socket.create_connection((HOST, port)) as sock:
        text = xml.encode() + b"\0"
        parts = [struct.pack("<H1024s", 1, b"taskuq"), struct.pack("<HI", 3, len(text)), text]
        for line in lines:
            parts.append(struct.pack("<H", 1008))
            line.serialize_into(lambda part: parts.append(bytes(part)))
        sock.sendall(b"".join(parts) + struct.pack("<H", 4))
        read = sock.makefile("rb").read
        while (kind := struct.unpack("<H", read(2))[0]) != 4:
            if kind == 5:
                found.append(read(struct.unpack("<I", read(4))[0]).decode())
            else:
                found.append(ismrmrd.Image.deserialize_from(read))
    return found


def test_stock_client_is_answered(small, small_policy, serving):
    scan = small.scan_of(3, slices=2)
    lines = [scan.line(k, column) for k in range(2) for column in range(small.SIZE)]
    service = serving()
    found = stock_client(service.port, mrd.header_xml(scan.header), lines)
    images = [_decision(mrd.Message(mrd.IMAGE, one)) for one in found if not isinstance(one, str)]
    for k in range(2):
        mine = [one for one in images if one["slice"] == k]
        alone = small.acquired(small_policy, 3, k).rounds
        assert [one["upper"] for one in mine] == [r.to_dict()["upper"] for r in alone]
    # Of a scan that is refused it hears at once, before all lines are read.
    radial = mrd.header_xml(scan.header).replace("cartesian", "radial")
    (_, image) = stock_client(service.port, radial, lines)
    assert image.meta["taskuq_decision"] == "continue"
    assert "trajectory" in image.meta["taskuq_fault"]


@pytest.mark.skipif(GENERATOR is None, reason="ismrmrd-tools are not installed")
@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("", None, ""),
        ("-O 1", "policy.mismatch", "reconSpace.matrixSize is (8, 16)"),
        ("-r 2", None, "repetition"),
        ("-C", None, "noise"),
        ("-a 2 -w 4", "policy.mismatch", "accelerationFactor.kspace_encoding_step_1 is 2"),
        ("-O 3", "policy.mismatch", "reconSpace.matrixSize is (24, 16)"),
        ("-k", "table.incomplete", "trajectory_dimensions 2"),
        ("coils 3", "policy.mismatch", "receiverChannels is 3"),
        ("matrix 32", "policy.mismatch", "matrixSize.y is 32"),
    ],
)
def test_files_of_the_ismrmrd_generator(small, serving, tmp_path, options, code, words):
    path = tmp_path / "phantom.h5"
    sizes = {"matrix": "16", "coils": "2"}
    if options.partition(" ")[0] in sizes:
        sizes |= [options.split()]
        options = ""
    given = ["-m", sizes["matrix"], "-c", sizes["coils"], *options.split(), "-o", str(path)]
    subprocess.run([GENERATOR, *given], check=True, capture_output=True)
    geometry = mrd.Geometry(2, (16, 16), (300.0, 300.0, 6.0))
    service = serving(geometry=geometry)
    if code is not None:
        with refused(code, words):
            replay_scan(read_mrd(path), HOST, service.port)
        return
    scan = read_mrd(path)
    assert any(words in text for text in scan.skipped) or not words
    assert len(scan.header.scan_id) == 24
    assert read_mrd(path, "MR-7").header.scan_id == "MR-7"
    played = replay_scan(scan, HOST, service.port)
    assert played.decisions[0]["guaranteed"]
    main(["replay", str(path), "--scan-id", "MR-8", "--address", f"{HOST}:{service.port}"])
    assert service.counts["scans"] == 2


def test_ids_with_other_letters_survive(small):
    scan = small.scan_of(1)
    header = type(scan.header)("MR-Größe", "Ärztin", scan.header.shape, 1)
    assert mrd.read_header(mrd.header_xml(header)) == header
