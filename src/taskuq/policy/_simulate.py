"""Simulation of policies over random splits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taskuq._arrays import ranges_to_json
from taskuq._display import Displayed, Summary, svg
from taskuq._io import to_json_value
from taskuq.conformal._calibrate import tuning_fraction, tuning_units
from taskuq.conformal._family import SidePerTask, use_numba
from taskuq.conformal._guarantee import ConditionOn, DeltaScope, Guarantee
from taskuq.conformal._splits import (
    Splits,
    fold_sizes,
    rank_for_guarantee,
    run_splits,
    splitmix64,
    test_sets,
)
from taskuq.conformal._units import (
    PolicyUnitName,
    Unit,
    as_generator,
    choose_units,
    table_contents,
    unit_index,
)
from taskuq.conformal.scores import score_name
from taskuq.errors import InputError, import_extra
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
from taskuq.policy._plan import (
    SetCalibrator,
    Setup,
    policy_condition,
    policy_unit,
    require_targets,
)
from taskuq.policy._rules import StoppingStatistics
from taskuq.policy._stopping import (
    Calibrator,
    Losses,
    TuningCases,
    smallest_certified,
    smallest_threshold,
)
from taskuq.policy._stored_scans import (
    SimulatedStops,
    StoredScans,
    simulate_each_split,
    simulate_splits,
)
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
        stopped, hit = scans.outcomes(thresholds, scans.statistics.score)
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
    """Return the jackknife variance, over tables, of a mean over all splits."""
    B, n = kept.shape
    if B < 2 or n < 2:
        return math.nan
    V = L = float(values.var(ddof=1))
    if math.sqrt(2 * n) / B < CLEAR:
        c = (values - values.mean()) @ (kept - kept.mean(axis=0)) / B
        explained = float(np.square(c).sum()) / (fraction * (1 - fraction))
        L = min(max((n - 1) / n * (explained - (n - 1) * V / B), 0.0), V)
    return fraction / (1 - fraction) * L + fraction**order / (1 - fraction**order) * (V - L)


@final
@dataclass(frozen=True)
class _SplitCalibrator(Calibrator):
    splitting: Splits

    @property
    def units(self) -> int:
        # Roughly, where groups of cases are split.
        left = self.splitting.units - self.splitting.n_test
        return left if self._by_unit else len(self.index) * left // self.splitting.units

    @property
    def _by_unit(self) -> bool:
        return self.unit.is_group or not len(self.splitting.unit_of_case)

    def quantiles(self, scores: FloatArray) -> FloatArray:
        """Return the quantile of each row of scores in every split, (row, split)."""
        splits = self.splitting
        allowed: float | FloatArray = self.guarantee.allowed(self.units)
        if not self._by_unit:
            # Groups are split, but cases are the unit: their number differs between splits.
            tested = splits.case_folds(np.arange(splits.trials)).sum(axis=1, dtype=np.int64)
            counts, which = np.unique(len(self.index) - tested, return_inverse=True)
            allowed = np.array([self.guarantee.allowed(int(n)) for n in counts])[which]
        index = splits.unit_of_case if len(splits.unit_of_case) else self.index
        rankings = [rank_for_guarantee(row, self.guarantee, allowed, index) for row in scores]
        found = run_splits(splits, rankings, np.zeros((len(scores), 0, len(self.index))))
        return np.stack([r.quantiles(p) for r, p in zip(rankings, found.position, strict=True)])

    def map_sets(self, function: Callable[[BoolArray], Any]) -> FloatArray:
        splits = self.splitting
        fold = splits.folds if self._by_unit else splits.case_folds
        return np.array([function(fold(np.array([t]))[0] == 0) for t in range(splits.trials)])

    def smallest(self, thresholds: FloatArray, losses: Losses) -> FloatArray:
        splits, allowed = self.splitting, self.guarantee.allowed(self.units)
        bets, each_loss = self.guarantee.bets, losses(thresholds)
        step = max(1, 20_000_000 // len(thresholds))
        blocks: list[FloatArray] = []
        for start in range(0, splits.trials, step):
            count = min(step, splits.trials - start)
            folds = test_sets(splits.seed, start, count, splits.units, splits.n_test)
            if bets is None:
                blocks.append(smallest_threshold(thresholds, (1.0 - folds) @ each_loss, allowed))
                continue
            each = [smallest_certified(thresholds, each_loss[f == 0], bets) for f in folds]
            blocks.append(np.array(each))
        return np.concatenate(blocks)


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
    """Result of a policy over random splits; means are over splits.

    Args:
        policy: Kind of policy.
        score: Score of the policy.
        statistic: Risk statistic of a fixed-width policy.
        budget: Fraction of the error rate spent on stopping early.
        guaranteed: True if the report at the stop has a guarantee.
        alpha: Error rate.
        unit: 'case', 'group', 'whole-group' or 'site'.
        splits: Number of random splits.
        n: Number of units.
        n_calibration: Calibration units, including tuning units.
        n_test: Test units.
        n_tuning: Tuning units.
        coverage_of: Unit of coverage, in words.
        mean_over: Unit of all other means, in words.
        mean_acceleration: Harmonic mean of the accelerations at the stop, with groups weighted
            equally.
        case_mean_acceleration: Harmonic mean with cases weighted equally.
        coverage: Fraction of units for which the guarantee holds; R = 1 counts as covered.
        case_coverage: Fraction of cases whose report contains the target.
        coverage_from_full_scans: Part of case_coverage that comes from fully sampled cases.
        coverage_early: Coverage among the cases stopped early; NaN if none is.
        early_fraction: Fraction of cases stopped early.
        width: Mean width of early reports; with several tasks, of the widest interval.
        center_error: Mean distance between target and centre in early reports; the largest over
            tasks.
        max_center_error: Largest of these distances in a group, averaged over groups.
        stops: Fraction and coverage of the cases stopped in each round, the full measurement last.
        standard_errors: Standard errors of mean acceleration and coverage, over tables and splits.
        sd: Standard deviations over splits of mean acceleration, coverage and width.
        given: 'early' if coverage among early stops is guaranteed, 'round' if in each round.
        condition: 'each class' or 'each stratum' if the guarantee holds within them.
        class_coverage: Measured for each class: number of cases, coverage with a standard error,
            mean acceleration, and mean width of early reports.
        site_coverage: The same for each site.
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

    In each split, a policy is calibrated on one part, and every case of the other part is scanned
    round by round until the policy stops. The mean acceleration is harmonic:

    .. math:: \bar R = \Big( \frac1m \sum_i \frac{1}{R_{T_i}} \Big)^{-1}

    With groups as the unit, this mean is for a random case of a new group. Standard errors come
    from a jackknife: up to 300 times, three tenths of the groups (or cases) are left out, and the
    policy is calibrated and evaluated on the rest. The Monte Carlo error of the splits is added.

    Args:
        table: Task outputs of all rounds with targets, or arrays as :func:`taskuq.plan` takes them.
        policies: Names such as 'fixed-width:learned' or 'paper:cqr', or a :class:`PolicySpec`.
        alpha: Error rate of the policies given by name.
        max_width: Largest width, as in :func:`taskuq.plan`.
        at_least: Level of a lower bound, as in :func:`taskuq.plan`.
        at_most: Level of an upper bound, as in :func:`taskuq.plan`.
        side: Side of the intervals, as in :func:`taskuq.plan`.
        splits: Number of random splits.
        seed: Seed or Generator; all policies use the same splits if possible.
        unit: 'case', 'group', 'whole-group' or 'site'; default: 'group' if the table has groups.
        cases: With groups, cases of a new group to cover: 'random' (one), 'all' or a fraction.
        delta: Guarantee coverage with probability 1 - delta over calibration sets.
        given: 'early' or 'round' for a guarantee among early stops, or among those of each round,
            for policies given by name that support it.
        label: Guarantee coverage within each class, as in :func:`taskuq.plan`.
        strata: Guarantee coverage within each stratum, as in :func:`taskuq.plan`.
        condition_on: As in :func:`taskuq.plan`.
        delta_scope: As in :func:`taskuq.plan`.
        tuning_repeats: Number of tuning sets to average over, for policies that need tuning.
        task: Tasks whose goals must be reached; default: all.
        table_kwargs: With arrays, ``accelerations`` and other fields of a table.

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
    return _simulate(setup, specs, splits, seed, tuning_repeats)


