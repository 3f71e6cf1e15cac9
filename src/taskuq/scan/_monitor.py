"""Monitor of exchangeability with conformal test martingales."""

from __future__ import annotations

import math
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from taskuq._arrays import as_real_array, require_in_ranges
from taskuq._display import Displayed, Summary, svg
from taskuq._io import complete_record, file_lock, fingerprint, read_json, write_json
from taskuq.conformal._quantiles import exact_alpha
from taskuq.errors import InputError
from taskuq.interval import FloatArray
from taskuq.policy._policy import ERROR, Decision, Policy, monitor_statistics, round_significant
from taskuq.table._table import TaskOutputs

# Bets on the ranks, counted from below and from above. Some pay as a power of the rank: near the
# end ranks are more frequent. Some pay as a power of the distance from the other end, and one pays
# STEP for the last fifth: there they are rarer.
NEAR, FAR, LAST, STEP = (-0.75, -0.4), (1.0, 3.0), 0.2, 0.2
POWERS = np.array([*NEAR, *FAR])
# Shares of the capital, for one direction of counting.
SHARES = np.array([0.03, 0.08, 0.04, 0.04, 0.31])
BETS = 2 * len(SHARES)
# Share of delta of the statistics of location; the others have the rest.
LOCATION, LOCATION_SHARE = "centre", 0.85
# Largest wealth of a bet, so that floats do not overflow.
MOST = 1e100
# Relative margin of the alarm level for rounding.
SLACK = 1e-9


def _betting_payoffs(low: Any, high: Any, units: int) -> FloatArray:
    """Return each bet's payoff on a new unit tied for ranks ``low`` to ``high`` among ``units``."""
    first, last = np.asarray(low)[..., None], np.asarray(high)[..., None]
    # The mean of each power over the ranks 1 to units.
    means = _sums(1 << max(6, (units - 1).bit_length()))[units - 1] / units
    rare = int(LAST * units)
    common = (units - STEP * rare) / (units - rare)

    def paid(worst: np.ndarray) -> FloatArray:
        # All bets fall with the rank: a tie is paid for its last one.
        places = np.where(POWERS < 0, worst, units + 1 - worst) - 0.5
        steps = np.where(worst > units - rare, STEP, common)
        return np.concatenate([places**POWERS / means, steps], axis=-1)

    return np.concatenate([paid(last), paid(units + 1 - first)], axis=-1)


def _unbet_wealth(bet_on: int) -> float:
    return 1 / (1 + 2 * math.log2(bet_on + 1))


def _update_wealth(capital: FloatArray, bet_on: int, low: Any, high: Any, units: int) -> FloatArray:
    woken = (_unbet_wealth(bet_on) - _unbet_wealth(bet_on + 1)) * np.tile(SHARES, 2)
    return np.asarray(np.minimum((capital + woken) * _betting_payoffs(low, high, units), MOST))


def _total_wealth(capital: FloatArray, bet_on: int) -> FloatArray:
    """Return the e-value: the capital of all bets plus the wealth that is not yet bet."""
    return np.asarray(capital.sum(axis=-1) + _unbet_wealth(bet_on))


@lru_cache(maxsize=32)
def _sums(size: int) -> FloatArray:
    return np.cumsum((np.arange(size)[:, None] + 0.5) ** POWERS, axis=0)


SCHEMA = "taskuq.monitor/1"
Names = str | Sequence[str] | None
# Relative difference allowed for a unit that is seen again.
AGREES = 1e-4


