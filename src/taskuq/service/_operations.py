"""Configuration, logs and metrics of a service."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from taskuq._config import from_toml_table, read_toml
from taskuq.errors import InputError, import_extra
from taskuq.service._mrd import Geometry, StreamLimits


@dataclass(frozen=True)
class ServeConfig:
    """Settings of taskuq serve; command-line options override those of a file."""

    policy: Path = Path("policy.json")  #: Policy written by taskuq plan.
    recover: str | None = None  #: Recovery network: weights file or bundled name.
    task: str | None = None  #: Task network: weights file or bundled name.
    masks: Path | None = None  #: Mask file written by taskuq masks; default: the paper's.
    adaptive: Path | None = None  #: TOML file of a run; its [adaptive] sets the choice of lines.
    runtime: Path | None = None  #: Folder written by taskuq export; replaces recover and task.
    output: Path = Path("scans")  #: Folder for scan states, audit log and monitor state.
    host: str = "127.0.0.1"  #: Address to listen on.
    port: int = 9002  #: Port to listen on.
    health_port: int | None = None  #: HTTP port for health checks and metrics; default: none.
    shadow: bool = False  #: Log decisions but never stop a scan.
    monitor: float | None = None  #: False-alarm probability of a monitor; default: no monitor.
    deadline: float | None = None  #: Maximum seconds of recovery and task per round; default: none.
    device: str | None = None  #: Device of the networks: cpu, cuda or mps; default: the best.
    connections: int = 16  #: Maximum number of simultaneous connections.
    max_message: int = 32  #: Maximum message size in MiB.
    max_scan: int = 8192  #: Maximum k-space size of a scan in MiB.
    max_buffer: int = 2048  #: Maximum size in MiB of a connection's data that await a decision.
    idle_timeout: float = 600.0  #: Seconds without a k-space line before a connection is closed.
    allow_mismatch: bool = False  #: Accept scans unlike the calibration scans, without a guarantee.
    seed: int = 0  #: Seed of the posterior samples.
    log: Path | None = None  #: File for JSON lines; default: standard error.
    log_level: str = "info"  #: Lowest level to log: debug, info, warning or error.
    geometry: Geometry = field(default_factory=Geometry)  #: Geometry not recorded in the policy.

    def __post_init__(self) -> None:
        limits = ("connections", "max_message", "max_scan", "max_buffer", "idle_timeout")
        for name in (*limits, "deadline"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e6:
                _refuse(name, "in (0, 1e+06)", value)
        for name in ("port", "health_port"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 2**16:
                _refuse(name, "a port", value)
        if self.log_level not in ("debug", "info", "warning", "error"):
            _refuse("log_level", "debug, info, warning or error", self.log_level)

    @property
    def limits(self) -> StreamLimits:
        """Size and time limits for client connections."""
        return StreamLimits(
            message=self.max_message * 2**20,
            connections=self.connections,
            idle=self.idle_timeout,
            scan=self.max_scan * 2**20,
            buffer=self.max_buffer * 2**20,
        )


def read_serve_config(given: Mapping[str, Any]) -> ServeConfig:
    """Combine options with a TOML file's settings, if one is given in place of the policy."""
    options, table = dict(given), dict[str, Any]()
    if Path(options["policy"]).suffix == ".toml":
        table = read_toml(options.pop("policy"))
        if "policy" not in table:
            raise InputError("the configuration needs the key policy", code="config.missing")
    config = from_toml_table(ServeConfig, table)
    names = [one.name for one in fields(Geometry)]
    geometry = {name: options.pop(name) for name in names if name in options}
    return replace(config, **options, geometry=replace(config.geometry, **geometry))


def _refuse(name: str, need: str, value: Any) -> None:
    flag = f"--{name.replace('_', '-')}"
    raise InputError(f"{flag} must be {need}, got {value}", code="value.invalid")


class _JsonLines(logging.Formatter):
    """Log formatter that writes each event as a JSON object: time, level, event and fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a log record as one line of JSON."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname.lower(), "event": record.getMessage()}
        return json.dumps(line | getattr(record, "fields", {}), default=str)


def open_log(path: Path | None, level: str) -> logging.Logger:
    """Return the logger of a service, which writes JSON lines to a file or to standard error."""
    handler = logging.StreamHandler() if path is None else logging.FileHandler(path)
    handler.setFormatter(_JsonLines())
    logger = logging.Logger("taskuq.service", level.upper())
    logger.addHandler(handler)
    return logger


# Upper ends of the buckets of latencies, in seconds.
BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


# Counters of a service by metric and the value of its label.
COUNTERS = {
    "decisions": ("Decisions", "decision", {
        "stop": "stops", "would_stop": "would stop", "continue": "continues",
        "stored": "repeated",
    }),
    "faults": ("Faults, and data that were refused", "kind", {
        "header": "refused scans", "line": "refused lines", "round": "faults",
        "scan": "failed scans", "stream": "ended scans", "connection": "failed connections",
    }),
    "scans": ("Scans begun", None, {"": "scans"}),
    "lines": ("Acquisitions received", None, {"": "lines"}),
}  # fmt: skip


def latency_histogram() -> Any:
    """Return a Prometheus histogram of times from the last line of a round to its decision."""
    Histogram = import_extra("prometheus_client", "taskuq[mrd]").Histogram
    text = "Seconds from the last line of a round to its decision"
    return Histogram("taskuq_decision_seconds", text, buckets=BUCKETS, registry=None)


def metrics(health: Mapping[str, Any], latencies: Any) -> tuple[str, str]:
    """Return the content type and the text of a service's metrics in Prometheus format."""
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    about = {"version": health["version"], "policy": health["policy"]}
    families: list[Any] = [InfoMetricFamily("taskuq", "Version and policy", about)]
    for name, (text, label, of_value) in COUNTERS.items():
        family = CounterMetricFamily(f"taskuq_{name}", text, labels=[label] if label else [])
        for value, counted in of_value.items():
            family.add_metric([value] if label else [], health["counts"].get(counted, 0))
        families.append(family)
    gauges = {
        "ready": ("1 if ready or degraded", health["status"] in ("ready", "degraded")),
        "guarantee": ("0 if the guarantee is withdrawn", health["reason"] is None),
        "connections": ("Open connections", health["connections"]),
        "uptime_seconds": ("Seconds since the start", health["seconds"]),
        "monitor_evidence": ("Evidence of drift (e-value)", health["evidence"]),
    }
    families += [
        GaugeMetricFamily(f"taskuq_{name}", text, value=float(value))
        for name, (text, value) in gauges.items()
        if value is not None
    ]
    collected: Any = SimpleNamespace(collect=lambda: [*families, *latencies.collect()])
    return CONTENT_TYPE_LATEST, generate_latest(collected).decode()
