"""Test of posterior samples for calibration, and of two tables for exchangeability."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taskuq._arrays import as_ids, as_outputs_and_targets
from taskuq._io import to_json_value
from taskuq.conformal._calibrate import aligned, require_own_targets
from taskuq.conformal._family import mean_and_deviation
from taskuq.conformal._units import UnitName, as_generator, as_unit, unit_index
from taskuq.errors import InputError
from taskuq.interval import FloatArray
from taskuq.table._table import TableLike, TaskOutputs, as_table
from taskuq.table._terminology import count_noun

SCHEMA = "taskuq.diagnose/1"
# Probability that all bars of calibrated samples lie in the band.
BAND = 0.95
# Bars of a histogram, if not given: at most so many, and so many cases or more in each.
MOST_BINS, CASES_PER_BIN = 20, 10


@dataclass(frozen=True)
class Estimate:
    """Statistic, its standard error (NaN for one unit) and its value for calibrated samples."""

    value: float
    se: float
    expected: float | None = None


@dataclass(frozen=True)
class RankBin:
    """Bar of a rank histogram: the cases with ``first`` to ``last`` samples below the truth."""

    first: int
    last: int
    fraction: float
    # The fraction of calibrated samples, and its band.
    expected: float
    low: float
    high: float


@dataclass(frozen=True)
class SampleDiagnosis:
    """Calibration test of the posterior samples of one round, task and class.

    Args:
        acceleration: Acceleration of the round, if given.
        round: Name or acceleration of the round.
        task: Name of the task.
        label: Class; None for the cases of all classes.
        n: Number of cases.
        n_units: Number of groups, or of cases without groups.
        histogram: Histogram of the rank of the truth among the samples, with a 95 % band.
        crps: Mean continuous ranked probability score; smaller is better.
        outside: Fraction of cases whose truth is below or above all samples.
        spread_over_error: RMS spread of the samples over RMS error of their mean; below 1 if the
            samples are under-dispersed.
        bias: Mean over cases of the sample mean minus the truth.
        verdict: 'calibrated' if all bars are in the band; otherwise 'under-dispersed',
            'over-dispersed', 'biased' or 'miscalibrated'.
    """

    acceleration: float | None
    round: str | None
    task: str | None
    label: str | None
    n: int
    n_units: int
    histogram: tuple[RankBin, ...]
    crps: Estimate
    outside: Estimate
    spread_over_error: Estimate
    bias: Estimate
    verdict: str


@dataclass(frozen=True)
class Diagnosis:
    """Calibration tests of posterior samples by round and task: for all cases, then by class."""

    results: tuple[SampleDiagnosis, ...]
    samples: int
    unit: str

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON record of schema ``taskuq.diagnose/1``."""
        head = {"schema": SCHEMA, "samples": self.samples, "unit": self.unit, "band": BAND}
        return {**head, "results": [to_json_value(asdict(result)) for result in self.results]}

    def __str__(self) -> str:
        columns = ("round", "task", "class", "cases", "CRPS", "outside", "spread/error", "bias")
        rows = [[*columns, "samples are"]]
        for r in self.results:
            each = (r.crps, r.outside, r.spread_over_error, r.bias)
            rows.append([
                r.round or "-", r.task or "-", r.label or "all", str(r.n),
                *(f"{e.value:.3g} ± {e.se:.1g}" for e in each), r.verdict,
            ])  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        perfect = f"{2 / (self.samples + 1):.3g} outside, spread/error 1, bias 0"
        return "\n".join([*lines, f"Calibrated: {perfect}. Standard errors over {self.unit}s."])

    __repr__ = __str__


