"""Simulation of policies over random splits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from taskuq._arrays import ranges_to_json
from taskuq._io import to_json_value
from taskuq.conformal._calibrate import tuning_fraction, tuning_units
from taskuq.conformal._family import use_numba
from taskuq.conformal._guarantee import Guarantee
from taskuq.conformal._splits import (
    Splits,
    fold_sizes,
    rank_for_guarantee,
    run_splits,
    splitmix64,
    test_sets,
)
from taskuq.conformal._units import PolicyUnitName, Unit, choose_units, unit_index
from taskuq.conformal.scores import score_name
from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray
from taskuq.policy._goal import Goal, Goals
from taskuq.policy._kinds import PolicySpec
from taskuq.policy._learned import (
    SelfTunedRules,
    evaluate_rules,
    learn_folds,
    round_arrays,
    set_aside,
    steady_rules,
)
from taskuq.policy._plan import SingleSetCalibrator, policy_unit
from taskuq.policy._replay import SimulatedStops, StoredScans, replay_each, simulate_splits
from taskuq.policy._rules import StoppingStatistics
from taskuq.policy._stopping import Calibrator, Losses, smallest_certified, smallest_threshold
from taskuq.table._table import TaskOutputs, called_rounds
from taskuq.table._terminology import round_label

# More replicates would make no visible digit of a standard error more certain.
REPLICATES = 300
# Replicates tell how much of their variance is linear only if its error is below this share.
CLEAR = 0.25


@dataclass(frozen=True)
class _JackknifeReplicates:
    """Results with parts of the table left out."""

    cost: FloatArray
    coverage: FloatArray
    kept: FloatArray

    @classmethod
    def measured(
        cls,
        planned: Callable[[int], tuple[StoredScans, FloatArray]],
        splitting: Splits,
        group_of_case: NDArray[np.int64],
        pool: NDArray[np.int64],
    ) -> _JackknifeReplicates:
        """Measure the rest of every replicate."""
        folds, found = splitting.all_folds, np.empty((2, splitting.trials))
        for r, fold in enumerate(folds):
            scans, thresholds = planned(r)
            rest = fold[scans.group_of_case] == 0
            stopped, hit = scans.outcomes(thresholds, scans.seen.score)
            total = scans.weight[rest].sum()
            found[0, r] = (scans.weight * scans.cost[stopped])[rest].sum() / total
            found[1, r] = scans.kept(hit, rest) / total
        # Whoever was set aside to learn from is kept in every replicate.
        kept = np.ones((splitting.trials, int(group_of_case.max()) + 1))
        kept[:, np.unique(group_of_case[pool])] -= folds
        return cls(found[0], found[1], kept)


def _jackknife_folds(
    splitting: Splits, group: NDArray[np.int64], *, by_unit: bool
) -> Splits | None:
    """Return the units left out in each replicate."""
    groups = int(group.max()) + 1
    if groups < 2:
        return None
    n_test = splitting.n_test if by_unit or groups == len(group) else fold_sizes(groups)[1]
    seed, trials = splitmix64(splitting.seed + 1), min(splitting.trials, REPLICATES)
    return Splits(groups, n_test, trials, seed, group, splitting.is_compiled)


def _standard_errors(
    parts: Sequence[_JackknifeReplicates], acceleration: FloatArray, coverage: FloatArray
) -> dict[str, float]:
    """Return the errors of a mean acceleration and coverage over splits, NaN where unknown."""
    # Calibration adapts to what is kept, so that the coverage of the rest moves in many small steps
    # and little of it is linear, or of second order.
    orders = {"mean_acceleration": 2, "coverage": 3}
    if not parts:
        return dict.fromkeys(orders, math.nan)
    kept = np.concatenate([part.kept for part in parts])
    again = np.concatenate([[1 / part.cost, part.coverage] for part in parts], axis=1)
    share = float(kept.mean())
    return {
        name: math.sqrt(
            _jackknife_variance(values, kept, share, order) + of_splits.var() / len(of_splits)
        )
        for (name, order), values, of_splits in zip(
            orders.items(), again, (acceleration, coverage), strict=True
        )
    }


def _jackknife_variance(
    values: FloatArray, kept: NDArray[np.float64], share: float, order: int = 2
) -> float:
    """Return the variance over tables of a mean over all splits, from replicates of its table."""
    B, n = kept.shape
    if B < 2 or n < 2:
        return math.nan
    V = L = float(values.var(ddof=1))
    if math.sqrt(2 * n) / B < CLEAR:
        c = (values - values.mean()) @ (kept - kept.mean(axis=0)) / B
        explained = float(np.square(c).sum()) / (share * (1 - share))
        L = min(max((n - 1) / n * (explained - (n - 1) * V / B), 0.0), V)
    return share / (1 - share) * L + share**order / (1 - share**order) * (V - L)


@final
@dataclass(frozen=True)
class _SplitCalibrator(Calibrator):
    """Calibrate thresholds in every split."""

    splitting: Splits

    @property
    def units(self) -> int:
        """The number of units to calibrate on; where groups of cases are split, about so many."""
        left = self.splitting.units - self.splitting.n_test
        return left if self._by_unit else len(self.index) * left // self.splitting.units

    @property
    def _by_unit(self) -> bool:
        """Return True if units are split, and not groups of them."""
        return self.unit.is_group or not len(self.splitting.unit_of_case)

    @property
    def allowed(self) -> float | FloatArray:
        """The weight of scores that may lie above a quantile, in all trials or in each."""
        splits = self.splitting
        if self._by_unit:
            return self.promise.allowed(self.units)
        # Groups are split, but cases are the unit: how many calibrate differs between trials.
        tested = splits.case_folds(np.arange(splits.trials)).sum(axis=1, dtype=np.int64)
        counts, which = np.unique(len(self.index) - tested, return_inverse=True)
        return np.array([self.promise.allowed(int(n)) for n in counts])[which]

    def quantiles(self, scores: FloatArray) -> FloatArray:
        """Return the quantile of each row of scores (row, case) in every trial (row, trial)."""
        allowed, of_case = self.allowed, self.splitting.unit_of_case
        index = of_case if len(of_case) else self.index
        rankings = [rank_for_guarantee(row, self.promise, allowed, index) for row in scores]
        found = run_splits(self.splitting, rankings, np.zeros((len(scores), 0, len(self.index))))
        return np.stack([r.quantiles(p) for r, p in zip(rankings, found.position, strict=True)])

    def found(self, find: Callable[[BoolArray], float]) -> FloatArray:
        """Return what is found in the calibration fold of each trial (trial,)."""
        splits = self.splitting
        fold = splits.folds if self._by_unit else splits.case_folds
        return np.array([find(fold(np.array([t]))[0] == 0) for t in range(splits.trials)])

    def smallest(self, thresholds: FloatArray, losses: Losses) -> FloatArray:
        """Return the smallest threshold at which the groups of each fold lose what is allowed."""
        splits, allowed = self.splitting, self.promise.allowed(self.units)
        bets, each_loss = self.promise.bets, losses(thresholds)
        step = max(1, 20_000_000 // len(thresholds))
        found: list[FloatArray] = []
        for start in range(0, splits.trials, step):
            count = min(step, splits.trials - start)
            folds = test_sets(splits.seed, start, count, splits.units, splits.n_test)
            if bets is None:
                found.append(smallest_threshold(thresholds, (1.0 - folds) @ each_loss, allowed))
            else:
                each = [
                    smallest_certified(thresholds, each_loss[fold == 0], bets) for fold in folds
                ]
                found.append(np.array(each))
        return np.concatenate(found)


@dataclass(frozen=True)
class _StopFraction:
    """Fraction and coverage of cases stopped in one round."""

    acceleration: float
    fraction: float
    coverage: float


@dataclass(frozen=True)
class Simulation:
    """What a policy did over random splits; means are over trials.

    Arguments:
        policy: The kind of policy.
        score: The score behind it.
        statistic: The risk statistic of a fixed-width policy.
        budget: Its share of the error rate spent on stopping early.
        guaranteed: Whether the report at the stop has a guarantee.
        alpha: The error rate.
        unit: 'case', 'group' or 'whole-group'.
        trials: The number of random splits.
        n: Units in all.
        n_calibration: Units to calibrate on, tuning units among them.
        n_test: Units to test on.
        n_tuning: Units the policy learns from.
        coverage_of: Whose targets coverage is about, in words.
        mean_over: What is drawn at random for all other means, in words.
        mean_acceleration: Harmonic mean of the accelerations cases stopped at; with groups as the
            unit every group counts the same.
        mean_acceleration_of_cases: The same, every case counting the same.
        coverage: Share of units for which the promise holds: whose report contains the target (of
            a random case), or those of enough of their cases. R = 1 counts as covered.
        case_coverage: Share of cases whose report contains the target, every group counting the
            same; unlike coverage where all cases of a group, or a share, are promised.
        coverage_from_full: How much of case_coverage comes from cases measured in full.
        coverage_early: Coverage among the cases stopped early; NaN if there are none.
        early: The share of cases stopped early.
        width: Mean width of early reports; of several tasks, of the widest interval.
        center_error: Mean distance between target and centre of early reports; of several tasks,
            the largest.
        max_center_error: Mean over groups of the largest such distance in a group.
        stops: What happened at each round, the fully measured one last.
        _standard_errors: Of mean acceleration and coverage: how much they would vary between tables
            of as many other groups (cases where there are no groups), calibration included, and
            between other random splits. NaN where nothing can be left out.
        sd: Standard deviations over trials of mean acceleration, coverage and the mean width of
            early reports; NaN where no scan stops early.
        given: 'early' where the policy promises coverage among early stops.
    """

    policy: str
    score: str
    statistic: str | None
    budget: float
    guaranteed: bool
    alpha: float
    unit: str
    trials: int
    n: int
    n_calibration: int
    n_test: int
    n_tuning: int
    coverage_of: str
    mean_over: str
    mean_acceleration: float
    mean_acceleration_of_cases: float
    coverage: float
    case_coverage: float
    coverage_from_full: float
    coverage_early: float
    early: float
    width: float
    center_error: float
    max_center_error: float
    stops: tuple[_StopFraction, ...]
    standard_errors: dict[str, float]
    sd: dict[str, float]
    given: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as values that JSON can hold; a missing number is null."""
        return dict(to_json_value(asdict(self)))

    def __repr__(self) -> str:
        promise = "guaranteed" if self.guaranteed else "measured, not guaranteed"
        error = self.standard_errors
        at = (f"{round_label(s.acceleration)} {s.fraction:.3g}" for s in self.stops)
        return "\n".join([
            f"{self.policy}, {self.statistic or self.score}, {promise}: {self.trials} random "
            f"splits by {self.unit}, {self.n_calibration} to calibrate, {self.n_test} to test, "
            f"alpha {self.alpha:g}",
            f"  mean R       {self.mean_acceleration:8.4g}  ± {error['mean_acceleration']:.2g}",
            f"  coverage     {self.coverage:8.4g}  ± {error['coverage']:.2g}",
            f"  early width  {self.width:8.4g}",
            f"  stopped at   {', '.join(at)}",
        ])  # fmt: skip


