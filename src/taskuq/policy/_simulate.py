"""Simulation of policies over random splits of a table."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taskuq._arrays import ranges_to_json
from taskuq._display import Displayed, Summary, svg
from taskuq._io import to_json_value
from taskuq.conformal._calibrate import tuning_fraction, tuning_units
from taskuq.conformal._family import SidePerTask
from taskuq.conformal._guarantee import ConditionOn, DeltaScope, Guarantee
from taskuq.conformal._splits import Splits, fold_sizes, splitmix64
from taskuq.conformal._units import (
    PolicyUnitName,
    Unit,
    as_generator,
    choose_units,
    table_contents,
    unit_index,
)
from taskuq.conformal.scores import score_name
from taskuq.errors import GuaranteeWarning, InputError, import_extra
from taskuq.interval import BoolArray, FloatArray
from taskuq.policy._goal import Goal, Goals, make_goals
from taskuq.policy._kinds import Given, PolicyName, PolicySpec, parse_policy
from taskuq.policy._learned import (
    SelfTunedRules,
    evaluate_rules,
    evaluate_tuning_cases,
    round_arrays,
    self_tuned_rules,
)
from taskuq.policy._plan import Setup, policy_condition, policy_unit, require_targets
from taskuq.policy._rules import StoppingStatistics, joint_report
from taskuq.policy._stopping import Calibrator, TuningCases, costs
from taskuq.table._table import (
    PerTask,
    TableFields,
    TableLike,
    TaskOutputs,
    as_table,
    called_rounds,
)
from taskuq.table._terminology import round_label

if TYPE_CHECKING:
    import pandas

# Most replicates; the relative error below which they show what part of their variance is linear.
REPLICATES, CLEAR = 300, 0.25


@dataclass(frozen=True)
class SimulatedStops:
    weight: float
    cost: FloatArray
    covered: FloatArray
    early: FloatArray
    early_covered: FloatArray
    width: FloatArray
    center_error: FloatArray
    worst_error: FloatArray
    worst_groups: FloatArray
    kept: FloatArray
    plain_cost: FloatArray
    cases: FloatArray
    stopped: FloatArray
    stopped_covered: FloatArray
    # Splits in which each case is tested, covered, its cost, early stops and their width.
    by_case: FloatArray


@dataclass(frozen=True)
class StoredScans:
    statistics: StoppingStatistics
    targets: FloatArray
    accelerations: FloatArray
    weight: FloatArray
    group_of_case: NDArray[np.int64]
    unit_of_case: NDArray[np.int64]
    enough: NDArray[np.int64]
    # Group of each case, if all cases of a group stop together.
    together: NDArray[np.int64] | None

    @property
    def cost(self) -> FloatArray:
        return costs(self.accelerations)

    def covered_at(self, thresholds: FloatArray) -> FloatArray:
        """Return the smallest threshold at which each target is covered, (round, case)."""
        found = self.statistics.score.copy()
        for k, row in enumerate(thresholds):
            q = np.broadcast_to(row, found[k].shape)
            cases = np.flatnonzero((found[k] > q) & (q < self.statistics.largest[k]))
            # A window is the same at any threshold, so it has no ties.
            if cases.size and not self.statistics.rounds[k][0].is_risk:
                inside = cases[self._contains(k, cases, q[cases])]
                found[k, inside] = q[inside]
        return found

    def _contains(self, k: int, cases: NDArray[np.int64], at: FloatArray) -> BoolArray:
        inside = [
            e.select(cases).report(at).contains(self.targets[k, cases, t])
            for t, e in enumerate(self.statistics.rounds[k])
        ]
        return np.asarray(np.all(inside, axis=0))

    def covered_weight(self, hit: BoolArray, chosen: BoolArray) -> float:
        """Return the total weight of the chosen units that are covered."""
        if not self.enough.size:
            return float((self.weight * hit)[chosen].sum())
        units = np.unique(self.unit_of_case[chosen])
        return float((np.bincount(self.unit_of_case, weights=hit) >= self.enough)[units].sum())


def simulate_each_split(
    calibrate: Callable[[int], tuple[StoredScans, FloatArray]], splitting: Splits, rounds: int
) -> SimulatedStops:
    sums, by_case = np.zeros((11 + 2 * rounds, splitting.trials)), np.zeros((5, splitting.n_cases))
    for t in range(splitting.trials):
        scans, thresholds = calibrate(t)
        starts = scans.covered_at(thresholds)
        _simulate_split(scans, splitting, thresholds, starts, t, sums, by_case)
    by_round = sums[11 : 11 + rounds], sums[11 + rounds :]
    return SimulatedStops(float(splitting.n_test), *sums[:11], *by_round, by_case)  # type: ignore[call-arg]  # eleven rows


def _simulate_split(
    scans: StoredScans,
    splitting: Splits,
    thresholds: FloatArray,
    covered_from: FloatArray,
    t: int,
    sums: Any,
    by_case: FloatArray,
) -> None:
    chosen = splitting.case_folds(np.array([t]))[0].astype(bool)
    stopped, hit = scans.statistics.outcomes(thresholds, scans.together, covered_from)
    rounds, w = len(thresholds), scans.weight
    worst = np.full(int(scans.group_of_case.max()) + 1, -1.0)
    for k in range(rounds):
        here = np.flatnonzero(chosen & (stopped == k))
        if not here.size:
            continue
        report, z = joint_report(scans.statistics.rounds[k], thresholds[k])[here], scans.targets[k]
        lower, upper = (end.reshape(len(here), -1) for end in (report.lower, report.upper))
        with np.errstate(invalid="ignore"):
            middle = np.where(np.isinf(upper), lower, (lower + upper) / 2)
        center = np.where(np.isinf(lower), upper, middle)
        # Of several tasks, the largest.
        width, error = (upper - lower).max(axis=1), np.abs(z[here] - center).max(axis=1)
        wk, covered = w[here], (w * hit)[here].sum()
        sums[2, t] += wk.sum()
        sums[3, t] += covered
        sums[4, t] += (wk * width).sum()
        sums[5, t] += (wk * error).sum()
        sums[11 + k, t] += wk.sum()
        sums[11 + rounds + k, t] += covered
        by_case[3, here] += 1
        by_case[4, here] += width
        np.maximum.at(worst, scans.group_of_case[here], error)
    cost = scans.cost[stopped]
    by_case[:3] += [chosen, chosen & hit, chosen * cost]
    sums[0, t] = (w * cost)[chosen].sum()
    sums[1, t] = (w * hit)[chosen].sum()
    sums[6, t] = worst[worst >= 0].sum()
    sums[7, t] = (worst >= 0).sum()
    sums[8, t] = scans.covered_weight(hit, chosen)
    sums[9, t] = cost[chosen].sum()
    sums[10, t] = chosen.sum()


# Cost and coverage with parts of the table left out, and the groups that were kept.
_Replicates: TypeAlias = tuple[FloatArray, FloatArray, FloatArray]


def _replicate(
    calibrate: Callable[[int], tuple[StoredScans, FloatArray]],
    splitting: Splits,
    group_of_case: NDArray[np.int64],
    pool: NDArray[np.int64],
) -> _Replicates:
    folds, results = splitting.all_folds, np.empty((2, splitting.trials))
    for b, fold in enumerate(folds):
        scans, thresholds = calibrate(b)
        rest = fold[scans.group_of_case] == 0
        stopped, hit = scans.statistics.outcomes(thresholds, scans.together)
        total = scans.weight[rest].sum()
        results[0, b] = (scans.weight * scans.cost[stopped])[rest].sum() / total
        results[1, b] = scans.covered_weight(hit, rest) / total
    # Tuning cases are kept in every replicate.
    kept = np.ones((splitting.trials, int(group_of_case.max()) + 1))
    kept[:, np.unique(group_of_case[pool])] -= folds
    return results[0], results[1], kept


def _standard_errors(
    parts: Sequence[_Replicates], acceleration: FloatArray, coverage: FloatArray
) -> dict[str, float]:
    # Calibration adapts to what is kept, so that coverage moves in many small steps and little of
    # it is linear, or of second order.
    orders = {"mean_acceleration": 2, "coverage": 3}
    if not parts:
        return dict.fromkeys(orders, math.nan)
    kept = np.concatenate([kept for _, _, kept in parts])
    again = np.concatenate([[1 / cost, covered] for cost, covered, _ in parts], axis=1)
    fraction, errors = float(kept.mean()), {}
    for values, of_splits, name in zip(again, (acceleration, coverage), orders, strict=True):
        variance = _jackknife_variance(values, kept, fraction, orders[name])
        # No variation at all is no evidence of precision: the error is unknown.
        errors[name] = math.sqrt(variance + of_splits.var() / len(of_splits)) or math.nan
    return errors


def _jackknife_variance(
    values: FloatArray, kept: NDArray[np.float64], fraction: float, order: int = 2
) -> float:
    """Return the jackknife estimate of a result's variance over independent tables of this size."""
    B, n = kept.shape
    if B < 2 or n < 2:
        return math.nan
    V = L = float(values.var(ddof=1))
    if math.sqrt(2 * n) / B < CLEAR:
        c = (values - values.mean()) @ (kept - kept.mean(axis=0)) / B
        explained = float(np.square(c).sum()) / (fraction * (1 - fraction))
        L = min(max((n - 1) / n * (explained - (n - 1) * V / B), 0.0), V)
    return fraction / (1 - fraction) * L + fraction**order / (1 - fraction**order) * (V - L)


