"""The lines of a judgement of samplers: one number for each round or setting, and each sampler."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from taskuq.calibration.units import PolicyUnitName, unit_index
from taskuq.decide.goal import Goal
from taskuq.decide.kinds import PolicyPlan
from taskuq.decide.kinds import Statistic as RiskStatistic
from taskuq.decide.simulation import Simulation, simulate
from taskuq.errors import InputError
from taskuq.evaluation.closed_form import evaluate_exact
from taskuq.evaluation.predictive import crps, outside, over_groups, rank_histogram, unevenness
from taskuq.interval import FloatArray
from taskuq.outputs import TaskOutputs
from taskuq.report.figure import Figure, Series

ALPHA = 0.05
# Error rate and width to stop at.
SETTINGS = ((0.05, 0.1), (0.05, 0.2), (0.1, 0.1), (0.1, 0.2))
# The risk statistics that scans stop by, and what their lines have behind their names.
STATISTICS: dict[RiskStatistic, str] = {"spread": "", "learned": " learned"}
# How far a mean over random splits may stay below its promise by chance, in standard errors.
CHANCE = 3.0

Compared = Literal["difference", "ratio"]
COMPARE: dict[Compared, Callable[[FloatArray, FloatArray], FloatArray]] = {
    "difference": lambda mine, other: mine - other,
    "ratio": lambda mine, other: mine / other,
}
# From a sampler's name and sums over groups to one number for each column.
Statistic = Callable[[str, FloatArray], FloatArray]
Line = dict[str, Any]
# What one sampler has in a line: value, error, against, against_error, and slack.
Entry = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Stored:
    """What is known of one sampler.

    Arguments:
        tables: Task outputs by task network.
        pixels: Arrays of ``pixels.npz``; none for a sampler whose tables are all there is.
        cost: What drawing took, if it is known.
    """

    tables: Mapping[str, TaskOutputs]
    pixels: Mapping[str, NDArray[Any]] | None = None
    cost: Mapping[str, Any] | None = None


class Lines:
    """Computes the lines, one after the other.

    Arguments:
        samplers: What is known of each, for the same cases.
        reference: The sampler that the others are compared with; none where None.
        first: A table of these cases.
        trials: Random splits for each stopping rule.
        seed: Where they come from.

    Attributes:
        histograms: Shares of ranks by what is ranked and by sampler, (round, rank); filled while
            the lines are computed.
        index: The group of each case, counted from 0.
    """

    def __init__(
        self,
        samplers: Mapping[str, Stored],
        reference: str | None,
        first: TaskOutputs,
        trials: int,
        seed: int,
    ) -> None:
        self.samplers, self.reference = samplers, reference
        self.trials, self.seed = trials, seed
        self.rounds = [f"R = {R:g}" for R in first.accelerations]
        self.index = unit_index(first.cases, first.group)
        self.units: list[PolicyUnitName] = ["case"] if first.group is None else ["case", "group"]
        self.samples = first.samples
        self.tasks = list(dict.fromkeys(task for one in samplers.values() for task in one.tables))
        self.histograms: dict[str, dict[str, FloatArray]] = {}

    def all(self) -> Iterator[Line]:
        """Yield every line."""
        yield from self._images()
        for task in self.tasks:
            tables = {n: one.tables[task] for n, one in self.samplers.items() if task in one.tables}
            yield from self._outputs(task, tables)
            yield from self._intervals(task, tables)
            for unit in self.units:
                yield from self._scans(task, tables, unit)
        yield from self._costs()

    def figures(self) -> list[Figure]:
        """Rank histograms, one figure for each round and each thing that is ranked."""
        found = []
        for what, of in self.histograms.items():
            for k, name in enumerate(self.rounds):
                ranks = tuple(float(rank) for rank in range(self.samples + 1))
                series = [
                    Series(sampler, ranks, tuple(map(float, shares[k])), style="step")
                    for sampler, shares in of.items()
                ]
                figure = Figure(
                    name=f"ranks-{what}-{name}".replace(" = ", "").replace(" ", "-"),
                    caption=f"How often the truth has each rank among the samples: {what}, {name}.",
                    x_label="samples below the truth",
                    y_label="share",
                    series=tuple(series),
                    reference=(("flat", 1 / (self.samples + 1)),),
                )
                found.append(figure)
        return found

    def _images(self) -> Iterator[Line]:
        seen = {n: one.pixels for n, one in self.samplers.items() if one.pixels is not None}
        if not seen:
            return
        for measure, key in (("psnr", "error"), ("psnr of one", "error_of_one")):
            parts = {n: self._psnr(pixels["peak"], pixels[key]) for n, pixels in seen.items()}
            yield self._line(measure, parts, _mean, "difference")
        parts = {}
        for name, pixels in seen.items():
            squares = np.stack([pixels["variance"], pixels["error"]], axis=1)
            parts[name] = self._sums(squares / np.square(pixels["peak"], dtype=float))
        # The mean of p samples has an error of its own, of one p-th of the variance.
        more = 1 + 1 / self.samples
        yield self._line("spread", parts, lambda _, s: np.sqrt(s[:, 0] / s[:, 1] * more))
        for key in [key for key in next(iter(seen.values())) if key.startswith("ranks_")]:
            counts = {n: np.moveaxis(pixels[key], 2, 1) for n, pixels in seen.items()}
            yield self._ranks(f"blocks of {key.removeprefix('ranks_')}", counts, None)

    def _psnr(self, peak: FloatArray, error: FloatArray) -> FloatArray:
        """PSNR of each group as one volume, and a one, (group, round, 2)."""
        largest = np.zeros(int(self.index.max()) + 1)
        np.maximum.at(largest, self.index, peak.astype(float))
        sums = self._sums(np.stack([error, np.ones_like(error)], axis=1))
        psnr = 10 * np.log10(largest[:, None] ** 2 * sums[:, :, 1] / sums[:, :, 0])
        return np.stack([psnr, np.ones_like(psnr)], axis=2)

    def _outputs(self, task: str, tables: Mapping[str, TaskOutputs]) -> Iterator[Line]:
        scores: tuple[tuple[str, Callable[..., FloatArray], Compared | None], ...] = (
            ("crps", crps, "ratio"),
            ("outside", outside, None),
            ("bias", lambda x, z: x.mean(axis=1) - z, None),
        )
        for measure, score, compared in scores:
            parts = {}
            for name, table in tables.items():
                values = np.array([score(x, z) for x, z in _rounds(table)])
                parts[name] = self._sums(np.stack([values, np.ones_like(values)], axis=1))
            yield self._line(measure, parts, _mean, compared, task)
        counts = {}
        for name, table in tables.items():
            each = [[rank_histogram(x[i : i + 1], z[i : i + 1]) for i in range(len(z))]
                    for x, z in _rounds(table)]  # fmt: skip
            counts[name] = np.moveaxis(np.array(each), 2, 1)
        yield self._ranks("outputs", counts, task)

    def _ranks(self, what: str, counts: Mapping[str, FloatArray], task: str | None) -> Line:
        """How far ranks are from flat; counts are (round, rank, case)."""
        parts = {name: self._sums(of) for name, of in counts.items()}
        shares = {name: of.sum(axis=0) for name, of in parts.items()}
        shares = {name: of / of.sum(axis=1, keepdims=True) for name, of in shares.items()}
        self.histograms[f"{task} {what}" if task else what] = shares

        def uneven(_: str, sums: FloatArray) -> FloatArray:
            return np.array([unevenness(of / of.sum()) for of in sums])

        return self._line(f"ranks of {what}", parts, uneven, None, task)

    def _intervals(self, task: str, tables: Mapping[str, TaskOutputs]) -> Iterator[Line]:
        """Widths and coverage of mLWR, exact over all splits by case."""

        @cache
        def found(name: str, kept: bytes) -> FloatArray:
            chosen, range_ = np.frombuffer(kept)[self.index] > 0, tables[name].task_range
            exact = [
                evaluate_exact(x[chosen], z[chosen], alpha=ALPHA, task_range=range_)
                for x, z in _rounds(tables[name])
            ]
            return np.array([[e.width.mean for e in exact], [e.coverage.mean for e in exact]])

        # What a group adds is its presence: the sum tells who is there.
        present = np.eye(int(self.index.max()) + 1)
        parts = dict.fromkeys(tables, present)

        def width(name: str, kept: FloatArray) -> FloatArray:
            return np.asarray(found(name, kept.tobytes())[0])

        yield self._line("width", parts, width, "ratio", task)
        yield self._mean_width(task, parts, width)
        everyone = np.ones(len(present)).tobytes()
        covered = {name: _entry(found(name, everyone)[1]) for name in tables}
        yield _as_line("coverage of intervals", self.rounds, covered, None, task)

    def _mean_width(self, task: str, parts: Mapping[str, FloatArray], width: Statistic) -> Line:
        """Mean over rounds of widths, and of their ratios to the reference's."""
        entries = {}
        for name, of in parts.items():
            with np.errstate(invalid="ignore"):
                mean = over_groups(lambda kept, n=name: width(n, kept).mean(keepdims=True), of)  # type: ignore[misc]
            entries[name] = _entry(*mean)
            if self.reference in parts:
                value, error = self._against(
                    name, parts, width, lambda a, b: (a / b).mean(keepdims=True)
                )
                entries[name] |= {"against": _list(value), "against_error": _list(error)}
        return _as_line("mean width", ["all R"], entries, "ratio", task)

    def _scans(
        self, task: str, tables: Mapping[str, TaskOutputs], unit: PolicyUnitName
    ) -> Iterator[Line]:
        """Where fixed-width scans stop, and what is covered then, by either statistic."""
        columns = [f"α {a:g}, τ {width:g}" for a, width in SETTINGS]
        for statistic, suffix in STATISTICS.items():
            try:
                found = {n: self._simulated(table, statistic, unit) for n, table in tables.items()}
            except InputError:
                if statistic == "spread":
                    raise
                continue  # too few units to learn from
            rates = {name: _of(of, "mean_acceleration") for name, of in found.items()}
            self._compare(rates)
            yield _as_line(f"mean acceleration{suffix}", columns, rates, "ratio", task, unit)
            covered = {name: _of(of, "coverage") for name, of in found.items()}
            yield _as_line(f"coverage of scans{suffix}", columns, covered, None, task, unit)

    def _simulated(
        self, table: TaskOutputs, statistic: RiskStatistic, unit: PolicyUnitName
    ) -> list[Simulation]:
        """Scans of one sampler at every setting."""
        plans = [
            PolicyPlan("fixed-width", a, Goal(max_width=width), statistic=statistic)
            for a, width in SETTINGS
        ]
        rng = np.random.default_rng(self.seed)
        return simulate(table, plans, trials=self.trials, rng=rng, unit=unit)

    def _costs(self) -> Iterator[Line]:
        costs = {name: one.cost for name, one in self.samplers.items() if one.cost is not None}
        compared: Compared | None
        for measure, compared in (("rejected", None), ("milliseconds", "ratio")):
            entries = {n: _entry(np.array(cost[measure], float)) for n, cost in costs.items()}
            if compared is not None:
                self._compare(entries)
            if entries:
                yield _as_line(measure, self.rounds, entries, compared)

    def _compare(self, entries: dict[str, Entry]) -> None:
        """Add ratios to the reference, whose errors are not known."""
        if self.reference in entries:
            other = np.array(entries[self.reference]["value"], float)
            for one in entries.values():
                one["against"] = _list(np.array(one["value"], float) / other)

    def _line(
        self,
        measure: str,
        parts: Mapping[str, FloatArray],
        statistic: Statistic,
        compared: Compared | None = None,
        task: str | None = None,
    ) -> Line:
        """A line of statistics of sums over groups."""
        entries = {}
        for name, of in parts.items():
            with np.errstate(invalid="ignore"):
                entry = _entry(*over_groups(partial(statistic, name), of))
            if compared is not None and self.reference in parts:
                value, error = self._against(name, parts, statistic, COMPARE[compared])
                entry |= {"against": _list(value), "against_error": _list(error)}
            entries[name] = entry
        return _as_line(measure, self.rounds, entries, compared, task)

    def _against(
        self,
        name: str,
        parts: Mapping[str, FloatArray],
        statistic: Statistic,
        compare: Callable[[FloatArray, FloatArray], FloatArray],
    ) -> tuple[FloatArray, FloatArray]:
        """A comparison with the reference, without the same group on both sides each time."""
        assert self.reference is not None
        other = self.reference
        both = np.stack([parts[name], parts[other]], axis=1)
        with np.errstate(invalid="ignore"):  # infinite widths have no ratio
            return over_groups(
                lambda sums: compare(statistic(name, sums[0]), statistic(other, sums[1])), both
            )

    def _sums(self, values: FloatArray) -> FloatArray:
        """Sums over the cases of each group of (round, number, case): (group, round, number)."""
        sums = np.zeros((int(self.index.max()) + 1, *values.shape[:2]))
        np.add.at(sums, self.index, np.moveaxis(values, 2, 0).astype(float))
        return sums