def simulate(
    table: TaskOutputs,
    plans: Sequence[PolicySpec],
    *,
    trials: int,
    rng: np.random.Generator,
    unit: PolicyUnitName | None = None,
    cases: float | str = "random",
    delta: float | None = None,
    tunings: int = 10,
) -> list[Simulation]:
    r"""Simulate stopping policies over random splits of a table.

    In each trial a policy is calibrated on one fold, and every case of the other fold is scanned
    round by round until the policy stops it. The average acceleration is harmonic,

    .. math:: \bar R = \Big( \frac1m \sum_i \frac{1}{R_{T_i}} \Big)^{-1}

    With groups as the unit this is for a random case of a new group: every group counts the same.
    Coverage is the share of units for which the promise holds. Standard errors come from a
    jackknife: up to 300 times three tenths of the groups (or cases) are left out, the policy is
    calibrated on the rest, and its mean acceleration and coverage are taken there
    (:func:`~taskuq.policy._simulate._jackknife_variance`); the error of finitely many splits is
    added.

    Arguments:
        table: Task outputs of all rounds, with targets.
        plans: The policies.
        trials: The number of splits.
        rng: Their source of randomness; all policies see the same splits where they can.
        unit: 'case', 'group' or 'whole-group'; the group where the table has groups.
        cases: With groups: cover a 'random' case, 'all' cases, or a share of them.
        delta: For a promise given the calibration set.
        tunings: How many tuning folds are averaged over, for policies that learn from targets.

    Example:
        >>> from taskuq.policy._goal import Goal
        >>> from taskuq.table._examples import SyntheticTable, synthetic_outputs
        >>> table = synthetic_outputs(SyntheticTable(volumes=30), seed=0)
        >>> spec = PolicySpec("fixed-width", alpha=0.1, goal=Goal(max_width=0.2))
        >>> found, = simulate(table, [spec], trials=50, rng=rng, unit="case")
        >>> found.coverage > 0.88, found.mean_acceleration > 8
        (True, True)
    """
    if not table.has_targets:
        raise InputError("the table has no targets, so no policy can be judged on it")
    if trials < 1 or tunings < 1:
        raise InputError(f"trials and tunings must be at least 1, got {trials} and {tunings}")
    whom = policy_unit(table, unit, cases)
    index = whom.index(table.cases, table.group)
    n_calibration, n_test = fold_sizes(int(index.max()) + 1)
    seed = int(rng.integers(2**63))
    found = []
    for spec in plans:
        promise = Guarantee(
            alpha=spec.alpha, **whom.record, delta=delta, n_cases=table.cases, given=spec.given
        )
        job = _SimulationJob(table, spec, promise, whom, index, n_calibration, n_test, trials, seed)
        found.append(job.run(tunings, rng))
    return found


