"""serve, replay, export, interval, monitor, audit."""

from __future__ import annotations

import math
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from taskuq.cli.app import Seed, print_json, print_message, print_result, show_table
from taskuq.errors import InputError
from taskuq.scan._audit import entries_by_scan, read_audit_log
from taskuq.scan._state import format_reason

if TYPE_CHECKING:
    from taskuq.service._session import ServiceModel


def audit(log: Path, *, scan: str | None = None) -> None:
    """Check that an audit trail is whole, and tell what was decided about each scan."""
    lines = read_audit_log(log)
    for name, story in entries_by_scan(lines).items():
        if scan is not None and name != scan:
            continue
        print_result(f"scan {name or '(without a name)'}")
        for line in story:
            both = zip(line["lower"], line["upper"], strict=True)
            # A round that goes on reports nothing: what it would have said is no answer.
            ends = ", ".join(f"[{low}, {high}]" for low, high in both) if line["stop"] else ""
            found = f"; interval {ends}" if ends else ""
            took = f"{1000 * line['latency']:.0f} ms"
            reason = format_reason(line["reason"], shadow=line.get("shadow", False))
            kept = f"; kept in {line['state']}" if line["stop"] and "state" in line else ""
            print_result(f"  {line['time']}  {line['case']}  {reason}{found}; {took}{kept}")
        if any(line.get("shadow") for line in story):
            print_result(
                "  In shadow: decisions were told, and all lines were asked for all the same."
            )
        for void in dict.fromkeys(line["void"] for line in story if line.get("void")):
            print_result(f"  {void}")
    end = lines[-1]["hash"][:16] if lines else "-"
    print_result(f"{log}: {len(lines)} lines, the chain is whole and ends in {end}")


def interval(
    state: Path,
    policy: Path,
    /,
    *,
    case: str | None = None,
    image: Path | None = None,
    other_patient: bool = False,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("interval.json"),
) -> None:
    """Write the interval of a finished scan as JSON, or as a DICOM structured report."""
    from taskuq.policy._policy import load_policy
    from taskuq.service._interval import scan_patient, stored_interval, write_interval

    record = stored_interval(state, load_policy(policy), case)
    patient = None if other_patient else scan_patient(state)
    print_result(str(write_interval(record, output, image, patient=patient)))


def monitor(
    policy: Path,
    table: Path,
    /,
    *,
    delta: float = 0.01,
    audited: bool = False,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("monitor.json"),
) -> None:
    """Look for evidence that new cases are not exchangeable with a policy's calibration cases."""
    from taskuq.policy._policy import load_policy
    from taskuq.scan._monitor import Monitor, monitor_table
    from taskuq.table._table import TaskOutputs

    watch = Monitor(load_policy(policy), delta=delta, state=output)
    before = watch.units
    monitor_table(watch, TaskOutputs.load(table), audited=audited)
    share = len(watch._streams)
    rows = [
        [
            name,
            str(len(stream.values)),
            f"{100 * stream.median_rank:.3g} %" if stream.values else "-",
            f"{stream.evidence[-1] / share:.3g}" if stream.values else "-",
            f"{stream.largest / share:.3g}",
            "yes" if name in watch.alarms else "no",
        ]
        for name, stream in watch._streams.items()
    ]
    title = (
        f"{watch.units - before} new {watch.policy.guarantee.unit}s, {watch.units} in all; evidence"
        f" is shared among {share} statistics, and {1 / watch.delta:g} in one of them withdraws the"
        " promise"
    )
    columns = ["statistic", "seen", "median lies above", "evidence", "largest", "changed"]
    show_table(title, columns, rows)
    print_message(watch.statement)
    print_result(str(watch.save(output)))


# Beyond it no number of seconds, connections or MiB is meant.
MOST = 1e6