def diagnose(
    outputs: TableLike,
    targets: ArrayLike | None = None,
    *,
    group: ArrayLike | None = None,
    label: ArrayLike | None = None,
    acceleration: float | str | None = None,
    task: str | None = None,
    bins: int | None = None,
) -> Diagnosis:
    r"""Test whether posterior samples are calibrated (simulation-based calibration).

    If the truth and :math:`p` samples are exchangeable, the rank of the truth is uniform on
    :math:`0, \dots, p`. A truth tied with samples counts equally for each possible rank. For
    calibrated samples, all :math:`B` bars of the histogram lie in the band with probability at
    least 0.95: the band of each bar contains a binomial fraction of :math:`n` cases except for two
    tails, each of probability :math:`0.05 / (2B)`. With groups, :math:`n` is Kish's effective size
    :math:`N^2 / \sum_v n_v^2`.

    Further statistics have jackknife standard errors over groups (or cases): the fair CRPS; the
    fraction of truths outside all samples, :math:`2 / (p + 1)` if calibrated; the bias; and

    .. math:: \frac{\text{spread}}{\text{error}} = \sqrt{\frac{(1 + 1/p) \sum_i s_i^2}
        {\sum_i (z_i - \bar z_i)^2}}

    with the unbiased variance :math:`s_i^2` of the samples. The ratio is 1 for calibrated samples.

    Args:
        outputs: Task outputs (case, sample) or (round, case, sample), or a table.
        targets: Targets (case,); omit with a table.
        group: Group of each case.
        label: Class of each case; results are also returned for each class.
        acceleration: Round of a table, by acceleration or name; default: all rounds.
        task: Task of a table; default: all tasks.
        bins: Number of bars; default: up to 20, with at least 10 cases each.

    Returns:
        The results for each round, task and class; ``print`` shows them as a table.

    Raises:
        InputError: If arrays do not fit together, or there is one sample per case.

    Example:
        >>> truth, spread = rng.standard_normal(500), rng.random((500, 1))
        >>> outputs = truth[:, None] + spread * rng.standard_normal((500, 9))  # centred on truth
        >>> diagnose(outputs, truth).results[0].verdict
        'over-dispersed'

    References:
        Talts et al., Validating Bayesian Inference Algorithms with Simulation-Based Calibration,
        2018; Fortin et al., Why Should Ensemble Spread Match the RMSE, J. Hydrometeorol. 2014.
    """
    outputs, targets, group, label = aligned(outputs, targets, group=group, label=label)
    if isinstance(outputs, TaskOutputs):
        require_own_targets(outputs, targets)
        table = outputs if task is None else outputs.select(task=task)
        group = table.group if group is None else group
        label = table.label if label is None else label
        rounds = _table_rounds(table, acceleration)
    else:
        if task is not None or acceleration is not None:
            message = "task= and acceleration= need a table, got arrays; remove them"
            raise InputError(message, code="option.unused")
        rounds = _array_rounds(outputs, targets)
    results: list[SampleDiagnosis] = []
    samples = 0
    for name, x, z in rounds:
        samples, n = x.shape[1], len(z)
        groups = None if group is None else as_ids(group, "group", n)
        labels = None if label is None else as_ids(label, "label", n)
        index = unit_index(n, groups)
        results.append(_diagnose(*name, None, x, z, index, bins))
        for value in () if labels is None else np.unique(labels):
            inside = labels == value
            part = x[inside], z[inside], np.unique(index[inside], return_inverse=True)[1]
            results.append(_diagnose(*name, str(value), *part, bins))
    return Diagnosis(tuple(results), samples, "case" if group is None else "group")


Round = tuple[tuple[float | None, str | None, str | None], FloatArray, FloatArray]


def _table_rounds(table: TaskOutputs, acceleration: float | str | None) -> Iterator[Round]:
    rounds = range(table.rounds) if acceleration is None else [table.round_index(acceleration)]
    for k in rounds:
        R, x, z = float(table.accelerations[k]), table.outputs[k], table.targets_at(k)
        several = x.ndim == 3
        for t, task in enumerate(table.task_names):
            name = None if task == "task" else task
            arrays = (x[..., t], z[..., t]) if several else (x, z)
            yield (None if np.isnan(R) else R, table.round_labels[k], name), *_check(*arrays)


def _array_rounds(outputs: Any, targets: Any) -> Iterator[Round]:
    if targets is None:
        message = "targets are missing; pass outputs and targets, or a table that has both"
        raise InputError(message, code="targets.missing")
    x, z = as_outputs_and_targets(outputs, targets, None)
    for k, of_round in enumerate(x if x.ndim == 3 else x[None]):
        yield (None, f"round {k}" if x.ndim == 3 else None, None), *_check(of_round, z)


def _check(outputs: Any, targets: Any) -> tuple[FloatArray, FloatArray]:
    x, z = as_outputs_and_targets(outputs, targets, None)
    if x.ndim != 2 or x.shape[1] < 2 or len(z) < 1:
        message = f"outputs have shape {x.shape}; pass (case, sample) with at least two samples"
        raise InputError(message, code="samples.mismatch")
    return x.astype(float), z