def _mean(_: str, sums: FloatArray) -> FloatArray:
    return np.asarray(sums[:, 0] / sums[:, 1])


def _rounds(table: TaskOutputs) -> list[tuple[FloatArray, FloatArray]]:
    return [(x, table.targets_at(k)) for k, x in enumerate(table.outputs)]


def _list(values: FloatArray) -> list[float | None]:
    return [v if math.isfinite(v) else None for v in np.asarray(values, float).tolist()]


def _entry(value: FloatArray, error: FloatArray | None = None) -> Entry:
    return {
        "value": _list(value),
        "error": None if error is None else _list(error),
        "against": None,
        "against_error": None,
    }


def _of(found: Sequence[Simulation], name: str) -> Entry:
    """One number of simulations; a promise is not broken by what chance moves means over splits."""
    entry = _entry(
        np.array([getattr(one, name) for one in found]),
        np.array([one.standard_errors[name] for one in found]),
    )
    if name != "coverage":
        return entry  # an acceleration that is aimed at is reached or not
    return entry | {"slack": [CHANCE * one.sd[name] / one.trials**0.5 for one in found]}


def _as_line(
    measure: str,
    columns: Sequence[str],
    entries: Mapping[str, Entry],
    compared: Compared | None,
    task: str | None = None,
    unit: str | None = None,
) -> Line:
    return {
        "measure": measure,
        "task": task,
        "unit": unit,
        "columns": list(columns),
        "compared": compared,
        "samplers": dict(entries),
    }