def serve(
    policy: Path,
    /,
    *,
    recover: str | None = None,
    task: str | None = None,
    masks: Path | None = None,
    choose: Path | None = None,
    runtime: Path | None = None,
    folder: Path = Path("scans"),
    host: str = "127.0.0.1",
    port: int = 9002,
    health_port: int | None = None,
    shadow: bool = False,
    watch: float | None = None,
    deadline: float | None = None,
    device: str | None = None,
    connections: int = 16,
    message_size: int = 32,
    scan_size: int = 8192,
    kept_size: int = 2048,
    idle: float = 600.0,
    unlike: bool = False,
    seed: Seed = 0,
) -> None:
    """Decide about scans that arrive as MRD streams, until it is stopped."""
    import ismrmrd  # noqa: F401 - said at once where it is not installed

    from taskuq.service._mrd import StreamLimits
    from taskuq.service._server import LOOPBACK, Service, freeze_gc, open_service_model

    _require_positive(
        deadline=deadline, connections=connections, message_size=message_size,
        scan_size=scan_size, kept_size=kept_size, idle=idle,
    )  # fmt: skip
    _require_ports(port=port, health_port=health_port)
    # What is kept is of patients: nobody else on this computer may read it.
    os.umask(0o077)
    chain = open_service_model(
        policy, recover, task, masks, folder, runtime=runtime,
        seed=seed, deadline=deadline, watch=watch, shadow=shadow, device=device,
        choose=choose, unlike=unlike,
    )  # fmt: skip
    limits = StreamLimits(
        message=message_size * 2**20, connections=connections, idle=idle,
        scan=scan_size * 2**20, kept=kept_size * 2**20,
    )  # fmt: skip
    service = Service(chain, host, port, health_port, limits)
    freeze_gc()
    service.start()
    _say_terms(chain)
    if host != LOOPBACK:
        print_message(
            f"Whoever can reach {host} can scan here: put an authenticating proxy before it."
        )
    health = "" if health_port is None else f", health at http://{host}:{service.health_port}/"
    print_message(f"Listening on {host}, port {service.port}{health}; Ctrl-C or SIGTERM ends it.")
    _wait_for_the_end()
    print_message("Stopping: what is being decided is decided first.")
    service.stop()


def _wait_for_the_end() -> None:
    """Wait for SIGTERM or Ctrl-C."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *signal: ended.set())
    with suppress(KeyboardInterrupt):
        ended.wait()


def _say_terms(chain: ServiceModel) -> None:
    if chain.void is None:
        print_message(str(chain.policy))
    if chain.shadow:
        print_message(
            "In shadow: it says what would be decided, and asks for all lines all the same."
        )
    if "fingerprints" not in chain.policy.provenance:
        print_message(
            "The policy does not know its networks and masks: see that these are its own."
        )
    if "coils" not in chain.policy.provenance:
        print_message(
            "The policy does not know the coils of its calibration: see that scans have as many."
        )


def _require_positive(**options: float | None) -> None:
    """Refuse numbers with which nothing could ever be decided, before networks are opened."""
    for name, value in options.items():
        if value is not None and not 0 < value < MOST:
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} is {value}; give a number above 0 and below {MOST:g}")


def _require_ports(**options: int | None) -> None:
    for name, value in options.items():
        if value is not None and not 0 <= value < 2**16:
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} is {value}; a port is a number from 0, any, to 65535")


def export(
    policy: Path,
    /,
    *,
    recover: str,
    task: str,
    masks: Path | None = None,
    coils: int = 8,
    height: int | None = None,
    unlike: bool = False,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("runtime"),
) -> None:
    """Write recovery and task as programs that taskuq serve runs from, without training code."""
    from taskuq.service._server import export as written

    found = written(policy, recover, task, masks, output, coils=coils, height=height, unlike=unlike)
    print_result(str(found))


def replay(
    source: str,
    /,
    *,
    to: str = "127.0.0.1:9002",
    patients: int = 1,
    first: int = 3000,
    coils: int = 8,
    seed: Seed = 1,
    every: float = 0.0,
    json: Annotated[str | None, Parameter(name="--json", allow_leading_hyphen=True)] = None,
) -> None:
    """Play scans against a service as a scanner would, and say what was saved and how long it
    took.
    """
    from taskuq.interval import Interval
    from taskuq.scan._state import format_reason
    from taskuq.service._replay import (
        format_summary,
        read_mrd,
        replay_scan,
        simulate_atlas_scans,
        summary,
    )
    from taskuq.service._server import as_address

    _require_positive(patients=patients, coils=coils)
    if not 0 <= every < math.inf:
        raise InputError(f"--every is {every:g}; give milliseconds, 0 or more")
    host, port = as_address(to)
    if source != "atlas" and not Path(source).is_file():
        raise InputError(f"there is no file {source}; give an MRD file, or 'atlas'")
    scans = (
        simulate_atlas_scans(patients, seed, first, coils)
        if source == "atlas"
        else iter([read_mrd(Path(source))])
    )
    played, width = [], 0
    for scan in scans:
        width = scan.header.shape[2]
        for sentence in scan.left_out:
            print_message(f"{source}: {sentence}")
        played.append(replay_scan(scan, host, port, every=every / 1000, tell=print_message))
        for slice_, one in played[-1].decisions.items():
            ends = Interval(one["lower"], one["upper"])
            said = ", ".join(str(ends[task]) for task in range(len(ends)))
            reason = format_reason(one["reason"], shadow=one["shadow"])
            print_message(f"{scan.header.case(slice_)}: {reason}; {said}")
    found = summary(played, width)
    for sentence in format_summary(found):
        print_message(sentence)
    print_json(found, json)
