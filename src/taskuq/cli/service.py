"""Commands serve, replay, export, interval, monitor and audit."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from taskuq._io import complete_record
from taskuq.cli import app
from taskuq.errors import InputError
from taskuq.scan._audit import backward_times, entries_by_scan, lines_after, read_audit_log
from taskuq.scan._state import format_reason

if TYPE_CHECKING:
    from taskuq.service._session import ServiceModel


@app.command("audit")
def audit(log: Path, *, scan: str | None = None, expect: str | None = None) -> None:
    lines = read_audit_log(log, expect=expect)
    scans = entries_by_scan(lines)
    if scan is not None and scan not in scans:
        raise InputError(f"{log} has no scan {scan!r:.80}; check --scan", code="choice.unknown")
    with complete_record(log, "audit log"):
        _print_scans(scans if scan is None else {scan: scans[scan]})
    for note in backward_times(lines):
        _print_escaped(f"{log}: {note}")
    end = lines[-1]["hash"] if lines else "-"
    since = "" if expect is None else f", {lines_after(lines, expect)} after that of --expect"
    app.print_result(f"{log}: {len(lines)} lines{since}, the hash chain is valid and ends in {end}")


def _print_scans(scans: Mapping[str, list[dict[str, Any]]]) -> None:
    for name, entries in scans.items():
        _print_escaped(f"scan {name or '(unnamed)'}")
        for line in entries:
            both = zip(line["lower"], line["upper"], strict=True)
            ends = ", ".join(f"[{low}, {high}]" for low, high in both)
            # A round that continues reports no interval.
            interval = f"; interval {ends}" if line["stop"] and ends else ""
            state = f"; state {line['state']}" if line["stop"] and "state" in line else ""
            reason = format_reason(line["reason"], shadow=line.get("shadow", False))
            text = f"{reason}{interval}; {1000 * line['latency']:.0f} ms{state}"
            _print_escaped(f"  {line['time']}  {line['case']}  {text}")
        if any(line.get("shadow") for line in entries):
            app.print_result("  Shadow mode: decisions were logged, and all lines were measured.")
        for void in dict.fromkeys(line["void"] for line in entries if line.get("void")):
            _print_escaped(f"  {void}")


def _print_escaped(text: str) -> None:
    """Print text with escaped control characters, because names may contain newlines."""
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    app.print_result("".join(escaped))


@app.command("interval")
def interval(
    state: Path,
    policy: Path,
    /,
    *,
    case: str | None = None,
    image: Path | None = None,
    allow_patient_mismatch: bool = False,
    output: app.Output = Path("interval.json"),
) -> None:
    from taskuq.policy._policy import load_policy
    from taskuq.service._interval import scan_patient, stored_interval, write_interval

    record = stored_interval(state, load_policy(policy), case)
    patient = None if allow_patient_mismatch else scan_patient(state)
    app.print_result(str(write_interval(record, output, image, patient=patient)))


@app.command("monitor")
def monitor(
    policy: Path,
    table: Path,
    /,
    *,
    delta: float = 0.01,
    audited: bool = False,
    output: app.Output = Path("monitor.json"),
) -> None:
    from taskuq.policy._policy import load_policy
    from taskuq.scan._monitor import Monitor, monitor_table
    from taskuq.table._table import TaskOutputs

    test = Monitor(load_policy(policy), delta=delta, state=output)
    before = test.units
    monitor_table(test, TaskOutputs.load(table), audited=audited)
    rows = [
        [
            ("statistic", name),
            ("seen", str(len(stream.values))),
            ("median rank", f"{100 * stream.median_rank:.3g} %" if stream.values else "-"),
            ("evidence", f"{share * stream.evidence[-1]:.3g}" if stream.values else "-"),
            ("largest", f"{share * stream.largest:.3g}"),
            ("changed", "yes" if name in test.alarms else "no"),
        ]
        for name, stream in test._streams.items()
        for share in (test._shares[name],)
    ]
    title = (
        f"{test.units - before} new {test.policy.guarantee.unit}s, {test.units} in all; evidence "
        f"is weighted by each statistic's share of delta; evidence of {1 / test.delta:g} in any "
        "statistic withdraws the guarantee"
    )
    app.show_table(title, rows)
    app.print_message(test.statement)
    app.print_result(str(test.save(output)))


@app.command("serve")
def serve(
    policy: Path,
    /,
    *,
    recover: str | None = None,
    task: str | None = None,
    masks: Path | None = None,
    adaptive: Path | None = None,
    runtime: Path | None = None,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    host: str | None = None,
    port: int | None = None,
    health_port: int | None = None,
    shadow: bool | None = None,
    monitor: float | None = None,
    deadline: float | None = None,
    device: str | None = None,
    connections: int | None = None,
    max_message: int | None = None,
    max_scan: int | None = None,
    max_buffer: int | None = None,
    idle_timeout: float | None = None,
    allow_mismatch: bool | None = None,
    seed: int | None = None,
    log: Path | None = None,
    log_level: str | None = None,
    coils: int | None = None,
    matrix: tuple[int, int] | None = None,
    field_of_view: tuple[float, float, float] | None = None,
    prewhitened: bool | None = None,
) -> None:
    given = {name: value for name, value in locals().items() if value is not None}
    import ismrmrd  # noqa: F401 - fail early if it is not installed

    from taskuq.service._operations import open_log, read_serve_config
    from taskuq.service._server import LOOPBACK, Service, freeze_gc, open_service_model

    config = read_serve_config(given)
    # States hold data of patients: other users of this computer must not read them.
    os.umask(0o077)
    model = open_service_model(config)
    logger = open_log(config.log, config.log_level)
    service = Service(
        model, config.host, config.port, config.health_port, config.limits, logger=logger
    )
    freeze_gc()
    service.start()
    _print_terms(model)
    if config.host != LOOPBACK:
        text = f"Every client that reaches {config.host} is accepted; use a proxy with a login."
        app.print_message(text)
    health = ""
    if config.health_port is not None:
        health = f", health at http://{config.host}:{service.health_port}/"
    place = f"{config.host}, port {service.port}{health}"
    app.print_message(f"Listening on {place}; Ctrl-C or SIGTERM stops the server.")
    service.log("info", "listening", port=service.port, policy=model.policy.fingerprint)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *signal: ended.set())
    with suppress(KeyboardInterrupt):
        ended.wait()
    app.print_message("Stopping after the decisions in progress.")
    service.stop()
    service.log("info", "stopped")


def _print_terms(model: ServiceModel) -> None:
    if model.void is None:
        app.print_message(str(model.policy))
    if model.shadow:
        app.print_message("Shadow mode: decisions are logged, and all lines are requested.")
    if "fingerprints" not in model.policy.provenance:
        app.print_message("The policy does not record its networks and masks: check yours.")


@app.command("export")
def export(
    policy: Path,
    /,
    *,
    recover: str,
    task: str,
    masks: Path | None = None,
    coils: int = 8,
    height: int | None = None,
    allow_mismatch: bool = False,
    output: app.Output = Path("runtime"),
) -> None:
    from taskuq.service._server import export_service

    path = export_service(
        policy, recover, task, masks, output,
        coils=coils, height=height, allow_mismatch=allow_mismatch,
    )  # fmt: skip
    app.print_result(str(path))


@app.command("replay")
def replay(
    source: str,
    /,
    *,
    address: str = "127.0.0.1:9002",
    patients: int = 1,
    first_patient: int = 3000,
    coils: int = 8,
    seed: int = 1,
    tr_ms: float = 0.0,
    scan_id: str | None = None,
    json: app.Json = None,
) -> None:
    from taskuq.interval import Interval
    from taskuq.service import _replay
    from taskuq.service._server import parse_address

    if not 0 <= tr_ms < math.inf:
        raise InputError(f"--tr-ms must be at least 0, got {tr_ms:g}", code="value.invalid")
    host, port = parse_address(address)
    if source == "atlas":
        if scan_id is not None:
            raise InputError("--scan-id is for MRD files, not for atlas", code="option.conflict")
        scans = _replay.simulate_atlas_scans(patients, seed, first_patient, coils)
    elif Path(source).is_file():
        scans = iter([_replay.read_mrd(Path(source), scan_id)])
    else:
        raise InputError(f"{source} does not exist; use an MRD file, or atlas", code="file.missing")
    results, width, log = [], 0, app.print_message
    for scan in scans:
        width = scan.header.shape[2]
        for sentence in scan.skipped:
            log(f"{source}: {sentence}")
        results.append(_replay.replay_scan(scan, host, port, tr=tr_ms / 1000, log=log))
        for slice_, decision in results[-1].decisions.items():
            ends = Interval(decision["lower"], decision["upper"])
            intervals = ", ".join(str(ends[task]) for task in range(len(ends)))
            reason = format_reason(decision["reason"], shadow=decision["shadow"])
            log(f"{scan.header.case(slice_)}: {reason}; {intervals}")
    record = _replay.summarise(results, width)
    log("\n".join(_replay.format_summary(record)))
    # Names of scans and cases may identify patients.
    app.print_json(record, json, private=True)
