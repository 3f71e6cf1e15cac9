"""Exact evaluation over all splits, and the results of evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taskuq._display import Displayed, Summary, svg
from taskuq._io import to_json_value
from taskuq.conformal._calibrate import aligned, as_round
from taskuq.conformal._family import BoundSide, parse_side
from taskuq.conformal._quantiles import coverage_rank
from taskuq.conformal._splits import EvaluationInputs, Pool, check_cases, make_pools
from taskuq.conformal._units import as_generator, unit_index
from taskuq.conformal.scores import resolve_score, score_name
from taskuq.errors import InputError, import_extra
from taskuq.interval import BoolArray, FloatArray, Interval, TaskRange
from taskuq.protocols import Score
from taskuq.table._table import TableLike
from taskuq.table._terminology import round_label

if TYPE_CHECKING:
    import pandas

# Ranks less likely than this change no digit of a double.
NEGLIGIBLE = 1e-16
# Bins of the chi-square test are pooled until each expects this many trials.
EXPECTED = 10.0
HONESTLY = (
    "The coverage of random splits of a fixed set follows this law for any data: agreement shows "
    "that the code is right, not that new cases are exchangeable with these cases."
)


@dataclass(frozen=True)
class _QuantileLaw:
    """Distribution, over random splits, of the rank of the quantile among all scores."""

    position: NDArray[np.int64]
    probability: FloatArray
    n_calibration: int
    n_test: int
    rank: int

    @property
    def test_below(self) -> NDArray[np.int64]:
        return self.position - self.rank

    @property
    def test_above(self) -> NDArray[np.int64]:
        return self.n_test - self.test_below

    def coverage(self, ordered: FloatArray, covered_from: FloatArray | None = None) -> MeanAndSD:
        tied, beyond = self._tied_above(ordered, covered_from)
        above = self.test_above
        share = tied / np.maximum(beyond, 1)
        mean = self.test_below + above * share
        # Of the cases beyond, `tied` are covered; a hypergeometric number of them is tested.
        spread = above * share * (1 - share) * (beyond - above) / np.maximum(beyond - 1, 1)
        return self.total(mean / self.n_test, spread / self.n_test**2)

    def coverage_pmf(
        self, ordered: FloatArray, covered_from: FloatArray | None = None
    ) -> FloatArray:
        """Return the probabilities of 0, 1, ..., m covered test cases; scores may tie."""
        tied, beyond = self._tied_above(ordered, covered_from)
        pmf = np.zeros(self.n_test + 1)
        if not tied.any():
            pmf[self.test_below] = self.probability
            return pmf
        for below, above, t, M, probability in zip(
            self.test_below, self.test_above, tied, beyond, self.probability, strict=True
        ):
            extra = np.arange(max(0, above - (M - t)), min(t, above) + 1)
            chance = _log_choose(t, extra) + _log_choose(M - t, above - extra)
            pmf[below + extra] += probability * np.exp(chance - _log_choose(M, above))
        return pmf

    def mean_over_test(self, first: FloatArray, second: FloatArray) -> MeanAndSD:
        """Return mean and SD, over random splits, of the mean of a value over the test cases.

        ``first`` and ``second`` are sums of the value and of its square, from :func:`_sums_at`.
        """
        mean, variance = np.zeros((2, len(self.position)))
        N = self.n_calibration + self.n_test
        for total, square, size, taken in (
            (first[0], second[0], self.position - 1, self.test_below),
            (first[2] - first[1], second[2] - second[1], N - self.position, self.test_above),
        ):
            M = np.maximum(size, 1)
            mean += taken * total / M
            deviation = np.maximum(square - total**2 / M, 0.0)
            # A uniform choice of `taken` out of M without replacement.
            variance += taken * (M - taken) / (M * np.maximum(M - 1, 1)) * deviation
        return self.total(mean / self.n_test, variance / self.n_test**2)

    def total(self, mean: FloatArray, variance: FloatArray) -> MeanAndSD:
        """Return the overall mean and SD, given mean and variance at each rank of the quantile."""
        p = self.probability
        if not np.isfinite(mean).all():
            return MeanAndSD(float("inf"), float("nan"))
        center = float(p @ mean)
        return MeanAndSD(center, math.sqrt(max(float(p @ (variance + (mean - center) ** 2)), 0.0)))

    def _tied_above(
        self, ordered: FloatArray, covered_from: FloatArray | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        at = ordered[self.position - 1]
        starts = ordered if covered_from is None else covered_from
        tied = np.searchsorted(starts, at, side="right") - self.position
        return tied, len(ordered) - self.position


def quantile_position(n_calibration: int, n_test: int, rank: int) -> _QuantileLaw:
    """Return the distribution, over random splits, of the quantile's rank among all scores."""
    n, m, k = n_calibration, n_test, rank
    assert 1 <= k <= n
    j = np.arange(k, k + m + 1)
    ways = _log_choose(j - 1, k - 1) + _log_choose(n + m - j, n - k)
    probability = np.exp(ways - _log_choose(n + m, n))
    kept = probability > NEGLIGIBLE
    # Rounding in the log-gammas is common to all terms; dividing by the sum removes it.
    return _QuantileLaw(j[kept], probability[kept] / probability[kept].sum(), n, m, k)


