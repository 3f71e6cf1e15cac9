"""Registry of claims, inputs, findings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from taskuq._registry import Registry
from taskuq.conformal._calibrate import tuning_fraction, tuning_units
from taskuq.conformal._evaluate import PAPER_SIZE_BINS, EvaluationGrid, evaluate_table
from taskuq.conformal._exact import Evaluation
from taskuq.conformal._quantiles import exact_alpha, min_calibration_size
from taskuq.conformal._splits import fold_sizes
from taskuq.conformal._units import CaseUnit, RandomCaseUnit, Unit
from taskuq.conformal.scores import resolve_score
from taskuq.conformal.scores._learned import FEWEST_TO_LEARN, LearnedScore
from taskuq.errors import InputError
from taskuq.interval import BoolArray
from taskuq.report._records import HELD, IN_PART, NOT_HELD, NOT_MEASURED, SUMMARY, experiment_record
from taskuq.report.figures import Figure
from taskuq.report.figures._evaluation import width_against
from taskuq.table._examples import SyntheticTable, synthetic_outputs
from taskuq.table._table import TaskOutputs, replace_arrays
from taskuq.table._terminology import MRI

# Targets are the task network's word on the same image; batches round them differently.
SAME_TARGET = 1e-3
# Fewer splits would make means visibly uncertain.
FEWEST_REPLAYS = 20
# With fewer units a score that learns from targets has nothing to learn from.
UNITS_TO_LEARN = 20


@dataclass(frozen=True)
class ClaimSettings:
    """Values shared by all experiments.

    Arguments:
        alpha: The error rate of interval lengths and coverage.
        samples: Numbers of posterior samples to compare, as far as the table has them.
        samples_acceleration: The acceleration at which they are compared.
        coverage_acceleration: The acceleration at which coverage is looked at.
        scores: The paper's scores; AR belongs to the point estimates where there are any.
        ours: Scores beside them.
        trials: Random splits, where splits are drawn.
        goals: Pairs of an error rate and a width to stop at; the paper's pair is the first.
        round_trials: Random splits in which stopping rules are replayed; a fiftieth of the trials
            (not below 20) where None, because rules that learn are planned anew in each, and the
            error of a mean over splits is still far below that over tables.
        widths: Widths to stop at, for the trade-off between acceleration and width.
        size_bins: Edges of the ranges of widths within which coverage is looked at.
        test_groups: Groups to test on in the paper's own multi-round protocol.
        protocol_trials: How often such groups are drawn, a fiftieth of the trials where None;
            the paper draws them once.
        seed: Where all random splits come from.

    Example:
        >>> ClaimSettings().used("alpha", "seed")
        {'alpha': 0.05, 'seed': 0}
        >>> ClaimSettings(alpha=1.5)
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: alpha ...
    """

    alpha: float = 0.05
    samples: tuple[int, ...] = (2, 4, 8, 16, 32)
    samples_acceleration: float = 16.0
    coverage_acceleration: float = 8.0
    scores: tuple[str, ...] = ("ar", "lwr", "cqr")
    ours: tuple[str, ...] = ("mlwr", "learned")
    trials: int = 10_000
    goals: tuple[tuple[float, float], ...] = (
        (0.01, 0.1), (0.05, 0.1), (0.05, 0.2), (0.1, 0.1), (0.1, 0.2),
    )  # fmt: skip
    round_trials: int | None = None
    widths: tuple[float, ...] = (0.05, 0.1, 0.15, 0.2, 0.3)
    size_bins: tuple[float, ...] = PAPER_SIZE_BINS
    test_groups: int = 8
    protocol_trials: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for alpha in (self.alpha, *(alpha for alpha, _ in self.goals)):
            exact_alpha(alpha)
        if min(self.trials, self.replays, self.draws, self.test_groups) < 1:
            raise InputError("trials and test_groups must be at least 1; give larger numbers")
        if not self.goals or not self.samples or min(self.samples) < 1:
            raise InputError("goals and samples must not be empty; give at least one of each")

    @property
    def replays(self) -> int:
        """Random splits in which stopping rules are replayed."""
        few = max(min(self.trials, FEWEST_REPLAYS), self.trials // 50)
        return few if self.round_trials is None else self.round_trials

    @property
    def draws(self) -> int:
        """How often the groups of the paper's own protocol are drawn."""
        return max(1, self.trials // 50) if self.protocol_trials is None else self.protocol_trials

    def used(self, *names: str) -> dict[str, Any]:
        """Return the named values, for a record that depends on them alone."""
        values = asdict(self)
        return {name: values[name] for name in names}


@dataclass(frozen=True)
class SubsetMembers:
    """Who belongs to one part of the data, e.g. to the one that networks learn from.

    Arguments:
        name: What the part is called.
        group: The group of each case (case,).
        label: The class of each case (case,); None where unknown.
    """

    name: str
    group: np.ndarray
    label: np.ndarray | None = None


@dataclass(frozen=True)
class ClaimInputs:
    """Everything an experiment may look at; what is absent permits fewer experiments.

    Arguments:
        samples: Task outputs of posterior samples.
        point: Task outputs of a point estimate of the same cases, for AR.
        masks: Which columns of k-space each round measures (round, width).
        mask_accelerations: R of the masks.
        published: Whether to look at the paper's masks, whatever the table is of.
        quality: A record ``taskuq.quality/1``.
        task: A record ``taskuq.task/1``.
        parts: Parts of the data beside the judged one, e.g. for training and tuning.
    """

    samples: TaskOutputs | None = None
    point: TaskOutputs | None = None
    masks: BoolArray | None = None
    mask_accelerations: tuple[float, ...] = ()
    published: bool = False
    quality: Mapping[str, Any] | None = None
    task: Mapping[str, Any] | None = None
    parts: Sequence[SubsetMembers] = field(default=())

    @property
    def table(self) -> TaskOutputs:
        """The table of posterior samples."""
        if self.samples is None:
            raise InputError("this experiment needs a table of posterior samples; give one")
        return self.samples

    def lacks(self, needs: Sequence[str]) -> str | None:
        """Return what is missing for an experiment, in words; None where nothing is."""
        for need in needs:
            if reason := self._lacks(need):
                return reason
        return None

    @property
    def is_mri(self) -> bool:
        """Whether lines of k-space were measured, as the table says; without a table the paper's.

        A table that travels with the package or was made by an older version does not say so.
        """
        return self.samples is None or self.samples.provenance.get("words") == MRI.to_dict()

    def _lacks(self, need: str) -> str | None:
        if need == "masks":
            known = self.masks is not None or self.published or self.is_mri
            return None if known else "it needs masks of k-space, and the table is not of MRI"
        if need == "quality":
            return None if self.quality is not None else "it needs a quality record"
        if need == "classifier":
            known = self.task is not None or self._lacks("classes") is None
            return None if known else "it needs a task record, or a table with two classes"
        if self.samples is None:
            return "it needs a table of posterior samples"
        label = self.samples.label
        there = {
            "samples": True,
            "classes": label is not None
            and len(np.unique(label)) == 2
            and find_spec("torch") is not None,
            "rounds": self.samples.rounds > 1,
            "several samples": self.samples.samples > 1,
            "groups": self.samples.group is not None and len(np.unique(self.samples.group)) > 2,
        }[need]
        return None if there else f"it needs a table with {need}"


@dataclass(frozen=True)
class Experiment:
    """One claim and what it takes to look at it.

    Arguments:
        run: From inputs and settings to a record ``taskuq.experiment/1``.
        needs: What of the inputs must be there.
        shows: What it shows, in a few words.
    """

    run: Callable[[ClaimInputs, ClaimSettings], dict[str, Any]]
    needs: tuple[str, ...]
    shows: str


def make_inputs(
    samples: TaskOutputs | None, point: TaskOutputs | None = None, **others: Any
) -> ClaimInputs:
    """Return tables brought together: the same cases in the same order, and one task.

    Cases that only one of the tables has are left out.

    Arguments:
        samples: Task outputs of posterior samples.
        point: Task outputs of a point estimate of the same cases.
        others: Further fields of :class:`ClaimInputs`.

    Example:
        >>> table = TaskOutputs(rng.random((2, 4, 8)), rng.random(4), (8, 4), case=list("abcd"))
        >>> other = table.select(cases=[3, 1, 0], samples=1)
        >>> make_inputs(table, other).table.case
        array(['a', 'b', 'd'], dtype='<U1')
    """
    for table in (samples, point):
        if table is not None and not table.has_targets:
            raise InputError("a table has no targets, so nothing can be judged on it; fill them in")
        if table is not None and table.tasks > 1:
            raise InputError(
                f"the table has {table.tasks} tasks; choose one of {', '.join(table.task_names)}"
            )
    if samples is not None and point is not None:
        samples, point = _matched(samples, point)
    return ClaimInputs(samples=samples, point=point, **others)


def _synthetic_inputs(volumes: int = 30, seed: int = 0) -> ClaimInputs:
    """Return posterior samples of a synthetic scanner, to try an experiment without data.

    Example:
        >>> _synthetic_inputs(volumes=20).table.rounds
        4
    """
    return make_inputs(synthetic_outputs(SyntheticTable(volumes=volumes), seed=seed))


def units(inputs: ClaimInputs) -> tuple[Unit, ...]:
    """Return by what the table can be split: by case, and by group where it has some groups."""
    return (CaseUnit(),) if inputs.lacks(("groups",)) else (CaseUnit(), RandomCaseUnit())


def has_tuning_cases(inputs: ClaimInputs, unit: Unit, alphas: Sequence[float]) -> bool:
    """Return whether a score that learns from targets has enough cases for it in every split.

    Arguments:
        inputs: The tables.
        unit: By what they are split.
        alphas: The error rates, on which depends how many units are set aside.

    Example:
        >>> few = ClaimInputs(TaskOutputs(rng.random((2, 55, 8)), rng.random(55), (4, 2)))
        >>> [has_tuning_cases(few, CaseUnit(), [alpha]) for alpha in (0.05, 0.1)]  # sets aside 19 and 9
        [True, False]
    """
    sizes = np.bincount(unit.index(inputs.table.cases, inputs.table.group))
    if len(sizes) < UNITS_TO_LEARN:
        return False
    calibration, _ = fold_sizes(len(sizes))
    aside = min(tuning_units(LearnedScore(), unit, calibration, alpha, None) for alpha in alphas)
    return int(np.sort(sizes)[:aside].sum()) >= FEWEST_TO_LEARN


def nearest_acceleration(table: TaskOutputs, wanted: float) -> float:
    """Return the acceleration of the table that is nearest to a wanted one, by ratio.

    Example:
        >>> nearest_acceleration(TaskOutputs(rng.random((2, 4, 8)), None, (6, 3)), 8.0)
        6.0
    """
    rates = table.accelerations
    if np.isnan(rates).any():
        return float("nan")
    return float(rates[np.argmin(np.abs(np.log(rates / wanted)))])


def _matched(samples: TaskOutputs, point: TaskOutputs) -> tuple[TaskOutputs, TaskOutputs]:
    if samples.case is not None and point.case is not None:
        place = {str(name): k for k, name in enumerate(point.case)}
        kept = [k for k, name in enumerate(samples.case) if str(name) in place]
        if not kept:
            raise InputError("the two tables have no case in common; give tables of the same cases")
        point = point.select(cases=np.array([place[str(samples.case[k])] for k in kept]))
        samples = samples.select(cases=np.array(kept))
    if samples.cases != point.cases:
        raise InputError(
            f"the tables have {samples.cases} and {point.cases} cases; give tables of the same "
            "cases"
        )
    same_shape = samples.targets.shape == point.targets.shape
    if not same_shape or np.abs(samples.targets - point.targets).max() > SAME_TARGET:
        raise InputError(
            "the two tables have different targets for the same cases; make both with one task"
        )
    return samples, point


Tell = Callable[[str], None]

EXPERIMENTS: Registry[Experiment] = Registry(
    "experiment",
    {
        "interval-length": "taskuq.experiments._interval_length:INTERVAL_LENGTH",
        "sample-count": "taskuq.experiments._interval_length:SAMPLE_COUNT",
        "coverage-law": "taskuq.experiments._coverage:COVERAGE_LAW",
        "conditional-coverage": "taskuq.experiments._coverage:CONDITIONAL_COVERAGE",
        "multi-round": "taskuq.experiments._multi_round:EXPERIMENT",
        "paper-protocol": "taskuq.experiments._paper_protocol:EXPERIMENT",
        "masks": "taskuq.experiments._sampling_masks:EXPERIMENT",
        "data-splits": "taskuq.experiments._data_splits:EXPERIMENT",
        "recovery-quality": "taskuq.experiments._recovery_quality:EXPERIMENT",
        "classifier-quality": "taskuq.experiments._classifier_quality:EXPERIMENT",
    },
)


def run_one(name: str, inputs: ClaimInputs, settings: ClaimSettings) -> dict[str, Any]:
    """Return the record of one of :data:`EXPERIMENTS`, by its name.

    Example:
        >>> run_one("multi-round", ClaimInputs(), ClaimSettings())
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: multi-round cannot be run: it needs a table of posterior ...
    """
    if name not in EXPERIMENTS:
        raise InputError(
            f"there is no experiment {name!r}; choose one of {', '.join(EXPERIMENTS)}, or all"
        )
    lacking = inputs.lacks(EXPERIMENTS[name].needs)
    if lacking is not None:
        raise InputError(f"{name} cannot be run: {lacking}; give it, or leave this experiment out")
    return EXPERIMENTS[name].run(inputs, settings)


def run_all(
    samples_table: TaskOutputs | None,
    point_table: TaskOutputs | None = None,
    settings: ClaimSettings | None = None,
    *,
    tell: Tell = lambda line: None,
    **others: Any,
) -> list[dict[str, Any]]:
    """Return records ``taskuq.experiment/1`` of every experiment that the inputs permit.

    They come in the order of :data:`EXPERIMENTS`; equal inputs and settings give equal records.

    Arguments:
        samples_table: Task outputs of posterior samples.
        point_table: Task outputs of a point estimate of the same cases, for AR.
        settings: What decides the numbers; the paper's values where None.
        tell: Called with a line of progress before each experiment.
        others: Further fields of :class:`~taskuq.experiments._claims.ClaimInputs`, by name.

    Example:
        >>> [record["name"] for record in run_all(None)]
        ['masks']
    """
    inputs = make_inputs(samples_table, point_table, **others)
    return list(
        run_experiments(inputs, ClaimSettings() if settings is None else settings, tell=tell)
    )


def run_experiments(
    inputs: ClaimInputs, settings: ClaimSettings, *, tell: Tell = lambda line: None
) -> Iterator[dict[str, Any]]:
    """Run the experiments that the inputs permit one after the other; each record as it is found.

    Arguments:
        inputs: What is looked at.
        settings: What decides the numbers.
        tell: Called with a line of progress before each experiment.
    """
    for name in EXPERIMENTS:
        experiment = EXPERIMENTS[name]
        lacking = inputs.lacks(experiment.needs)
        if lacking is not None:
            tell(f"{name} is left out: {lacking}")
            continue
        tell(f"{name}: {experiment.shows}")
        yield experiment.run(inputs, settings)


def evaluate_scores(
    inputs: ClaimInputs,
    settings: ClaimSettings,
    unit: Unit,
    *,
    accelerations: Sequence[float] | None = None,
    samples: Sequence[int] | None = None,
    exact: bool = False,
    clip: bool = True,
) -> list[Evaluation]:
    """Return evaluations of the paper's scores and ours on the same splits.

    There is one for each acceleration, score and number of samples, in this order.

    Arguments:
        inputs: The tables.
        settings: Scores, error rate, trials and seed.
        unit: What is split.
        accelerations: The rounds; all where None.
        samples: Numbers of posterior samples; all of the table's where None.
        exact: Whether to take all splits by case at once.
        clip: Whether intervals are cut to the task's range.

    Example:
        >>> from taskuq.conformal._units import CaseUnit
        >>> from taskuq.experiments._claims import make_inputs
        >>> from taskuq.table._examples import SyntheticTable, synthetic_outputs
        >>> table = synthetic_outputs(SyntheticTable(volumes=8), seed=0)
        >>> inputs = make_inputs(table, table.select(samples=1))
        >>> found = evaluate_scores(inputs, ClaimSettings(), CaseUnit(), accelerations=[16], exact=True)
        >>> [(r.score, r.samples) for r in found]
        [('ar', 1), ('lwr', 32), ('cqr', 32), ('mlwr', 32), ('learned', 32)]
    """
    names = [
        name
        for name in (*settings.scores, *settings.ours)
        if has_tuning_cases(inputs, unit, [settings.alpha])
        or not tuning_fraction(resolve_score(name, settings.alpha))
    ]
    plan = EvaluationGrid(
        alpha=settings.alpha,
        trials=None if exact and not unit.is_group else settings.trials,
        seed=settings.seed,
        unit=unit.name,
        samples=None if samples is None else tuple(samples),
        size_bins=settings.size_bins,
    )
    rates = tuple(inputs.table.accelerations if accelerations is None else accelerations)
    estimated = [
        s for s in names if samples is None and table_for_score(inputs, s) is not inputs.table
    ]
    drawn = [s for s in names if s not in estimated]
    found = _compare(inputs.table, plan, drawn, rates, clip)
    if estimated:
        point = table_for_score(inputs, estimated[0])
        there = point.accelerations
        shared = [R for R in rates if np.isnan(R) or np.isclose(there, R, rtol=1e-9).any()]
        if not shared:
            raise InputError("the table of point estimates has none of the accelerations asked for")
        found += _compare(point, plan, estimated, tuple(shared), clip)
    order: dict[float | None, int] = {R: k for k, R in enumerate(rates)}
    found.sort(key=lambda r: (order.get(r.acceleration, 0), names.index(r.score), r.samples))
    return found


def length_figure(
    found: Sequence[Evaluation],
    along: Literal["acceleration", "samples"],
    unit: Unit,
    caption: str,
) -> Figure:
    """Return mean interval lengths, as the paper calls the widths of intervals."""
    return replace(
        width_against([r.to_dict() for r in found], along),
        name=f"length-against-{along}-by-{unit.counted}",
        caption=caption,
        y_label="mean interval length",
    )


def table_for_score(inputs: ClaimInputs, score: str) -> TaskOutputs:
    """Return the table a score is judged on: AR takes the point estimates, where there are any."""
    return inputs.point if score == "ar" and inputs.point is not None else inputs.table


def point_source(inputs: ClaimInputs) -> str:
    """Return where AR's estimate comes from, in words."""
    return "the point estimate" if inputs.point is not None else "the mean of the samples"


def _compare(
    table: TaskOutputs,
    plan: EvaluationGrid,
    scores: list[str],
    rates: tuple[float, ...],
    clip: bool,
) -> list[Evaluation]:
    if not scores:
        return []
    # The paper computes lengths without a range.
    table = table if clip else replace_arrays(table, task_ranges=None)
    return list(
        evaluate_table(table, replace(plan, scores=tuple(scores), accelerations=rates)).results
    )


@dataclass
class FindingWriter:
    """What is shown and found of one claim, split by case and by group.

    Arguments:
        name: A short name for files and links.
        title: The heading.
        claim: What the paper says, or what we say.
        figures: Figures as data.
        tables: Tables as records hold them.
        compared: What was measured, by what it is and how cases were split.
        parts: Whether each part of the claim held, by what it says and how cases were split.
        reasons: Why nothing could be compared.
        rows_are: What the rows of the comparison are.

    Example:
        >>> from taskuq.conformal._units import CaseUnit
        >>> account = FindingWriter("short", "Short intervals", "They are.")
        >>> account.find(CaseUnit(), {"length": 0.2}, {"they are": True, "all are": False})
        >>> record = account.record({}, "the mean length is 0.2", "length 0.2")
        >>> record["finding"], record["tables"][0]["rows"]
        ('Held in part: the mean length is 0.2. Not so by case: all are.', [['length', 0.2]])

    Several numbers of one thing get columns of their own:

        >>> account = FindingWriter("fast", "Fast scans", "They are.", rows_are="R")
        >>> account.find(CaseUnit(), {"8": {"ours": 3.0, "theirs": 2.0}}, {"ours is faster": True})
        >>> account.record({}, "they are", "3")["tables"][0]["columns"]
        ['R', 'ours by case', 'theirs by case']
    """

    name: str
    title: str
    claim: str
    figures: list[Figure] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    compared: dict[str, dict[str, Any]] = field(default_factory=dict)
    parts: dict[str, dict[str, bool]] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    rows_are: str = "what"

    def find(self, unit: Unit, compared: Mapping[str, Any], parts: Mapping[str, bool]) -> None:
        """Add what was measured in splits by a unit, and which parts of the claim held there."""
        by = f"by {unit.counted}"
        self.parts[by] = dict(parts)
        for what, value in compared.items():
            self.compared.setdefault(what, {})[by] = value

    def lack(self, unit: Unit, reason: str) -> None:
        """Add why nothing can be compared in splits by a unit."""
        self.reasons.append(f"by {unit.counted}, {reason}")

    def record(
        self, settings: Mapping[str, Any], said: str | None, number: str | None, *, note: str = ""
    ) -> dict[str, Any]:
        """Return the record ``taskuq.experiment/1``.

        Arguments:
            settings: What decided the numbers.
            said: What was found, in a sentence without its end; None where nothing was.
            number: The one number to remember.
            note: What is to be said beside the comparison.
        """
        judged = verdict(held for of in self.parts.values() for held in of.values())
        return experiment_record(
            self.name, self.title, self.claim, finding(judged, said, self._but), settings,
            self.figures, [*self.tables, *self._summary(note)], verdict=judged, number=number,
        )  # fmt: skip

    @property
    def _but(self) -> str:
        """What did not hold, and what could not be judged."""
        wrong: dict[str, list[str]] = {}
        for by, of in self.parts.items():
            if not all(of.values()):
                parts = listing(part for part, held in of.items() if not held)
                wrong.setdefault(parts, []).append(by)
        said = [f"{' and '.join(by)}: {parts}" for parts, by in wrong.items()]
        return "; ".join([*(["not so " + "; ".join(said)] if said else []), *self.reasons])

    def _summary(self, note: str) -> list[dict[str, Any]]:
        if not self.compared:
            return []
        splits = list(self.parts)
        caption = " and ".join(f"splits {by}" for by in splits)
        caption = f"{caption[0].upper()}{caption[1:]}, side by side." if splits[1:] else ""
        first = next(iter(next(iter(self.compared.values())).values()))
        names = list(first) if isinstance(first, Mapping) else [""]
        return [
            {
                "name": SUMMARY,
                "caption": f"{caption} {note}".strip() or "What was measured.",
                "columns": [
                    self.rows_are,
                    *(f"{name} {by}".strip() for by in splits for name in names),
                ],
                "rows": [
                    [what, *(_of(of.get(by), name) for by in splits for name in names)]
                    for what, of in self.compared.items()
                ],
            }
        ]


def _of(value: Any, name: str) -> Any:
    """One of several numbers by its name, or the only one."""
    return value.get(name) if isinstance(value, Mapping) else value


def finding(judged: str, said: str | None, but: str = "") -> str:
    """Return what was found in at most two sentences, the verdict first.

    Arguments:
        judged: The verdict.
        said: What was found, without its end; None where nothing was.
        but: What did not hold or could not be judged, without its end.

    Example:
        >>> finding("held", "lengths fall"), finding("not measured", None, "there is one round")
        ('Held: lengths fall.', 'Not measured: there is one round.')
    """
    head = judged[:1].upper() + judged[1:]
    if said is None:
        return f"{head}: {but.rstrip('.')}."
    return f"{head}: {said}." + (f" {but[:1].upper()}{but[1:].rstrip('.')}." if but else "")


def verdict(parts: Iterable[bool]) -> str:
    """Return whether a claim held, from whether its parts did.

    Example:
        >>> verdict([True, True]), verdict([True, False]), verdict([False]), verdict([])
        ('held', 'held in part', 'not held', 'not measured')
    """
    found = list(parts)
    if not found:
        return NOT_MEASURED
    if all(found):
        return HELD
    return IN_PART if any(found) else NOT_HELD


def format_range(values: Iterable[float], digits: int = 2) -> str:
    """Return from where to where numbers go; those that are missing are left out.

    Example:
        >>> format_range([0.2, 0.31]), format_range([0.2, 0.2]), format_range([math.nan]), format_range([1, math.inf])
        ('0.20 to 0.31', '0.20', '–', '1.00 to ∞')
    """
    known = [v for v in values if not math.isnan(v)]
    if not known:
        return "–"
    low, high = (f"{v:.{digits}f}" if math.isfinite(v) else "∞" for v in (min(known), max(known)))
    return low if low == high else f"{low} to {high}"


def listing(words: Iterable[str]) -> str:
    """Return words as a list in a sentence.

    Example:
        >>> listing(["LWR", "CQR", "MLWR"]), listing(["LWR"]), listing([])
        ('LWR, CQR and MLWR', 'LWR', 'none')
    """
    found = list(words)
    if len(found) < 2:
        return found[0] if found else "none"
    return f"{', '.join(found[:-1])} and {found[-1]}"


def title(score: str) -> str:
    """Return what a sentence calls a score: short names are acronyms, in capitals.

    Example:
        >>> title("lwr"), title("learned")
        ('LWR', 'learned')
    """
    return score.upper() if len(score) <= 4 else score


def is_decreasing(values: Iterable[float]) -> bool:
    """Return whether every number is below the one before it.

    Example:
        >>> is_decreasing([0.3, 0.2, 0.1]), is_decreasing([0.3, 0.3])
        (True, False)
    """
    found = list(values)
    return all(b < a for a, b in pairwise(found))


def no_finite_interval(found: Sequence[Evaluation]) -> str | None:
    """Return why nothing can be compared, where no score has a finite interval; None elsewhere."""
    if any(r.infinite < 1 for r in found):
        return None
    first = found[0]
    reason = f"an error rate of {first.alpha:g} cannot be promised from {first.n_calibration} "
    reason += f"{first.unit}s"
    if all(r.n_calibration - r.n_tuning >= min_calibration_size(r.alpha) for r in found):
        reason = f"too many scores are infinite for an error rate of {first.alpha:g}"
    return f"{reason}, so every interval is everything and nothing is compared."