def _diagnose(
    acceleration: float | None,
    round_: str | None,
    task: str | None,
    label: str | None,
    x: FloatArray,
    z: FloatArray,
    index: NDArray[np.int64],
    bins: int | None,
) -> SampleDiagnosis:
    n, p = x.shape
    sizes = np.bincount(index)
    effective = n**2 // int((sizes**2).sum())
    histogram = _rank_bins(rank_histogram(x, z), effective, bins)
    mean, deviation = mean_and_deviation(x, ddof=1)
    outside = (z < x.min(axis=1)) | (z > x.max(axis=1))
    columns = (np.ones(n), crps(x, z), outside, mean - z, (mean - z) ** 2, deviation**2)
    sums = np.stack([np.bincount(index, weights=c) for c in columns], axis=1)
    score, outside_all, ratio, bias = _jackknife(np.asarray(sums, dtype=float), p)
    return SampleDiagnosis(
        acceleration, round_, task, label, n, len(sizes), histogram, score, outside_all, ratio,
        bias, _verdict(histogram),
    )  # fmt: skip


def _jackknife(sums: FloatArray, p: int) -> list[Estimate]:
    """Return CRPS, outside fraction, spread-error ratio and bias with jackknife standard errors."""

    def statistics(total: FloatArray) -> FloatArray:
        count, score, outside, bias, error, variance = total.T
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.sqrt((1 + 1 / p) * variance / error)
        return np.stack([score / count, outside / count, ratio, bias / count])

    total, units = sums.sum(axis=0), len(sums)
    values, se = statistics(total), np.full(4, np.nan)
    if units > 1:
        se = statistics(total - sums).std(axis=1) * (units - 1) ** 0.5
    expected = (None, 2 / (p + 1), 1.0, 0.0)
    return [Estimate(float(v), float(s), e) for v, s, e in zip(values, se, expected, strict=True)]


def crps(outputs: FloatArray, targets: FloatArray) -> FloatArray:
    """Return the fair continuous ranked probability score of each case; smaller is better."""
    x, z = _check(outputs, targets)
    p = x.shape[1]
    # Of the sorted samples the j-th is larger than j others and smaller than the rest.
    weights = (2 * np.arange(p) + 1 - p) / (p * (p - 1))
    return np.asarray(np.abs(x - z[:, None]).mean(axis=1) - np.sort(x, axis=1) @ weights)


def rank_histogram(outputs: FloatArray, targets: FloatArray) -> FloatArray:
    below = (outputs < targets[:, None]).sum(axis=1)
    ranks = (outputs == targets[:, None]).sum(axis=1) + 1
    change = np.zeros(outputs.shape[1] + 2)
    np.add.at(change, below, 1 / ranks)
    np.add.at(change, below + ranks, -1 / ranks)
    # Differences leave a rounding error.
    return np.asarray(np.maximum(change.cumsum()[:-1], 0) / len(targets))