def _log_choose(total: ArrayLike, part: ArrayLike) -> FloatArray:
    from scipy.special import gammaln

    n, k = np.asarray(total, dtype=float), np.asarray(part, dtype=float)
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


@dataclass(frozen=True)
class MeanAndSD:
    mean: float
    sd: float


@dataclass(frozen=True)
class _CoverageHistogram:
    covered: tuple[int, ...]
    splits: tuple[int, ...]
    expected: tuple[float, ...]
    p_value: float
    reading: str = HONESTLY


def coverage_histogram(covered: NDArray[np.int64], pmf: FloatArray) -> _CoverageHistogram:
    """Return the histogram of the number of covered test cases, with the expected counts."""
    from scipy.special import gammaincc

    trials = len(covered)
    observed = np.bincount(covered, minlength=len(pmf))
    expected = trials * pmf
    bins: list[tuple[float, float]] = []
    count, mass = 0.0, 0.0
    for o, e in zip(observed, expected, strict=True):
        count, mass = count + o, mass + e
        if mass >= EXPECTED:
            bins.append((count, mass))
            count, mass = 0.0, 0.0
    if bins:
        bins[-1] = (bins[-1][0] + count, bins[-1][1] + mass)
    p_value = 1.0
    if len(bins) > 1:
        seen, due = np.array(bins).T
        chi_square = float((np.square(seen - due) / due).sum())
        p_value = float(gammaincc((len(bins) - 1) / 2, chi_square / 2))
    elif not bins and (observed[pmf <= 0] > 0).any():
        p_value = 0.0
    shown = np.nonzero((observed > 0) | (expected >= 0.5))[0]
    span = slice(int(shown.min()), int(shown.max()) + 1)
    splits, due = observed[span].tolist(), expected[span].tolist()
    numbers = range(span.start, span.stop)
    return _CoverageHistogram(tuple(numbers), tuple(splits), tuple(due), p_value)


@dataclass(frozen=True)
class StratumCoverage:
    """Coverage within a class, a site or a range of widths.

    Args:
        name: Name of the class or site, or the range of widths.
        coverage: Covered fraction of the test cases within it.
        cases: Mean number of test cases within it.
        splits: Number of splits with such test cases; None for an exact evaluation.
        width: Mean interval width, for classes and sites.
        standard_error: Standard error of the coverage over groups, or over cases without groups;
            NaN if unknown.
    """

    name: str
    coverage: float
    cases: float
    splits: int | None
    width: float = math.nan
    standard_error: float = math.nan

    def __str__(self) -> str:
        error = "" if math.isnan(self.standard_error) else f" ± {self.standard_error:.2g}"
        return f"{self.coverage:.3g}{error} ({self.name})"