@dataclass(frozen=True)
class _StopFraction:
    acceleration: float
    fraction: float
    coverage: float


# Fields of a simulation under other keys in stored records.
_KEYS = {
    "splits": "trials",
    "case_mean_acceleration": "mean_acceleration_of_cases",
    "coverage_from_full_scans": "coverage_from_full",
    "early_fraction": "early",
}


@dataclass(frozen=True, repr=False)
class Simulation(Displayed):
    """Result of simulating one policy: means over test cases and over random splits.

    Args:
        policy: Kind of policy.
        score: Score of the policy.
        statistic: Risk statistic of a fixed-width policy.
        budget: For 'fixed-width': fraction of alpha spent on stopping early.
        guaranteed: True if the interval reported when a scan stops has a guarantee.
        alpha: Error rate.
        unit: 'case', 'group', 'whole-group' or 'site'.
        splits: Number of random splits.
        n: Number of units in the table.
        n_calibration: Number of calibration units, including tuning units.
        n_test: Number of test units.
        n_tuning: Number of tuning units.
        coverage_of: Covered unit, in words, e.g. 'a new case'.
        mean_over: Unit over which all other means are taken, in words.
        mean_acceleration: Harmonic mean of the accelerations at which scans stop, with equal
            weight for every group.
        case_mean_acceleration: The same with equal weight for every case.
        coverage: Fraction of units that are covered; a fully sampled case counts as covered.
        case_coverage: Fraction of cases whose reported interval contains the target.
        coverage_from_full_scans: Part of ``case_coverage`` due to fully sampled cases.
        coverage_early: Coverage among the cases that stop early; NaN if none does.
        early_fraction: Fraction of cases that stop early.
        width: Mean width of the intervals of cases that stop early; with several tasks, of the
            widest interval of each case.
        center_error: Mean distance of the target from the centre of these intervals; with several
            tasks, the mean of the largest distance of each case.
        max_center_error: Largest such distance in a group, averaged over groups.
        stops: Fraction and coverage of cases that stop in each round, the full measurement last.
        standard_errors: Standard errors of mean acceleration and coverage; they account for the
            finite table and the finite number of splits.
        sd: Standard deviations over splits of mean acceleration, coverage and width.
        given: 'early' if coverage is guaranteed among the scans that stop early, 'round' if among
            those that stop in each round.
        condition: 'each class' or 'each stratum' if the guarantee holds within each of them.
        class_coverage: For each class: number of cases, measured coverage with a standard error,
            mean acceleration, and mean width of the intervals of cases that stop early.
        site_coverage: The same figures for each site.
    """

    policy: str
    score: str
    statistic: str | None
    budget: float
    guaranteed: bool
    alpha: float
    unit: str
    splits: int
    n: int
    n_calibration: int
    n_test: int
    n_tuning: int
    coverage_of: str
    mean_over: str
    mean_acceleration: float
    case_mean_acceleration: float
    coverage: float
    case_coverage: float
    coverage_from_full_scans: float
    coverage_early: float
    early_fraction: float
    width: float
    center_error: float
    max_center_error: float
    stops: tuple[_StopFraction, ...]
    standard_errors: dict[str, float]
    sd: dict[str, float]
    given: str | None = None
    condition: str | None = None
    class_coverage: tuple[dict[str, Any], ...] = ()
    site_coverage: tuple[dict[str, Any], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values; missing numbers are null."""
        record = {_KEYS.get(name, name): value for name, value in asdict(self).items()}
        return dict(to_json_value(record))

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas DataFrame with one row; ``pandas.concat`` joins several simulations.

        Raises:
            InputError: If pandas is not installed.
        """
        frames = import_extra("pandas", "pandas")
        row = {n: v for n, v in vars(self).items() if not isinstance(v, tuple | dict)}
        errors = {f"{name}_error": error for name, error in self.standard_errors.items()}
        return frames.DataFrame([row | errors])

    def _summary(self) -> Summary:
        guaranteed = "guaranteed" if self.guaranteed else "measured, not guaranteed"
        error = {
            n: f"± {e:.2g}" if e == e else "(± unknown)" for n, e in self.standard_errors.items()
        }
        at = (f"{round_label(s.acceleration)} {s.fraction:.3g}" for s in self.stops)
        title = (
            f"{self.policy}, {self.statistic or self.score}, {guaranteed}: {self.splits} random "
            f"splits by {self.unit}, {self.n_calibration} to calibrate, {self.n_test} to test, "
            f"alpha {self.alpha:g}"
        )
        rows = [
            ("mean R", f"{self.mean_acceleration:.4g}", error["mean_acceleration"]),
            ("coverage", f"{self.coverage:.4g}", error["coverage"]),
            ("early width", f"{self.width:.4g}", ""),
            ("stopped at", ", ".join(at)),
        ]
        return Summary(title, rows)

    def _picture(self) -> str:
        bars = [(0.0, stop.fraction) for stop in self.stops]
        labels = [round_label(stop.acceleration) for stop in self.stops[:-1]]
        return svg("fraction of cases stopped", bars=bars, labels=[*labels, "full"])


def simulate(
    table: TableLike,
    policies: Sequence[PolicyName] = ("fixed-width", "paper:cqr"),
    *,
    alpha: float | None = None,
    max_width: PerTask = None,
    at_least: PerTask = None,
    at_most: PerTask = None,
    side: SidePerTask = None,
    splits: int = 1000,
    seed: int | np.random.Generator = 0,
    unit: PolicyUnitName | None = None,
    cases: float | str = "random",
    delta: float | None = None,
    given: Given | None = None,
    label: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    condition_on: ConditionOn | None = None,
    delta_scope: DeltaScope | None = None,
    tuning_repeats: int = 10,
    task: str | Sequence[str] | None = None,
    **table_kwargs: Unpack[TableFields],
) -> list[Simulation]:
    r"""Simulate stopping policies over random splits of a table.

    In each split, a policy is calibrated on one part of the table. The scan of every case of the
    other part is replayed round by round until the policy stops it in a round :math:`T_i`. The mean
    acceleration of :math:`m` test cases is harmonic:

    .. math:: \bar R = \Big( \frac1m \sum_i \frac{1}{R_{T_i}} \Big)^{-1}

    If groups are the units, every group has equal weight in this mean. Standard errors come from
    a jackknife: up to 300 times, three tenths of the groups (or cases) are left out, and the
    policy is calibrated and evaluated on the rest. They include the Monte Carlo error of the
    finite number of splits. If there are several policies, any with too few units are skipped
    with a warning.

    Args:
        table: Task outputs of all rounds with targets, or arrays as :func:`taskuq.plan` takes them.
        policies: Names such as 'fixed-width:learned' or 'paper:cqr', or :class:`PolicySpec`
            objects.
        alpha: Error rate of the policies given by name.
        max_width: Goal of the policies given by name, as in :func:`taskuq.plan`.
        at_least: Goal, as in :func:`taskuq.plan`.
        at_most: Goal, as in :func:`taskuq.plan`.
        side: Side of the intervals, as in :func:`taskuq.plan`.
        splits: Number of random splits.
        seed: Integer or Generator; policies without a tuning set are compared on the same splits.
        unit: 'case', 'group', 'whole-group' or 'site', as in :func:`taskuq.plan`.
        cases: Cases of a new group that are covered, as in :func:`taskuq.plan`.
        delta: Allowed probability of a lower coverage, as in :func:`taskuq.plan`.
        given: 'early' or 'round', as in :func:`taskuq.plan`; applies to the policies given by
            name that support it.
        label: Class of each case, as in :func:`taskuq.plan`.
        strata: Stratum of each case, as in :func:`taskuq.plan`.
        condition_on: 'case' or 'group', as in :func:`taskuq.plan`.
        delta_scope: 'each' or 'all', as in :func:`taskuq.plan`.
        tuning_repeats: Number of random tuning sets, for policies that need one; results are
            averaged over them.
        task: Names of the tasks whose goals must be reached; default: all tasks.
        table_kwargs: If ``table`` is arrays: ``accelerations`` and other fields of a table.

    Raises:
        InputError: If the table has no targets, no goal is given, or options conflict.

    Example:
        >>> from taskuq.table._examples import SyntheticTable, synthetic_outputs
        >>> table = synthetic_outputs(SyntheticTable(volumes=30), seed=0)
        >>> result, = simulate(
        ...     table, ["fixed-width"], alpha=0.1, max_width=0.2, splits=50, unit="case")
        >>> result.coverage > 0.88, result.mean_acceleration > 8
        (True, True)
    """
    table = as_table(table, table_kwargs, "simulate")
    table = table if task is None else table.select(task=task)
    require_targets(table)
    if not isinstance(splits, int | np.integer) or splits < 1 or tuning_repeats < 1:
        raise InputError("splits and tuning_repeats must be at least 1", code="value.invalid")
    specs = []
    for one in policies:
        if isinstance(one, PolicySpec):
            specs.append(one)
            continue
        if alpha is None:
            raise InputError("policies by name need alpha=", code="option.missing")
        goal = make_goals(max_width, at_least, at_most, side, table.task_names)
        spec = parse_policy(one, PolicySpec("fixed-width", alpha, goal))
        specs.append(replace(spec, given=given if spec.policy.supports_early else None))
    of = policy_unit(table, unit, cases)
    setup = Setup(table, of, delta, policy_condition(table, of, label, strata))
    setup = setup.read_as(condition_on, delta_scope)
    return _simulate(setup, specs, splits, seed, tuning_repeats, skips=True)


def simulate_plans(
    table: TaskOutputs,
    plans: Sequence[PolicySpec],
    *,
    splits: int,
    seed: int,
    unit: PolicyUnitName | None,
    errors: bool = True,
) -> list[Simulation]:
    """Simulate the policies ``plans``; if ``errors`` is False, all standard errors are NaN."""
    require_targets(table)
    setup = Setup(table, policy_unit(table, unit, "random"), None).read_as(None, None)
    return _simulate(setup, plans, splits, seed, 10, errors)


def _simulate(
    setup: Setup,
    specs: Sequence[PolicySpec],
    splits: int,
    seed: int | np.random.Generator,
    tuning_repeats: int,
    errors: bool = True,
    skips: bool = False,
) -> list[Simulation]:
    index, everyone = setup.index, np.ones(setup.table.cases, bool)
    sizes = fold_sizes(int(index.max()) + 1)
    rng = as_generator(seed)
    split_seed, results = int(rng.integers(2**63)), []
    for spec in specs:
        guarantee = setup.guarantee(spec, index, everyone)
        job = _SimulationJob(setup, spec, guarantee, index, *sizes, splits, split_seed, errors)
        try:
            results.append(job.run(tuning_repeats, rng))
        except InputError as error:
            if error.code != "units.few" or not skips or (spec is specs[-1] and not results):
                raise
            warnings.warn(f"{spec.name} is skipped: {error}", GuaranteeWarning, stacklevel=3)
    return results


# Sums over splits with one tuning set, their jackknife replicates, and the cases in them.
_Part: TypeAlias = tuple[SimulatedStops, _Replicates | None, NDArray[np.int64]]


@dataclass(frozen=True)
class _SimulationJob:
    setup: Setup
    spec: PolicySpec
    guarantee: Guarantee
    index: NDArray[np.int64]
    n_calibration: int
    n_test: int
    splits: int
    seed: int
    errors: bool

    @property
    def table(self) -> TaskOutputs:
        return self.setup.table

    @property
    def unit(self) -> Unit:
        return self.setup.unit

    def run(self, tuning_repeats: int, rng: np.random.Generator) -> Simulation:
        rules = self_tuned_rules(self.spec, self.table, self.guarantee.delta, self.setup.classes)
        if rules is not None:
            return self._summarise([self._self_tuned(rules)], 0)
        spec, n, parts = self.spec, self.n_calibration, []
        take = tuning_units(
            spec.base_score, self.unit, n, spec.alpha, self.guarantee.delta, spec.tuning_fraction
        )
        tuning_sets = [np.zeros(self.table.cases, dtype=bool)]
        if take > 0 or tuning_fraction(spec.base_score):
            if not 1 <= take < n:
                raise InputError(
                    f"{n} calibration units are too few to tune {spec.name}", code="units.few"
                )
            draws = range(min(tuning_repeats, self.splits))
            contents = table_contents(self.table)
            tuning_sets = [choose_units(self.index, take, rng, contents) for _ in draws]
        for draw, held_out in enumerate(tuning_sets):
            count = self.splits // len(tuning_sets) + (draw < self.splits % len(tuning_sets))
            # Policies that need no tuning set all see the same splits.
            seed = self.seed if len(tuning_sets) == 1 else splitmix64(self.seed + draw + 1)
            parts.append(self._tuned(held_out, count, seed))
        return self._summarise(parts, len(np.unique(self.index[tuning_sets[0]])))

    def _self_tuned(self, rules: SelfTunedRules) -> _Part:
        """Simulate a policy that is fitted anew to the calibration set of each split."""
        units, everyone = self.n_calibration + self.n_test, np.arange(self.table.cases)
        scans = self._scans(rules.learn_outside(np.zeros(units, np.uint8), self.index)[2], everyone)

        def calibrate(on: Splits, t: int) -> tuple[StoredScans, FloatArray]:
            test = on.fold(t)
            test = test if self.unit.is_group else on.of_cases(test[None])[0]
            units, bracketed, final = rules.learn_outside(test, self.index)
            kept = test[self.index] == 0
            calibrator = self.setup.calibrator(self.guarantee, units, kept)
            return replace(scans, statistics=final), self._thresholds(bracketed, calibrator, kept)

        return self._each_split(calibrate, scans, everyone, self.splits, self.seed)

    def _tuned(self, held_out: BoolArray, splits: int, seed: int) -> _Part:
        pool, tuning = np.flatnonzero(~held_out), None
        rules, statistics = evaluate_rules(self.spec, self.table, held_out, pool)
        scans = self._scans(statistics, pool)
        if self.spec.given:
            tuning = evaluate_tuning_cases(rules, self.table, held_out, self.index), held_out

        def calibrate(on: Splits, t: int) -> tuple[StoredScans, FloatArray]:
            kept = on.case_folds(np.array([t]))[0] == 0
            units = unit_index(int(kept.sum()), scans.unit_of_case[kept])
            calibrator = self.setup.calibrator(self.guarantee, units, pool[kept])
            some = statistics.select(kept)
            return scans, self._thresholds(some, calibrator, kept, pool, tuning)

        return self._each_split(calibrate, scans, pool, splits, seed)

    def _each_split(
        self,
        calibrate: Callable[[Splits, int], tuple[StoredScans, FloatArray]],
        scans: StoredScans,
        pool: NDArray[np.int64],
        splits: int,
        seed: int,
    ) -> _Part:
        """Simulate a policy in all splits, and in the jackknife replicates for standard errors."""
        index = scans.unit_of_case
        of_case = index if self.unit.is_group else np.empty(0, np.int64)
        splitting = Splits(int(index.max()) + 1, self.n_test, splits, seed, of_case)
        sums = simulate_each_split(partial(calibrate, splitting), splitting, self.table.rounds)
        leaving = self._jackknife_folds(splitting, scans.group_of_case)
        if leaving is None:
            return sums, None, pool
        group = unit_index(self.table.cases, self._clusters)
        return sums, _replicate(partial(calibrate, leaving), leaving, group, pool), pool

    def _jackknife_folds(self, splitting: Splits, group: NDArray[np.int64]) -> Splits | None:
        groups = int(group.max()) + 1
        if groups < 2 or not self.errors:
            return None
        by_unit = self.unit.is_group or groups == len(group)
        n_test = splitting.n_test if by_unit else fold_sizes(groups)[1]
        seed, trials = splitmix64(splitting.seed + 1), min(splitting.trials, REPLICATES)
        return Splits(groups, n_test, trials, seed, group)

    @property
    def _clusters(self) -> np.ndarray | None:
        """Independent cluster of each case: its site if sites are the unit, else its group."""
        return self.table.group if self.setup.sites is None else self.index

    def _thresholds(
        self,
        statistics: StoppingStatistics,
        calibrator: Calibrator,
        kept: BoolArray,
        pool: NDArray[np.int64] | None = None,
        tuning: tuple[TuningCases, BoolArray] | None = None,
    ) -> FloatArray:
        """Return the thresholds of one split: (round,), or (round, case) with strata."""
        within, cases = self.setup.within, None if tuning is None else tuning[0]
        if within is None:
            return self.spec.thresholds(statistics, calibrator, cases)
        of_pool = within if pool is None else within[pool]
        held_out = within[:0] if tuning is None else within[tuning[1]]
        by_stratum = self.spec.thresholds(
            statistics, calibrator, cases, np.append(of_pool[kept], held_out)
        )
        if by_stratum.ndim == 1:
            return by_stratum
        # No scan of a stratum that was not calibrated stops.
        thresholds = np.full((len(by_stratum), len(of_pool)), np.inf)
        for name, level in zip(np.unique(of_pool[kept]), by_stratum.T, strict=True):
            thresholds[:, of_pool == name] = level[:, None]
        return thresholds

    def _scans(self, statistics: StoppingStatistics, pool: NDArray[np.int64]) -> StoredScans:
        index, group = unit_index(len(pool), self.index[pool]), self._clusters
        return StoredScans(
            statistics=statistics,
            targets=round_arrays(self.table)[1][:, pool],
            accelerations=self.table.accelerations,
            weight=self.setup.weights[pool],
            group_of_case=unit_index(len(pool), None if group is None else group[pool]),
            unit_of_case=index,
            enough=self.unit.enough(np.bincount(index)),
            together=index if self.unit.stops_together else None,
        )

    def _summarise(self, parts: list[_Part], n_tuning: int) -> Simulation:
        def joined(name: str) -> FloatArray:
            return np.concatenate([getattr(part, name) for part, *_ in parts], axis=-1)

        m, policy = parts[0][0].weight, self.spec.policy
        by_case = np.zeros((5, self.table.cases))
        for part, _, pool in parts:
            by_case[:, pool] += part.by_case
        acceleration, coverage = m / joined("cost"), joined("kept") / m
        early = joined("early")
        rounds = zip(
            self.table.accelerations, joined("stopped"), joined("stopped_covered"), strict=True
        )
        stops = [_StopFraction(float(R), float(s.mean() / m), _ratio(c, s)) for R, s, c in rounds]
        some = early > 0
        widths = joined("width")[some] / early[some] if some.any() else np.array([math.nan])
        # A sum of weights may exceed their whole by a rounding error.
        full = max(0.0, float(1 - early.mean() / m))
        stops.append(_StopFraction(1.0, full, 1.0 if full > 0 else math.nan))
        return Simulation(
            policy=self.spec.kind,
            score=score_name(self.spec.base_score) if "score" in policy.options else "-",
            statistic=self.spec.statistic if "statistic" in policy.options else None,
            budget=self.spec.budget,
            guaranteed=policy.is_guaranteed,
            alpha=self.spec.alpha,
            unit=self.unit.name,
            splits=self.splits,
            n=self.n_calibration + self.n_test,
            n_calibration=self.n_calibration,
            n_test=self.n_test,
            n_tuning=n_tuning,
            coverage_of=self.unit.covered,
            mean_over=self.unit.mean_unit,
            mean_acceleration=float(m / joined("cost").mean()),
            case_mean_acceleration=_ratio(joined("cases"), joined("plain_cost")),
            coverage=float(coverage.mean()),
            case_coverage=float((joined("covered") / m).mean()),
            coverage_from_full_scans=full,
            coverage_early=_ratio(joined("early_covered"), early),
            early_fraction=float(early.mean() / m),
            width=_ratio(joined("width"), early),
            center_error=_ratio(joined("center_error"), early),
            max_center_error=_ratio(joined("worst_error"), joined("worst_groups")),
            stops=tuple(stops),
            standard_errors=_standard_errors(
                [left for _, left, _ in parts if left is not None], acceleration, coverage
            ),
            sd={
                "mean_acceleration": float(acceleration.std()),
                "coverage": float(coverage.std()),
                "width": float(widths.std()) if np.isfinite(widths).all() else math.nan,
            },
            given=self.spec.given,
            condition=self.guarantee.condition,
            class_coverage=self._by_part("class", self.table.label, by_case),
            site_coverage=self._by_part("site", self.table.site, by_case),
        )

    def _by_part(
        self, kind: str, of_case: np.ndarray | None, by_case: FloatArray
    ) -> tuple[dict[str, Any], ...]:
        found, group = [], unit_index(self.table.cases, self.table.group)
        for name in () if of_case is None else np.unique(of_case):
            inside = of_case == name
            weight = self.setup.weights
            if kind == "class" and self.guarantee.condition_on == "group":
                weight = 1 / np.maximum(np.bincount(self.index, inside), 1)[self.index]
            # Widths of level goals are infinite, and infinity times 0 is no number.
            tested, covered, cost, early, width = np.where(inside, by_case * weight, 0.0)
            coverage, groups = _ratio(covered, tested), len(np.unique(group[inside]))
            error = math.nan
            if groups > 1 and tested.sum() > 0:
                misses = np.bincount(group, covered - coverage * tested)
                spread = groups / (groups - 1) * float((misses**2).sum())
                error = math.sqrt(spread) / float(tested.sum())
            record = {
                kind: str(name),
                "cases": int(inside.sum()),
                "coverage": coverage,
                "standard_error": error or math.nan,
                "mean_acceleration": _ratio(tested, cost),
                "width": _ratio(width, early),
            }
            found.append(record)
        return tuple(found)


def _ratio(part: FloatArray, whole: FloatArray) -> float:
    total = float(whole.sum())
    return float(part.sum()) / total if total > 0 else math.nan


CHOOSING = (
    "Do not calibrate on the cases you used to choose a policy: the guarantee would no longer "
    "hold. Use taskuq plan --choose, or split the table with taskuq table --fraction."
)


def simulation_record(
    table: TaskOutputs,
    goal: Goal | Goals,
    results: Sequence[tuple[int, Simulation]],
    inputs: Mapping[str, Any],
) -> dict[str, Any]:
    first = results[0][1].to_dict()
    shared = ("unit", "coverage_of", "mean_over", "trials", "n", "n_calibration", "n_test")
    return {
        "schema": "taskuq.simulate/1",
        "alpha": first["alpha"],
        "goal": goal.to_dict(),
        **{name: first[name] for name in shared},
        "inputs": {
            "table": repr(table),
            "task_names": list(table.task_names),
            **ranges_to_json(table.task_ranges),
            "provenance": dict(table.provenance),
            "missing_cases": list(table.missing_cases),
            "round_names": called_rounds(table.accelerations, table.round_names),
            **inputs,
        },
        "choosing": CHOOSING,
        "results": [{"samples": p, **result.to_dict()} for p, result in results],
    }