def _rank_bins(fractions: FloatArray, n: int, bins: int | None) -> tuple[RankBin, ...]:
    """Return histogram bars, each with the band for ``n`` independent calibrated cases."""
    ranks = len(fractions)
    most = min(ranks, MOST_BINS, max(2, n // CASES_PER_BIN))
    if bins is not None and not 2 <= bins <= ranks:
        message = f"bins must be 2 to samples + 1 = {ranks}, got {bins}"
        raise InputError(message, code="value.invalid")
    edges = np.round(np.linspace(0, ranks, (bins or most) + 1)).astype(int)
    expected = np.diff(edges) / ranks
    low, high = binomial_band(n, expected, (1 - BAND) / len(expected))
    values = np.add.reduceat(fractions, edges[:-1])
    return tuple(
        RankBin(int(first), int(end) - 1, *map(float, bar))
        for first, end, *bar in zip(edges[:-1], edges[1:], values, expected, low, high, strict=True)
    )


def binomial_band(n: int, p: FloatArray, alpha: float) -> tuple[FloatArray, FloatArray]:
    """Return limits of a binomial fraction; each tail has probability at most alpha / 2."""
    from scipy.special import bdtr

    # A count at the edge, off by rounding, is inside.
    slack = 1e-9 * n
    ends: NDArray[np.int64] = np.array([
        np.searchsorted(bdtr(np.arange(n + 1), n, float(q)), (alpha / 2, 1 - alpha / 2))
        for q in p
    ])  # fmt: skip
    low, high = ends.T
    return np.asarray((low - slack) / n), np.asarray((np.minimum(high, n) + slack) / n)


def _verdict(histogram: tuple[RankBin, ...]) -> str:
    sides = [int(bar.fraction > bar.high) - int(bar.fraction < bar.low) for bar in histogram]
    if not any(sides):
        return "calibrated"
    first, last = sides[0], sides[-1]
    if first == last and first:
        return "under-dispersed" if first > 0 else "over-dispersed"
    return "biased" if first > 0 or last > 0 else "miscalibrated"


@dataclass(frozen=True)
class ComparedStatistic:
    """Comparison of one statistic between two tables.

    Args:
        name: 'mean' or 'spread' of the samples, or 'error' of their mean.
        round: Name or acceleration of the round.
        task: Name of the task.
        first: Mean over the units of the first table.
        second: Mean over the units of the second table.
        p_value: Exact p-value, not corrected for the other statistics.
        adjusted: P-value corrected for all statistics by Holm's method.
    """

    name: str
    round: str
    task: str | None
    first: float
    second: float
    p_value: float
    adjusted: float


@dataclass(frozen=True)
class Comparison:
    """Result of a test of exchangeability between the units of two tables.

    Args:
        results: Statistics of each round and task, the smallest p-value first.
        unit: Exchangeable unit, 'case' or 'group'.
        n_first: Number of units of the first table.
        n_second: Number of units of the second table.
        permutations: Number of random permutations; None if all were enumerated.
    """

    results: tuple[ComparedStatistic, ...]
    unit: str
    n_first: int
    n_second: int
    permutations: int | None

    @property
    def p_value(self) -> float:
        """P-value of exchangeability: the smallest p-value after Holm's correction."""
        return self.results[0].adjusted

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return dict(to_json_value({"schema": "taskuq.compare/1", **asdict(self)}))

    def __repr__(self) -> str:
        first, second = (count_noun(n, self.unit) for n in (self.n_first, self.n_second))
        lines = [f"{first} and {second}: p-value {self.p_value:.2g} under exchangeability"]
        for r in self.results:
            of = ", ".join(filter(None, (r.name, r.task, r.round)))
            shown = f"{r.first:.4g} and {r.second:.4g}"
            lines.append(f"  {of}: {shown}, p {r.p_value:.2g}, Holm {r.adjusted:.2g}")
        return "\n".join(lines)


def compare(
    first: TableLike,
    second: TableLike,
    *,
    unit: UnitName | None = None,
    permutations: int = 9999,
    seed: int | np.random.Generator = 0,
) -> Comparison:
    r"""Test whether the units of two tables are exchangeable, e.g. those of two scanners.

    Under exchangeability every assignment of the :math:`n + m` units to the tables is equally
    likely. For each statistic, round and task, the units of both tables are ranked. The difference
    :math:`d` between the mean ranks of the tables is compared with :math:`d(\pi_b)`, the
    difference under another assignment :math:`\pi_b`, for :math:`b = 1, \dots, B`:

    .. math:: p = \frac{1 + \#\{b : |d(\pi_b)| \ge |d|\}}{1 + B}

    If there are at most :math:`B` assignments, all are used. The statistics of a case are the mean
    and the spread of its samples and, with targets, the error of this mean; those of a unit are
    their means over its cases. Holm's method corrects for all statistics: in exchangeable tables
    of any size, the p-value is at most :math:`\alpha` with probability at most :math:`\alpha`. A
    large p-value is not evidence of exchangeability, because some differences remain undetected.

    Args:
        first: A table or its path.
        second: A table of other units, with the same rounds, tasks and number of samples.
        unit: Exchangeable unit, 'case' or 'group'; default: 'group' if both tables have groups.
        permutations: Number :math:`B` of random assignments, unless all can be enumerated.
        seed: Integer or Generator for the random assignments.

    Raises:
        InputError: If the tables differ in rounds, tasks or samples.

    Example:
        >>> truth = rng.random(60)
        >>> outputs = truth[:, None] + 0.1 * rng.standard_normal((60, 8))
        >>> a, b = TaskOutputs(outputs[:30], truth[:30]), TaskOutputs(outputs[30:] + 1, truth[30:])
        >>> found = compare(a, b)
        >>> found.p_value < 0.01, found.results[0].name
        (True, 'mean')
    """
    tables = [as_table(one, {}, "compare") for one in (first, second)]
    alike = [(t.round_labels, t.task_names, t.samples) for t in tables]
    if alike[0] != alike[1]:
        message = "the tables differ in rounds, tasks or samples; select the same with .select"
        raise InputError(message, code="samples.mismatch")
    if permutations < 1:
        message = f"permutations must be at least 1, got {permutations}"
        raise InputError(message, code="value.invalid")
    has_groups = all(t.group is not None for t in tables)
    by = as_unit(unit, has_groups=has_groups)
    has_error = all(t.has_targets for t in tables)
    names = _statistic_names(tables[0], has_error)
    parts = [_unit_statistics(t, by.groups(t.group), has_error) for t in tables]
    n, m = (part.shape[1] for part in parts)
    ranks = np.stack([_double_ranks(row) for row in np.concatenate(parts, axis=1)])
    # Whole numbers: ties are exact.
    center = ranks.sum(axis=1)
    observed = np.abs((n + m) * ranks[:, :n].sum(axis=1) - n * center)
    is_all = math.comb(n + m, n) <= permutations
    # A random assignment is one more draw of the same law as the given one.
    count, hits = int(not is_all), np.full(len(ranks), int(not is_all))
    for chosen in _assignments(n, m, None if is_all else permutations, as_generator(seed)):
        drawn = np.abs((n + m) * (ranks @ chosen.T.astype(np.int64)) - n * center[:, None])
        hits += (drawn >= observed[:, None]).sum(axis=1)
        count += len(chosen)
    p_values = hits / count
    adjusted, least = [], 0.0
    for place, k in enumerate(np.argsort(p_values, kind="stable").tolist()):
        least = max(least, min(1.0, (len(ranks) - place) * float(p_values[k])))
        (name, called, task), p = names[k], float(p_values[k])
        a, b = (float(part[k].mean()) for part in parts)
        adjusted.append(ComparedStatistic(name, called, task, a, b, p, least))
    return Comparison(tuple(adjusted), by.counted, n, m, None if is_all else permutations)


def _statistic_names(table: TaskOutputs, has_error: bool) -> list[tuple[str, str, str | None]]:
    found = ["mean", *(["spread"] if table.samples > 1 else []), *(["error"] if has_error else [])]
    tasks = [None if task == "task" else task for task in table.task_names]
    return [(n, called, task) for called in table.round_labels for task in tasks for n in found]


def _unit_statistics(table: TaskOutputs, group: np.ndarray | None, has_error: bool) -> FloatArray:
    """Return each statistic as a mean over the cases of each unit, (statistic, unit)."""
    index, found = unit_index(table.cases, group), []
    for k in range(table.rounds):
        x, z = table.outputs[k].astype(float), table.targets_at(k)
        x, z = x.reshape(*x.shape[:2], -1), z.reshape(len(z), -1)
        for t in range(table.tasks):
            mean, deviation = mean_and_deviation(x[:, :, t])
            found += [mean, *([deviation] if table.samples > 1 else [])]
            found += [np.abs(mean - z[:, t])] if has_error else []
    return np.stack([np.bincount(index, of_case) / np.bincount(index) for of_case in found])


def _double_ranks(values: FloatArray) -> NDArray[np.int64]:
    ordered = np.sort(values)
    return np.searchsorted(ordered, values) + np.searchsorted(ordered, values, side="right") + 1


def _assignments(
    n: int, m: int, count: int | None, rng: np.random.Generator
) -> Iterator[NDArray[np.bool_]]:
    """Yield masks (assignment, unit) of n out of n + m units: all masks, or ``count`` at random."""
    if count is None:
        every = np.array(list(combinations(range(n + m), n)))
        yield (every[:, :, None] == np.arange(n + m)).any(axis=1)
        return
    first = np.arange(n + m) < n
    for start in range(0, count, 1000):
        yield rng.permuted(np.tile(first, (min(1000, count - start), 1)), axis=1)