def is_below(coverage: float, standard_error: float, alpha: float) -> bool:
    if math.isnan(standard_error):  # unknown, or no variation
        return coverage == 0
    return coverage + 2 * standard_error < 1 - alpha


BELOW = ", below 1 - alpha by more than two standard errors"
# Names of fields in stored files, where they differ.
STORED = {
    "splits": "trials",
    "coverage_unit": "coverage_of",
    "mean_unit": "mean_over",
    "whole_group_coverage": "whole_groups",
    "width_single_quantile": "width_by_one",
}


@dataclass(frozen=True, repr=False)
class Evaluation(Displayed):
    """Coverage and width of one score over random splits.

    Args:
        score: Name of the score.
        alpha: Error rate.
        unit: Unit that is split, 'case' or 'group'.
        samples: Number of posterior samples.
        n: Number of units in the table.
        n_calibration: Number of units in a calibration set, including tuning units.
        n_test: Number of units in a test set.
        n_tuning: Number of units of the calibration set to which the score is fitted.
        splits: Number of random splits; None for an exact evaluation over all splits.
        coverage: Mean and standard deviation over splits of the covered fraction of test cases
            (every group has equal weight) or of test groups (see ``coverage_unit``).
        case_coverage: Covered fraction of cases, with equal weight for every group.
        coverage_unit: Covered unit, in words, e.g. 'a new case'.
        mean_unit: Unit over which all other means are taken, in words.
        width: Mean interval width.
        center_error: Mean distance of the target from the interval centre or the one-sided bound.
        infinite: Fraction of splits without a finite interval.
        whole_group_coverage: With groups, the fraction of test groups whose cases are all covered.
        class_coverage: Coverage within each class.
        site_coverage: Coverage within each site.
        site_left_out: Coverage of each site under a bound calibrated on all other sites.
        size_coverage: Coverage within each range of widths.
        histogram: Distribution of coverage over splits, if cases are the unit.
        acceleration: Acceleration of the round, if given.
        round_name: Name of the round, if it has one.
        task: Name of the task, if there are several.
        width_single_quantile: For side 'each', the width with one quantile for both ends instead.
    """

    score: str
    alpha: float
    unit: str
    samples: int
    n: int
    n_calibration: int
    n_test: int
    n_tuning: int
    splits: int | None
    coverage: MeanAndSD
    case_coverage: MeanAndSD
    coverage_unit: str
    mean_unit: str
    width: MeanAndSD
    center_error: MeanAndSD
    infinite: float = 0.0
    whole_group_coverage: float | None = None
    class_coverage: tuple[StratumCoverage, ...] = ()
    site_coverage: tuple[StratumCoverage, ...] = ()
    site_left_out: tuple[StratumCoverage, ...] = ()
    size_coverage: tuple[StratumCoverage, ...] = ()
    histogram: _CoverageHistogram | None = None
    acceleration: float | None = None
    round_name: str | None = None
    task: str | None = None
    width_single_quantile: MeanAndSD | None = None

    @property
    def round_label(self) -> str | None:
        """Name of the round, else its acceleration; None if both are unknown."""
        known = self.acceleration is not None or self.round_name is not None
        return round_label(self.acceleration or math.nan, self.round_name) if known else None

    def worst(self, kind: str) -> StratumCoverage | None:
        """Return the class or the site with the lowest coverage.

        Args:
            kind: 'class' or 'site'.
        """
        parts = self.class_coverage if kind == "class" else self.site_coverage
        known = [part for part in parts if part.coverage >= 0]
        return min(known, key=lambda part: part.coverage, default=None)

    def _is_below(self, part: StratumCoverage) -> bool:
        return is_below(part.coverage, part.standard_error, self.alpha)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        fields = asdict(self, dict_factory=lambda items: {STORED.get(k, k): v for k, v in items})
        return dict(to_json_value(fields))

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas DataFrame with one row; ``pandas.concat`` joins several evaluations.

        Raises:
            InputError: If pandas is not installed.
        """
        frames = import_extra("pandas", "pandas")
        names = ("score", "task", "acceleration", "samples", "alpha", "unit", "splits",
                 "n_calibration", "n_test")  # fmt: skip
        row = {name: getattr(self, name) for name in names}
        for name in ("coverage", "width", "center_error"):
            row |= {name: getattr(self, name).mean, f"{name}_sd": getattr(self, name).sd}
        return frames.DataFrame([row])

    def _summary(self) -> Summary:
        how = "all splits, exactly" if self.splits is None else f"{self.splits} random splits"
        named = ", ".join(text for text in (self.score, self.task, self.round_label) if text)
        means = {"coverage": self.coverage, "width": self.width, "centre error": self.center_error}
        rows = [(name, f"{of.mean:.4g}", f"sd {of.sd:.2g}") for name, of in means.items()]
        for kind in ("class", "site"):
            if (worst := self.worst(kind)) is not None:
                value, _, error = str(worst).partition(" ")
                rows.append((f"worst {kind}", value, error + BELOW * self._is_below(worst)))
        title = (
            f"{named}: {how} by {self.unit}, {self.n_calibration} to calibrate, {self.n_test} to "
            f"test, alpha {self.alpha:g}"
        )
        infinite = f"No finite interval in {self.infinite:.3g} of the splits."
        return Summary(title, rows, infinite * (self.infinite > 0))

    def _picture(self) -> str:
        parts = [("all", self.coverage.mean, self.coverage.sd)]
        for one in (*self.class_coverage, *self.site_coverage):
            if one.coverage >= 0:
                error = 0.0 if math.isnan(one.standard_error) else one.standard_error
                parts.append((one.name, one.coverage, error))
        names, means, errors = zip(*parts, strict=True)
        bars = [(m - e, min(1.0, m + e)) for m, e in zip(means, errors, strict=True)]
        return svg("coverage", bars=bars, labels=names, points=means, reference=1 - self.alpha)


@dataclass(frozen=True)
class EvaluationRecord:
    """Evaluations by acceleration, score and number of samples, with the options used."""

    results: tuple[Evaluation, ...]
    inputs: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON record of schema ``taskuq.evaluate/1``."""
        results = [result.to_dict() for result in self.results]
        common = ("alpha", "unit", "trials", "n", "n_calibration", "n_test")
        head = {"schema": "taskuq.evaluate/1", **{name: results[0][name] for name in common}}
        return {**head, "inputs": to_json_value(dict(self.inputs)), "results": results}

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.results))