@dataclass
class _MartingaleStream:
    """Test martingale of one monitored statistic."""

    calibration: tuple[float, ...]
    units: list[str | None] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    evidence: list[float] = field(default_factory=list)
    _all: list[float] = field(init=False, repr=False)
    _capital: FloatArray = field(init=False, repr=False)
    _value_of: dict[str, float] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._all, self._capital = list(self.calibration), np.zeros(BETS)

    @property
    def largest(self) -> float:
        """Largest evidence so far; 1 at the start."""
        return max(self.evidence, default=1.0)

    @property
    def median_rank(self) -> float:
        """Fraction of calibration units with a value below the median of new units."""
        middle = float(np.median(self.values))
        ends = bisect_left(self.calibration, middle), bisect_right(self.calibration, middle)
        return sum(ends) / 2 / len(self.calibration)

    def add(self, value: float, unit: str | None) -> None:
        """Update the evidence with a new value, then add the value to the reference values."""
        low, high = bisect_left(self._all, value), bisect_right(self._all, value)
        self._all.insert(high, value)
        bet_on, units = len(self.values), len(self._all)
        self._capital = _update_wealth(self._capital, bet_on, low + 1, high + 1, units)
        self.units.append(unit)
        self.values.append(value)
        self.evidence.append(float(_total_wealth(self._capital, bet_on + 1)))
        if unit is not None:
            self._value_of[unit] = value

    def has(self, unit: str | None, value: float) -> bool:
        """Return True if a unit was added before; raise InputError if it had another value."""
        before = None if unit is None else self._value_of.get(unit)
        if before is None:
            return False
        if abs(before - value) > AGREES * (1 + abs(before)):
            text = f"{unit} was seen with {before:g}, got {value:g}; pass unique unit names"
            raise InputError(text, code="table.duplicate")
        return True