# What the trials of one tuning fold gave, and what they give where groups are left out.
_Part: TypeAlias = tuple[SimulatedStops, _JackknifeReplicates | None]


@dataclass(frozen=True)
class _SimulationJob:
    """Policy to simulate."""

    table: TaskOutputs
    spec: PolicySpec
    promise: Guarantee
    unit: Unit
    index: NDArray[np.int64]
    n_calibration: int
    n_test: int
    trials: int
    seed: int

    def run(self, tunings: int, rng: np.random.Generator) -> Simulation:
        steady = steady_rules(self.spec, self.table, self.promise.delta)
        if steady is not None:
            return self._summarise([self._each_trial(steady)], 0)
        parts = []
        draws = list(self._tuning_folds(tunings, rng))
        for draw, aside in enumerate(draws):
            count = self.trials // len(draws) + (draw < self.trials % len(draws))
            # Policies that need no tuning fold all see the same splits.
            seed = self.seed if len(draws) == 1 else splitmix64(self.seed + draw + 1)
            parts.append(self._replay(aside, count, seed))
        return self._summarise(parts, len(np.unique(self.index[draws[0]])))

    @property
    def _work(self) -> int:
        """Numbers looked at in all trials and replicates, some ten of each case and round."""
        return 10 * self.trials * self.table.cases * self.table.rounds

    def _each_trial(self, steady: SelfTunedRules) -> _Part:
        """Replay a policy that learns from its calibration fold, planned anew in each trial."""
        of_case = self.index if self.unit.is_group else np.empty(0, np.int64)
        n, everyone = self.n_calibration + self.n_test, np.arange(self.table.cases)
        splitting = Splits(n, self.n_test, self.trials, self.seed, of_case, use_numba(self._work))
        learn = learn_folds(steady, self.index)
        scans = self._scans(learn(np.zeros(n, np.uint8)).shown, everyone)

        def planned(on: Splits) -> Callable[[int], tuple[StoredScans, FloatArray]]:
            def trial(t: int) -> tuple[StoredScans, FloatArray]:
                fold = on.fold(t)
                fold = fold if self.unit.is_group else on.of_cases(fold[None])[0]
                units, seen, shown = learn(fold)
                thresholds = self.spec.thresholds(
                    seen, SingleSetCalibrator(self.promise, self.unit, units)
                )
                return self._in_light(scans, shown), thresholds

            return trial

        replayed = replay_each(planned(splitting), splitting, len(self.table.accelerations))
        group = scans.group_of_case
        leaving = _jackknife_folds(splitting, group, by_unit=self.unit.is_group)
        if leaving is None:
            return replayed, None
        return replayed, _JackknifeReplicates.measured(planned(leaving), leaving, group, everyone)

    def _scans(self, seen: StoppingStatistics, pool: NDArray[np.int64]) -> StoredScans:
        """Stored scans of some cases, in the light of rules."""
        index, group = unit_index(len(pool), self.index[pool]), self.table.group
        scans = StoredScans(
            seen=seen,
            targets=round_arrays(self.table)[1][:, pool],
            accelerations=self.table.accelerations,
            weight=self.unit.weights(index),
            group_of_case=unit_index(len(pool), None if group is None else group[pool]),
            unit_of_case=index,
            enough=self.unit.enough(np.bincount(index)),
            allowance=np.empty((0, 0)),
        )
        return self._in_light(scans, seen)

    def _in_light(self, scans: StoredScans, seen: StoppingStatistics) -> StoredScans:
        """The same scans in the light of other rules."""
        if not self.unit.stops_together:
            return replace(scans, seen=seen)
        return replace(scans, seen=seen, allowance=seen.allowance(scans.unit_of_case))

    def _tuning_folds(self, tunings: int, rng: np.random.Generator) -> Iterator[NDArray[np.bool_]]:
        spec = self.spec
        take = tuning_units(
            spec.base, self.unit, self.n_calibration, spec.alpha, self.promise.delta,
            spec.tuning_share,
        )  # fmt: skip
        if take == 0 and not tuning_fraction(spec.base):
            yield np.zeros(self.table.cases, dtype=bool)
            return
        if not 1 <= take < self.n_calibration:
            raise InputError(
                f"a policy that learns needs several calibration units, got {self.n_calibration}"
            )
        for _ in range(min(tunings, self.trials)):
            yield choose_units(self.index, take, rng)

    def _replay(self, aside: NDArray[np.bool_], trials: int, seed: int) -> _Part:
        pool = np.flatnonzero(~aside)
        rules, seen = evaluate_rules(self.spec, self.table, aside, pool)
        scans = self._scans(seen, pool)
        index = scans.unit_of_case
        of_case = index if self.unit.is_group else np.empty(0, np.int64)
        is_compiled = use_numba(self._work)
        units = int(index.max()) + 1
        splitting = Splits(units, self.n_test, trials, seed, of_case, is_compiled)
        tuning = set_aside(rules, self.table, aside, self.index) if self.spec.given else None

        def thresholds(on: Splits) -> FloatArray:
            return self.spec.thresholds(
                seen, _SplitCalibrator(self.promise, self.unit, index, on), tuning
            )

        replayed = simulate_splits(scans, splitting, thresholds(splitting))
        leaving = _jackknife_folds(splitting, scans.group_of_case, by_unit=self.unit.is_group)
        if leaving is None:
            return replayed, None
        again, group = thresholds(leaving), unit_index(self.table.cases, self.table.group)
        return replayed, _JackknifeReplicates.measured(
            lambda r: (scans, again[:, r]), leaving, group, pool
        )

    def _summarise(self, parts: list[_Part], n_tuning: int) -> Simulation:
        def joined(name: str) -> FloatArray:
            return np.concatenate([getattr(part, name) for part, _ in parts], axis=-1)

        m = parts[0][0].weight
        acceleration, coverage = m / joined("cost"), joined("kept") / m
        early, covered = joined("early"), joined("covered")
        stopped, stopped_covered = joined("stopped"), joined("stopped_covered")
        rates = self.table.accelerations
        stops = [
            _StopFraction(float(R), float(s.mean() / m), _ratio(c, s))
            for R, s, c in zip(rates, stopped, stopped_covered, strict=True)
        ]
        # A sum of weights may exceed their whole by a rounding error.
        full = max(0.0, float(1 - early.mean() / m))
        stops.append(_StopFraction(1.0, full, 1.0 if full > 0 else math.nan))
        policy = self.spec.policy
        return Simulation(
            policy=self.spec.kind,
            score=score_name(self.spec.base) if "score" in policy.options else "-",
            statistic=self.spec.statistic if "statistic" in policy.options else None,
            budget=self.spec.budget,
            guaranteed=policy.is_guaranteed,
            alpha=self.spec.alpha,
            unit=self.unit.name,
            trials=self.trials,
            n=self.n_calibration + self.n_test,
            n_calibration=self.n_calibration,
            n_test=self.n_test,
            n_tuning=n_tuning,
            coverage_of=self.unit.covered,
            mean_over=self.unit.mean_unit,
            mean_acceleration=float(acceleration.mean()),
            mean_acceleration_of_cases=float((joined("cases") / joined("plain_cost")).mean()),
            coverage=float(coverage.mean()),
            case_coverage=float((covered / m).mean()),
            coverage_from_full=full,
            coverage_early=_ratio(joined("early_covered"), early),
            early=float(early.mean() / m),
            width=_ratio(joined("width"), early),
            center_error=_ratio(joined("center_error"), early),
            max_center_error=_ratio(joined("worst_error"), joined("worst_groups")),
            stops=tuple(stops),
            standard_errors=_standard_errors(
                [replicates for _, replicates in parts if replicates is not None],
                acceleration,
                coverage,
            ),
            sd={
                "mean_acceleration": float(acceleration.std()),
                "coverage": float(coverage.std()),
                "width": _spread(joined("width"), early),
            },
            given=self.spec.given,
        )