# Numbers of a table that stay in cache: a few dozen quantiles at a time for thousands of cases.
TABLE = 24_576


def _pool_sums(pool: Pool, position: NDArray[np.int64]) -> FloatArray:
    """Return, for each quantile rank, widths and centre errors summed over the cases."""
    sums = np.zeros((2, 2, 3, len(position)))
    ranks = np.arange(len(pool.scores))
    _add(sums, _Segment(pool, ranks, pool.scores[position - 1], position))
    return sums


@dataclass(frozen=True)
class _Segment:
    """Cases over which to sum, and consecutive quantiles with their positions among all scores."""

    pool: Pool
    rank: NDArray[np.int64]
    quantiles: FloatArray
    position: NDArray[np.int64]

    def cases(self, chosen: NDArray[np.int64]) -> _Segment:
        return replace(self, pool=self.pool.take(chosen), rank=self.rank[chosen])

    def at(self, which: slice) -> _Segment:
        return replace(self, quantiles=self.quantiles[which], position=self.position[which])


def _add(sums: FloatArray, part: _Segment) -> None:
    """Add the widths and centre distances of a segment's cases to the sums.

    For cases whose widths and distances are not linear in the quantile, bisect the range.
    """
    count = len(part.position)
    if count == 1 or part.rank.size * count <= TABLE or not part.pool.moves_in_lines:
        _add_tables(sums, part)
        return
    bent = np.nonzero(~_add_lines(sums, part))[0]
    if bent.size:
        others = part.cases(bent)
        for half in (slice(None, count // 2), slice(count // 2, None)):
            _add(sums[..., half], others.at(half))


def _add_lines(sums: FloatArray, part: _Segment) -> BoolArray:
    """Add cases with width and centre distance linear in the quantile; return a mask of them."""
    q = part.quantiles
    ends = [part.pool.interval(float(quantile)) for quantile in (q[0], q[-1])]
    offsets = [part.pool.offset(interval) for interval in ends]
    straight = _is_straight(part.pool, ends, offsets)
    way = float(q[-1] - q[0])
    # Where the way is infinite, or none, nothing that is straight moves.
    theta = (q - q[0]) / way if 0 < way < np.inf else np.zeros_like(q)
    edges = _edges(replace(part, rank=part.rank[straight]))
    for number, (first, last) in enumerate(
        ([interval.width for interval in ends], [np.abs(offset) for offset in offsets])
    ):
        b = first[straight]
        d = np.subtract(last[straight], b, out=np.zeros_like(b), where=last[straight] != b)
        base, slope, squares, products, slopes = (
            _sums_at(values[None], *edges) for values in (b, d, b * b, b * d, d * d)
        )
        sums[number, 0] += base + slope * theta
        sums[number, 1] += squares + 2 * products * theta + slopes * theta**2
    return straight


def _is_straight(pool: Pool, ends: list[Interval], offsets: list[FloatArray]) -> BoolArray:
    """Return a mask of cases whose width and centre distance are linear between two quantiles."""
    first, last = ends
    low, high = (-np.inf, np.inf) if pool.task_range is None else pool.task_range
    straight = (first.is_empty == last.is_empty) & (offsets[0] * offsets[1] >= 0)
    for stop in (low, -np.inf, np.inf):
        straight &= (first.lower == stop) == (last.lower == stop)
    for stop in (high, -np.inf, np.inf):
        straight &= (first.upper == stop) == (last.upper == stop)
    return np.asarray(straight)


def _add_tables(sums: FloatArray, part: _Segment) -> None:
    step = max(1, TABLE // part.rank.size)
    for start in range(0, len(part.position), step):
        block = slice(start, start + step)
        some = part.at(block)
        interval, edges = some.pool.intervals(some.quantiles), _edges(some)
        for number, values in enumerate((interval.width, np.abs(some.pool.offset(interval)))):
            for power in (0, 1):
                sums[number, power, :, block] += _sums_at(values, *edges, squared=power == 1)


def _edges(part: _Segment) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    place = part.position - 1
    return np.searchsorted(part.rank, place), np.searchsorted(part.rank, place, side="right")


def _sums_at(
    values: FloatArray, before: NDArray[np.int64], upto: NDArray[np.int64], *, squared: bool = False
) -> FloatArray:
    """Return sums of the values before each position, up to it, and in total, (3, position)."""
    low, high = int(before[0]), int(upto[-1])
    near = values[:, low:high]
    near = np.cumsum(near**2 if squared else near, axis=1)
    near = np.concatenate([np.zeros((len(near), 1)), near], axis=1)
    head, tail = (_row_sums(some, squared) for some in (values[:, :low], values[:, high:]))
    row = np.arange(len(before)) % len(values)
    whole = head + near[:, -1] + tail
    below, within = (head[row] + near[row, edge - low] for edge in (before, upto))
    return np.stack([below, within, whole[row]])


def _row_sums(values: FloatArray, squared: bool) -> FloatArray:
    if squared:
        return np.asarray(np.einsum("ij,ij->i", values, values))
    return np.asarray(values @ np.ones(values.shape[1]))


def evaluate_exact(
    outputs: TableLike,
    targets: ArrayLike | None = None,
    *,
    alpha: float,
    score: str | Score = "mlwr",
    side: BoundSide = "two",
    task_range: TaskRange = None,
    tuning_repeats: int = 10,
    seed: int | np.random.Generator | None = None,
    acceleration: float | str | None = None,
    task: str | None = None,
) -> Evaluation:
    r"""Evaluate a score exactly over all splits.

    In every split, the quantile is one of the scores of all cases. The distribution of its rank
    among all scores is known. From this, the mean and standard deviation of coverage and width
    over all :math:`\binom{N}{n}` splits are computed exactly, with ties and clipping included.

    Args:
        outputs: Task outputs as in :func:`taskuq.calibrate`, or a table.
        targets: Targets (case,); omit with a table.
        alpha: Error rate in (0, 1).
        score: Name or object of a score.
        side: 'two', 'upper' or 'lower'.
        task_range: Range to which intervals are clipped.
        tuning_repeats: Number of random tuning sets, if the score is fitted to held-out targets;
            results are averaged over them.
        seed: Integer or Generator for the random choice of tuning sets.
        acceleration: Round of the table to use, by acceleration or name.
        task: Task to use, if the table has several tasks.

    Returns:
        The evaluation; its ``splits`` is None.

    Example:
        >>> truth = rng.random(100)
        >>> outputs = truth[:, None] + 0.1 * rng.standard_normal((100, 8))
        >>> exact = evaluate_exact(outputs, truth, alpha=0.1, score="ar")
        >>> abs(exact.coverage.mean - 64 / 71) < 1e-12  # rank 64 of 70 calibration cases
        True
    """
    outputs, targets = aligned(outputs, targets)
    arrays = as_round(outputs, targets, acceleration, task, None, task_range)
    checked = check_cases(
        arrays.outputs, arrays.targets, label=arrays.label, site=arrays.site,
        task_range=arrays.task_range,
    )  # fmt: skip
    result = evaluate_exact_score(
        checked, score, alpha=alpha, side=side, tuning_repeats=tuning_repeats, seed=seed
    )
    return replace(result, **arrays.labels)


def evaluate_exact_score(
    checked: EvaluationInputs,
    score: str | Score,
    *,
    alpha: float,
    side: BoundSide = "two",
    tuning_repeats: int = 10,
    seed: int | np.random.Generator | None = None,
) -> Evaluation:
    score_side, ends = parse_side(side)
    if ends > 1:
        message = "exact evaluation needs one quantile; use random splits for side='each'"
        raise InputError(message, code="option.conflict")
    if tuning_repeats < 1:
        message = f"tuning_repeats must be at least 1, got {tuning_repeats}"
        raise InputError(message, code="value.invalid")
    chosen = resolve_score(score, alpha, score_side)
    rng = None if seed is None else as_generator(seed)
    pools = make_pools(checked, chosen, alpha, tuning_repeats, rng)
    results, by_case = [], np.zeros((3, len(checked.targets)))
    for pool in pools:
        results.append(_evaluate_pool(checked, pool, alpha))
        if checked.parts:
            by_case[:, pool.index] += _expected_by_case(checked, pool, alpha)
    coverage, width, center_error, infinite, n_tuning = zip(*results, strict=True)
    return Evaluation(
        score=score_name(chosen),
        alpha=alpha,
        **checked.facts,
        n_tuning=n_tuning[0],
        splits=None,
        coverage=_mixture_moments(coverage),
        case_coverage=_mixture_moments(coverage),
        width=_mixture_moments(width),
        center_error=_mixture_moments(center_error),
        infinite=float(np.mean(infinite)),
        class_coverage=_exact_parts(checked, "class", by_case),
        site_coverage=_exact_parts(checked, "site", by_case),
    )


def _exact_parts(
    checked: EvaluationInputs, kind: str, by_case: FloatArray
) -> tuple[StratumCoverage, ...]:
    found = []
    for _, name, inside in (part for part in checked.parts if part[0] == kind):
        cases = int(inside.sum()) * checked.n_test / checked.units
        measures = part_measures(checked, inside, by_case)
        found.append(StratumCoverage(name, measures[0], cases, None, *measures[1:]))
    return tuple(found)


def part_measures(
    checked: EvaluationInputs, inside: BoolArray, by_case: FloatArray
) -> tuple[float, float, float]:
    """Return coverage, mean width and standard error of coverage for the cases ``inside``."""
    # by_case: how often each case was tested and covered, and the sum of its widths.
    weight = checked.unit.weights(checked.unit_of_case) * inside
    tested, covered, width = np.where(inside, by_case, 0.0) * weight
    if not tested.sum() > 0:
        return math.nan, math.nan, math.nan
    coverage = covered.sum() / tested.sum()
    group = unit_index(len(inside), checked.group)
    there, error = np.unique(group[tested > 0]), math.nan
    if len(there) > 1:
        misses = np.bincount(group, covered - coverage * tested)[there]
        spread = math.sqrt(len(there) / (len(there) - 1) * float((misses**2).sum()))
        error = spread / float(tested.sum())
    # No variation at all is no evidence of precision.
    return float(coverage), float(width.sum() / tested.sum()), error or math.nan


def _expected_by_case(checked: EvaluationInputs, pool: Pool, alpha: float) -> FloatArray:
    """Return ones, and the coverage probability and mean width of each test case, (3, case)."""
    n, m, rank = pool.n_calibration, checked.n_test, coverage_rank(pool.n_calibration, alpha)
    if rank > n:
        width = pool.interval(math.inf).width
        return np.stack([np.ones(len(width)), np.ones(len(width)), width])
    # The quantile is one of the other cases: the k-th smallest of n of them.
    law = quantile_position(n, m - 1, rank)
    order = np.argsort(pool.scores, kind="stable")
    ordered = pool.scores[order]
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    covered, width = np.zeros(len(order)), np.zeros(len(order))
    step = max(1, TABLE * 40 // len(order))
    for start in range(0, len(law.position), step):
        j, p = law.position[start : start + step, None], law.probability[start : start + step]
        before, after = (pool.intervals(ordered[k.ravel()]).width for k in (j - 1, j))
        quantile = np.where(j > place, ordered[j], ordered[j - 1])
        covered += p @ (pool.covered_from <= quantile)
        width += p @ np.where(j > place, after, before)
    return np.stack([np.ones(len(order)), covered, width])


def _mixture_moments(parts: tuple[MeanAndSD, ...]) -> MeanAndSD:
    if len(parts) == 1:
        return parts[0]
    mean = float(np.mean([part.mean for part in parts]))
    if not math.isfinite(mean):
        return MeanAndSD(mean, math.nan)
    variance = np.mean([part.sd**2 + (part.mean - mean) ** 2 for part in parts])
    return MeanAndSD(mean, math.sqrt(float(variance)))


def _evaluate_pool(
    checked: EvaluationInputs, pool: Pool, alpha: float
) -> tuple[MeanAndSD, MeanAndSD, MeanAndSD, float, int]:
    rank = coverage_rank(pool.n_calibration, alpha)
    if rank > pool.n_calibration:
        everything = pool.interval(math.inf)
        width = MeanAndSD(float(everything.width.mean()), 0.0)
        error = MeanAndSD(float(np.abs(pool.offset(everything)).mean()), 0.0)
        return MeanAndSD(1.0, 0.0), width, error, 1.0, pool.n_tuning
    order = np.argsort(pool.scores, kind="stable")
    ordered = pool.scores[order]
    law = quantile_position(pool.n_calibration, checked.n_test, rank)
    coverage = law.coverage(ordered, np.sort(pool.covered_from))
    quantiles = ordered[law.position - 1]
    infinite = float(law.probability[np.isposinf(quantiles)].sum())
    # Infinite widths are reported as such, and the spread of widths above 1e154 as unknown.
    with np.errstate(invalid="ignore", over="ignore"):
        sums = _pool_sums(pool.take(order), law.position)
        width, error = (law.mean_over_test(*powers) for powers in sums)
    return coverage, width, error, infinite, pool.n_tuning