@dataclass(repr=False)
class Monitor(Displayed):
    r"""Monitor of exchangeability between new units and the calibration units of a policy.

    First-round statistics of each new unit (the centre and the spread of its outputs, and your own
    statistics) are ranked among those of the calibration units and all earlier new units. For each
    statistic, a conformal test martingale, weighted by its share of delta, bets on these ranks. If
    the units are exchangeable, the probability that any martingale ever reaches :math:`1/\delta` is
    at most :math:`\delta`; at that level the guarantee is withdrawn. No targets are needed, except
    for :meth:`audit`, which bets on the errors of outputs in randomly selected, completed scans.

    Args:
        policy: Policy, which contains the statistics of its calibration units.
        delta: Probability :math:`\delta` of ever raising a false alarm.
        calibration_statistics: Additional statistics of each calibration unit, by name.
        compute_statistics: Function that :func:`taskuq.acquire` uses to compute these statistics,
            by name, from the measurement of a first round; for a group, their mean over cases is
            used.
        state: JSON file of the monitor's state; if it exists, the monitor resumes from it.

    Example:
        >>> from taskuq.policy._plan import plan
        >>> from taskuq.table._examples import SyntheticTable, synthetic_outputs
        >>> table = synthetic_outputs(SyntheticTable(volumes=30), seed=0)
        >>> monitor = Monitor(plan(table, alpha=0.1, max_width=0.2, unit="case"), delta=0.05)
        >>> for outputs in table.outputs[:1, :12].swapaxes(0, 1):
        ...     monitor.update(outputs / 2)  # another contrast halves the outputs
        >>> monitor.alarm
        True
    """

    policy: Policy
    delta: float = 0.01
    calibration_statistics: Mapping[str, Sequence[float]] = field(default_factory=dict)
    compute_statistics: Callable[[Any], Mapping[str, float]] | None = None
    state: str | os.PathLike[str] | None = None
    _streams: dict[str, _MartingaleStream] = field(init=False, repr=False)
    _made_of: dict[str, Any] = field(init=False, repr=False)
    _is_open: bool = field(init=False, repr=False, default=False)
    _lock: Any = field(init=False, repr=False, default_factory=RLock)

    def __post_init__(self) -> None:
        self.delta = float(exact_alpha(self.delta, "delta"))
        if not self.policy.monitor_reference:
            text = "the policy has no statistics of its calibration units; plan again"
            raise InputError(text, code="policy.mismatch")
        if "stratum" in self.policy.provenance:
            text = "the calibration units are of all strata; pass the policy with its strata"
            raise InputError(text, code="policy.mismatch")
        if twice := set(self.policy.monitor_reference) & set(self.calibration_statistics):
            text = f"the policy already has a statistic {min(twice)!r}; rename yours"
            raise InputError(text, code="table.duplicate")
        known = {**self.policy.monitor_reference, **self.calibration_statistics}
        self._streams = {
            name: _MartingaleStream(_sorted(name, values)) for name, values in known.items()
        }
        own = {name: list(map(float, v)) for name, v in self.calibration_statistics.items()}
        policy = fingerprint(self.policy.to_dict())
        self._made_of = {"policy": policy, "reference": fingerprint(own), "delta": self.delta}
        with self._synchronised():
            pass

    def _summary(self) -> Summary:
        rows = [
            (name, str(len(s.values)), f"{self._shares[name] * s.largest:.3g}")
            for name, s in self._streams.items()
        ]
        title = f"Monitor with delta {self.delta:g}"
        columns = ("statistic", f"new {self.policy.guarantee.unit}s", "evidence")
        return Summary(title, rows, self.statement, columns)

    def _picture(self) -> str:
        lines = [np.log10(np.maximum(self._weighted(n), 1e-3)).tolist() for n in self._streams]
        about = "evidence, log10; dashed: its limit"
        return svg(about, lines=filter(len, lines), reference=-math.log10(self.delta))

    @property
    def _is_by_group(self) -> bool:
        return self.policy.guarantee._unit.is_group

    def _is_of(self, policy: Policy) -> bool:
        stratum = policy.provenance.get("stratum")
        if stratum in self.policy.strata:
            return policy.fingerprint == self.policy.for_stratum(stratum).fingerprint
        return policy is self.policy or fingerprint(policy.to_dict()) == self._made_of["policy"]

    @property
    def units(self) -> int:
        """Number of new units, excluding audits."""
        return max(len(s.values) for name, s in self._streams.items() if name not in self._audited)

    @property
    def _audited(self) -> list[str]:
        """Names of the statistics that need targets."""
        return [n for n in self.policy.monitor_reference if n.partition(" of ")[0] == ERROR]

    @cached_property
    def _shares(self) -> dict[str, float]:
        """Share of delta allotted to each statistic, by name."""
        is_location = [name.partition(" of ")[0] == LOCATION for name in self._streams]
        of_each = {True: LOCATION_SHARE, False: 1 - LOCATION_SHARE}
        if all(is_location):
            of_each[True] = 1.0
        return {
            name: of_each[location] / is_location.count(location)
            for name, location in zip(self._streams, is_location, strict=True)
        }

    def _weighted(self, name: str) -> FloatArray:
        """Return the evidence of a statistic after each unit, weighted by its share of delta."""
        return self._shares[name] * np.array(self._streams[name].evidence)

    @property
    def e_value(self) -> float:
        """Largest evidence of any statistic so far, weighted by its share of delta."""
        return max(self._shares[name] * s.largest for name, s in self._streams.items())

    @property
    def alarms(self) -> dict[str, _MartingaleStream]:
        """Martingales whose weighted evidence reached 1 / delta, by name of the statistic."""
        level = (1 + SLACK) / self.delta
        return {n: s for n, s in self._streams.items() if self._shares[n] * s.largest >= level}

    @property
    def alarm_after(self) -> int | None:
        """Number of units, or audits, until the alarm; None if there is no alarm."""
        level = (1 + SLACK) / self.delta
        first = [int(np.argmax(self._weighted(name) >= level)) for name in self.alarms]
        return 1 + min(first) if first else None

    @property
    def alarm(self) -> bool:
        """True if the guarantee is withdrawn."""
        return bool(self.alarms)

    @property
    def statement(self) -> str:
        """Result of the test in one sentence."""
        unit = self.policy.guarantee.unit
        n = len(next(iter(self.policy.monitor_reference.values())))
        if not self.alarm:
            return (
                f"The guarantee stands after {self.units} new {unit}s: the evidence against "
                f"exchangeability with the {n} calibration {unit}s is at most "
                f"{self.e_value:.3g}; evidence of {1 / self.delta:g} would withdraw the guarantee."
            )
        found = [
            f"{name} (median above {100 * s.median_rank:.3g} % of the calibration {unit}s)"
            for name, s in self.alarms.items()
        ]
        return (
            f"The guarantee is withdrawn: the evidence that new {unit}s are not exchangeable with "
            f"the {n} calibration {unit}s is {self.e_value:.3g}; the limit "
            f"of {1 / self.delta:g} was reached at {unit} {self.alarm_after}. What has changed: "
            f"{'; '.join(found)}. Plan again with current {unit}s."
        )

    def update(
        self,
        outputs: ArrayLike,
        *,
        unit: Names = None,
        statistics: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        """Update the evidence with new units.

        Args:
            outputs: As for :meth:`Policy.decide`; only the first round is used. If groups are the
                units, pass the outputs of all cases of one group.
            unit: Name of the unit, or one name per unit; a unit seen before is not counted again.
            statistics: Additional statistics by name, for the unit or for each unit.

        Raises:
            InputError: If outputs or statistics do not fit those of the policy.
        """
        found = self._seen(outputs, None)
        given = dict(statistics or {})
        if given.keys() != self.calibration_statistics.keys():
            own, got = (", ".join(s) or "none" for s in (self.calibration_statistics, given))
            text = f"the monitor has statistics {own}, got {got}; pass {own}"
            raise InputError(text, code="shape.mismatch")
        units = len(next(iter(found.values())))
        for mine, values in given.items():
            each = as_real_array(values, mine, ndim=(0, 1)).astype(float).reshape(-1)
            if len(each) != units:
                text = f"{mine} has {len(each)} numbers for {units} units; pass one per unit"
                raise InputError(text, code="shape.mismatch")
            found[mine] = round_significant(each)
        self._add(found, unit)

    def audit(self, outputs: ArrayLike, targets: ArrayLike, *, unit: Names = None) -> None:
        """Update the evidence with units whose targets are known.

        Select these units at random: those that the policy samples fully are harder than average.

        Args:
            outputs: As for :meth:`update`.
            targets: Targets (case,) or (case, task), or a number for a single case and task.
            unit: Name of the unit, or one name per unit.

        Raises:
            InputError: If outputs or targets do not fit those of the policy.
        """
        found = self._seen(outputs, targets)
        self._add({key: found[key] for key in self._audited}, unit)

    def review(self, decision: Decision) -> Decision:
        """Return the decision unchanged or, after an alarm, a decision to continue the scan.

        Args:
            decision: Decision of the policy.
        """
        if not self.alarm or decision.round == len(self.policy.accelerations):
            return decision
        return replace(
            decision,
            stop=False,
            stops=np.zeros_like(decision.stops),
            reason=f"continue: {self.statement}",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return state and results as JSON values."""
        return {
            "schema": SCHEMA,
            **self._made_of,
            "unit": self.policy.guarantee.unit,
            "units": self.units,
            "evidence": self.e_value,
            "withdrawn": self.alarm,
            "withdrawn_after": self.alarm_after,
            "changed": list(self.alarms),
            "sentence": self.statement,
            "statistics": [
                {
                    "name": name,
                    "calibration_units": len(s.calibration),
                    "median_rank": s.median_rank if s.values else None,
                    "units": s.units,
                    "values": s.values,
                    "evidence": s.evidence,
                }
                for name, s in self._streams.items()
            ],
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write state and results as JSON, and return the path."""
        return write_json(path, self.to_dict(), private=True)

    def _seen(self, outputs: Any, targets: Any) -> dict[str, tuple[float, ...]]:
        x, single = self.policy._check_outputs(outputs)
        if single and self._is_by_group:
            shape = np.shape(outputs)
            text = f"outputs of a group need a case axis, (round, case, sample), got {shape}"
            raise InputError(text, code="shape.axes")
        z = None
        if targets is not None:
            shape = (x.shape[1], x.shape[3])
            z = as_real_array(targets, "targets", ndim=(0, 1, 2)).astype(float)
            if z.size != shape[0] * shape[1]:
                text = f"targets must have shape {shape} (case, task), got {z.size} targets"
                raise InputError(text, code="shape.mismatch")
            z = z.reshape(shape)
            require_in_ranges(z, self.policy.task_ranges, "targets")
        cases = np.arange(x.shape[1])
        index = np.zeros_like(cases) if self._is_by_group else cases
        return monitor_statistics(x[0], index, self.policy.task_names, z)

    def _add(self, found: Mapping[str, Sequence[float]], name: Names) -> None:
        units = len(next(iter(found.values())))
        names: list[str | None] = [None] * units
        if name is not None:
            names = [name] if isinstance(name, str) else list(map(str, name))
        if len(names) != units:
            text = f"{units} units need as many names, got {len(names)}"
            raise InputError(text, code="shape.mismatch")
        with self._synchronised():
            for i, unit in enumerate(names):
                known = [self._streams[key].has(unit, found[key][i]) for key in found]
                if not any(known):
                    for key, values in found.items():
                        self._streams[key].add(values[i], unit)

    @contextmanager
    def _synchronised(self) -> Iterator[None]:
        """Load units stored by other processes on entry; store the units added here on exit."""
        with self._lock:
            if self.state is None or self._is_open:
                yield
                return
            path = Path(self.state)
            with file_lock(path.with_name(f".{path.name}.lock"), wait=True):
                if path.exists():
                    self._catch_up(path)
                before = [len(stream.values) for stream in self._streams.values()]
                self._is_open = True
                try:
                    yield
                finally:
                    self._is_open = False
                if before != [len(stream.values) for stream in self._streams.values()]:
                    self.save(path)

    def _catch_up(self, path: Path) -> None:
        """Add units that other processes stored; raise InputError if another monitor wrote them."""
        record = read_json(path, SCHEMA, remedy="begin a new one")
        for name, mine in self._made_of.items():
            if record.get(name) != mine:
                was, is_ = (str(value)[:16] for value in (record.get(name), mine))
                text = f"{path} belongs to another {name} ({was}, got {is_}); use another file"
                raise InputError(text, code="resume.mismatch")
        with complete_record(path, "monitor", "begin a new one"):
            for one in record["statistics"]:
                stream, units = self._streams[one["name"]], one["units"]
                if units[: len(stream.units)] != stream.units:
                    text = f"{path} lacks units seen before; start a new monitor"
                    raise InputError(text, code="file.damaged")
                fresh = slice(len(stream.units), None)
                for unit, value in zip(units[fresh], one["values"][fresh], strict=True):
                    if not math.isfinite(value):
                        raise ValueError(value)
                    stream.add(float(value), unit)


def _sorted(name: str, values: Sequence[float]) -> tuple[float, ...]:
    each = as_real_array(values, f"calibration {name}", ndim=(1,)).astype(float)
    if not len(each):
        text = f"statistic {name!r} has no calibration unit; pass one number for each"
        raise InputError(text, code="units.few")
    return tuple(sorted(round_significant(each)))


def monitor_table(monitor: Monitor, table: TaskOutputs, *, audited: bool = False) -> None:
    """Update a monitor with all units of a table."""
    mine, theirs = float(monitor.policy.accelerations[0]), float(table.accelerations[0])
    if not np.isnan(theirs) and mine != theirs:
        text = f"the first round of the policy has R = {mine:g}, that of the table {theirs:g}"
        raise InputError(text, code="policy.mismatch")
    if audited and not table.has_targets:
        text = "the table has no targets, which an audit needs"
        raise InputError(text, code="targets.missing")
    named = table.group if monitor._is_by_group else table.case
    if monitor._is_by_group and named is None:
        text = "the units of the policy are groups, but the table has none"
        raise InputError(text, code="groups.missing")
    units = np.arange(table.cases) if named is None else named
    _, first, index = np.unique(units, return_index=True, return_inverse=True)
    reference = monitor.policy.monitor_reference
    seen = monitor_statistics(
        np.asarray(table.outputs)[0].reshape(table.cases, -1, len(table.task_names)),
        index if named is not None else units, table.task_names,
    )  # fmt: skip
    if all(name in reference and sorted(v) == sorted(reference[name]) for name, v in seen.items()):
        text = "the table is the one that the policy was calibrated on; pass new units"
        raise InputError(text, code="policy.mismatch")
    cases = np.argsort(index, kind="stable")
    ends = np.cumsum(np.bincount(index))
    with monitor._synchronised():
        for unit in np.argsort(first):
            members = cases[ends[unit - 1] if unit else 0 : ends[unit]]
            name = None if named is None else str(named[members[0]])
            outputs = table.outputs[:1, members]
            monitor.update(outputs, unit=name)
            if audited:
                monitor.audit(outputs, table.targets_at(0)[members], unit=name)