def _ratio(part: FloatArray, whole: FloatArray) -> float:
    """Ratio of means over trials; missing where the whole is never there."""
    total = float(whole.sum())
    return float(part.sum()) / total if total > 0 else math.nan


def _spread(part: FloatArray, whole: FloatArray) -> float:
    """Standard deviation over trials of a ratio, where the whole is there and all is finite."""
    there = whole > 0
    ratio = part[there] / whole[there]
    return float(ratio.std()) if there.any() and np.isfinite(ratio).all() else math.nan


CHOOSING = (
    "Whoever chooses by this table and plans on the same cases has no promise left: taskuq plan "
    "--choose compares on cases of their own, taskuq table --share parts a table."
)


def simulation_record(
    table: TaskOutputs,
    goal: Goal | Goals,
    found: Sequence[tuple[int, Simulation]],
    inputs: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the record ``taskuq.simulate/1``."""
    first = found[0][1]
    return {
        "schema": "taskuq.simulate/1",
        "alpha": first.alpha,
        "goal": goal.to_dict(),
        "unit": first.unit,
        "coverage_of": first.coverage_of,
        "mean_over": first.mean_over,
        "trials": first.trials,
        "n": first.n,
        "n_calibration": first.n_calibration,
        "n_test": first.n_test,
        "inputs": {
            "table": repr(table),
            "task_names": list(table.task_names),
            **ranges_to_json(table.task_ranges),
            "provenance": dict(table.provenance),
            "missing_cases": list(table.missing),
            "round_names": called_rounds(table.accelerations, table.round_names),
            **inputs,
        },
        "choosing": CHOOSING,
        "results": [{"samples": p, **result.to_dict()} for p, result in found],
    }