def simulate_plans(
    table: TaskOutputs,
    plans: Sequence[PolicySpec],
    *,
    splits: int,
    seed: int,
    unit: PolicyUnitName | None,
    errors: bool = True,
) -> list[Simulation]:
    """Simulate policies; compute standard errors only if ``errors`` is True."""
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
) -> list[Simulation]:
    index, everyone = setup.index, np.ones(setup.table.cases, bool)
    sizes = fold_sizes(int(index.max()) + 1)
    rng = as_generator(seed)
    split_seed, results = int(rng.integers(2**63)), []
    for spec in specs:
        guarantee = setup.guarantee(spec, index, everyone)
        job = _SimulationJob(setup, spec, guarantee, index, *sizes, splits, split_seed, errors)
        results.append(job.run(tuning_repeats, rng))
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
        rules = self_tuned_rules(
            self.spec, self.table, self.guarantee.delta, self.splits, self.setup.classes
        )
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

    @property
    def _is_compiled(self) -> bool:
        # Some ten numbers of each split, case and round.
        return use_numba(10 * self.splits * self.table.cases * self.table.rounds)

    def _self_tuned(self, rules: SelfTunedRules) -> _Part:
        """Simulate a policy that is fitted to its calibration set in each split."""
        of_case = self.index if self.unit.is_group else np.empty(0, np.int64)
        n, everyone = self.n_calibration + self.n_test, np.arange(self.table.cases)
        splitting = Splits(n, self.n_test, self.splits, self.seed, of_case, self._is_compiled)
        scans = self._scans(rules.learn_outside(np.zeros(n, np.uint8), self.index)[2], everyone)

        def calibrate(on: Splits) -> Callable[[int], tuple[StoredScans, FloatArray]]:
            def one_split(t: int) -> tuple[StoredScans, FloatArray]:
                test = on.fold(t)
                test = test if self.unit.is_group else on.of_cases(test[None])[0]
                units, bracketed, final = rules.learn_outside(test, self.index)
                calibrator = self._calibrator(units, np.flatnonzero(test[self.index] == 0))
                allowance = self._allowance(final, scans.unit_of_case)
                learned = replace(scans, statistics=final, allowance=allowance)
                return learned, self._thresholds(bracketed, calibrator, test[self.index] == 0)

            return one_split

        sums = simulate_each_split(calibrate(splitting), splitting, self.table.rounds)
        group = scans.group_of_case
        leaving = self._jackknife_folds(splitting, group)
        if leaving is None:
            return sums, None, everyone
        return sums, _replicate(calibrate(leaving), leaving, group, everyone), everyone

    def _jackknife_folds(self, splitting: Splits, group: NDArray[np.int64]) -> Splits | None:
        groups = int(group.max()) + 1
        if groups < 2 or not self.errors:
            return None
        by_unit = self.unit.is_group or groups == len(group)
        n_test = splitting.n_test if by_unit else fold_sizes(groups)[1]
        seed, trials = splitmix64(splitting.seed + 1), min(splitting.trials, REPLICATES)
        return Splits(groups, n_test, trials, seed, group, splitting.is_compiled)

    def _calibrator(self, units: NDArray[np.int64], cases: NDArray[np.int64]) -> SetCalibrator:
        denominator = self.setup.denominator
        denominator = None if denominator is None else denominator[cases]
        return SetCalibrator(self.guarantee, self.unit, units, denominator=denominator)

    @property
    def _clusters(self) -> np.ndarray | None:
        """Independent clusters of cases: the groups, or the sites if these are the unit."""
        return self.index if self.setup.denominator is not None else self.table.group

    def _thresholds(
        self,
        statistics: StoppingStatistics,
        calibrator: Calibrator,
        kept: BoolArray,
        pool: NDArray[np.int64] | None = None,
        tuning: tuple[TuningCases, BoolArray] | None = None,
    ) -> FloatArray:
        """Return the thresholds of one split, (round,), or (round, case) for strata."""
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
            allowance=self._allowance(statistics, index),
        )

    def _allowance(self, statistics: StoppingStatistics, index: NDArray[np.int64]) -> FloatArray:
        return statistics.allowance(index) if self.unit.stops_together else np.empty((0, 0))

    def _tuned(self, held_out: BoolArray, splits: int, seed: int) -> _Part:
        """Simulate a policy with one tuning set."""
        pool = np.flatnonzero(~held_out)
        rules, statistics = evaluate_rules(self.spec, self.table, held_out, pool)
        scans = self._scans(statistics, pool)
        index, tuning = scans.unit_of_case, None
        of_case = index if self.unit.is_group else np.empty(0, np.int64)
        units = int(index.max()) + 1
        splitting = Splits(units, self.n_test, splits, seed, of_case, self._is_compiled)
        if self.spec.given:
            tuning = evaluate_tuning_cases(rules, self.table, held_out, self.index)
        group = unit_index(self.table.cases, self._clusters)
        leaving = self._jackknife_folds(splitting, scans.group_of_case)
        if self.setup.condition is not None or self.setup.denominator is not None:
            of_tuning = None if tuning is None else (tuning, held_out)

            def calibrate(on: Splits) -> Callable[[int], tuple[StoredScans, FloatArray]]:
                def one_split(t: int) -> tuple[StoredScans, FloatArray]:
                    kept = on.case_folds(np.array([t]))[0] == 0
                    units = unit_index(int(kept.sum()), index[kept])
                    calibrator = self._calibrator(units, pool[kept])
                    some = statistics.select(kept)
                    return scans, self._thresholds(some, calibrator, kept, pool, of_tuning)

                return one_split

            sums = simulate_each_split(calibrate(splitting), splitting, self.table.rounds)
            again = (
                None if leaving is None else _replicate(calibrate(leaving), leaving, group, pool)
            )
            return sums, again, pool

        def thresholds(on: Splits) -> FloatArray:
            calibrator = _SplitCalibrator(self.guarantee, self.unit, index, on)
            return self.spec.thresholds(statistics, calibrator, tuning)

        sums = simulate_splits(scans, splitting, thresholds(splitting))
        if leaving is None:
            return sums, None, pool
        left = thresholds(leaving)
        return sums, _replicate(lambda b: (scans, left[:, b]), leaving, group, pool), pool

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
        """Return the outcomes of the cases of each class or site, with the weights of the unit."""
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
    "hold. Use `taskuq plan --choose`, or split the table with `taskuq table --fraction`."
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
