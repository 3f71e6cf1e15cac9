"""Registry of claims, their inputs and findings."""

from __future__ import annotations

import math
import warnings
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
from taskuq.errors import GuaranteeWarning, InputError
from taskuq.interval import BoolArray, FloatArray
from taskuq.policy._simulate import Simulation
from taskuq.report._records import (
    NOT_SUPPORTED,
    NOT_TESTED,
    PARTLY_SUPPORTED,
    SUMMARY,
    SUPPORTED,
    experiment_record,
)
from taskuq.report.figures import Figure
from taskuq.report.figures._evaluation import width_against
from taskuq.table._table import TaskOutputs, replace_arrays
from taskuq.table._terminology import MRI

# Targets are the task network's output on the same image; batches round them differently.
SAME_TARGET = 1e-3
FEWEST_REPLAYS = 20
UNITS_TO_LEARN = 20


@dataclass(frozen=True)
class ClaimSettings:
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
    stops_by_case: bool = True  # replay stopping rules by case too if there are groups
    cases: tuple[str, ...] = ()  # of examples
    accelerations: tuple[float, ...] = ()  # of examples; default: all
    seed: int = 0

    def __post_init__(self) -> None:
        for alpha in (self.alpha, *(alpha for alpha, _ in self.goals)):
            exact_alpha(alpha)
        if min(self.trials, self.replays, self.draws, self.test_groups) < 1:
            raise InputError("trials and test_groups must be at least 1", code="value.invalid")
        if not all((self.goals, self.scores + self.ours, self.samples)) or min(self.samples) < 1:
            text = "pass at least one goal, score and sample count"
            raise InputError(text, code="option.missing")

    @property
    def replays(self) -> int:
        few = max(min(self.trials, FEWEST_REPLAYS), self.trials // 50)
        return few if self.round_trials is None else self.round_trials

    @property
    def draws(self) -> int:
        return max(1, self.trials // 50) if self.protocol_trials is None else self.protocol_trials

    def used(self, *names: str) -> dict[str, Any]:
        values = asdict(self)
        return {name: values[name] for name in names}


@dataclass(frozen=True)
class SubsetMembers:
    name: str
    group: np.ndarray
    label: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class StoredExample:
    case: str
    group: str
    truth: FloatArray  # (H, W)
    mean: FloatArray  # (T, H, W)
    sd: FloatArray  # (T, H, W)
    outputs: FloatArray  # (T, sample)
    target: float
    point: FloatArray | None = None  # (T, H, W)
    point_outputs: FloatArray | None = None  # (T,)
    box: tuple[slice, slice] | None = None


@dataclass(frozen=True)
class ClaimInputs:
    samples: TaskOutputs | None = None
    point: TaskOutputs | None = None
    masks: BoolArray | None = None
    mask_accelerations: tuple[float, ...] = ()
    published: bool = False
    quality: Mapping[str, Any] | None = None
    task: Mapping[str, Any] | None = None
    parts: Sequence[SubsetMembers] = field(default=())
    examples: Sequence[StoredExample] = ()  # default: the images stored with the tables
    simulated: Sequence[Simulation] = ()  # by the run itself, with more splits
    simulated_width: float | None = None

    @property
    def table(self) -> TaskOutputs:
        if self.samples is None:
            raise InputError("pass a table of posterior samples", code="option.missing")
        return self.samples

    def lacks(self, needs: Sequence[str]) -> str | None:
        """Return a description of the first missing input of an experiment, or None."""
        return next((reason for need in needs if (reason := self._lacks(need))), None)

    def _lacks(self, need: str) -> str | None:
        if need == "masks":
            # Without a table the masks are the paper's.
            is_mri = self.samples is None or self.samples.provenance.get("words") == MRI.to_dict()
            known = self.masks is not None or self.published or is_mri
            return None if known else "it needs masks of k-space, and the table is not of MRI"
        if need == "images":
            stored = self.samples is not None and self.samples.images_path is not None
            known = stored or (self.samples is not None and len(self.examples) > 0)
            return None if known else "it needs a table with images (taskuq run --keep-images 4)"
        if need == "quality":
            return None if self.quality is not None else "it needs a quality record"
        if need == "classifier":
            known = self.task is not None or self._lacks("classes") is None
            return None if known else "it needs a task record, or a table with two classes"
        if (table := self.samples) is None:
            return "it needs a table of posterior samples"
        classes, groups = (
            len(np.unique([] if n is None else n)) for n in (table.label, table.group)
        )
        there = {
            "samples": True,
            "classes": classes == 2 and find_spec("torch") is not None,
            "rounds": table.rounds > 1,
            "several samples": table.samples > 1,
            "groups": groups > 2,
        }[need]
        return None if there else f"it needs a table with {need}"


@dataclass(frozen=True)
class Experiment:
    run: Callable[[ClaimInputs, ClaimSettings], dict[str, Any]]
    needs: tuple[str, ...]
    shows: str


def make_inputs(
    samples: TaskOutputs | None, point: TaskOutputs | None = None, **others: Any
) -> ClaimInputs:
    """Return the inputs of experiments; two tables are restricted to the cases they share."""
    for table in (samples, point):
        if table is not None and not table.has_targets:
            raise InputError("a table has no targets; fill them in", code="targets.missing")
        if table is not None and table.tasks > 1:
            names = ", ".join(table.task_names)
            raise InputError(f"the table has tasks {names}; choose one", code="option.missing")
    if samples is not None and point is not None:
        samples, point = _matched(samples, point)
    return ClaimInputs(samples=samples, point=point, **others)


def units(inputs: ClaimInputs) -> tuple[Unit, ...]:
    """Return the units of random splits: cases and, if the table has groups, also groups."""
    return (CaseUnit(),) if inputs.lacks(("groups",)) else (CaseUnit(), RandomCaseUnit())


def has_tuning_cases(inputs: ClaimInputs, unit: Unit, alphas: Sequence[float]) -> bool:
    sizes = np.bincount(unit.index(inputs.table.cases, inputs.table.group))
    if len(sizes) < UNITS_TO_LEARN:
        return False
    calibration, _ = fold_sizes(len(sizes))
    aside = min(tuning_units(LearnedScore(), unit, calibration, alpha, None) for alpha in alphas)
    return int(np.sort(sizes)[:aside].sum()) >= FEWEST_TO_LEARN


def nearest_acceleration(table: TaskOutputs, wanted: float) -> float:
    rates = table.accelerations
    if np.isnan(rates).any():
        return float("nan")
    return float(rates[np.argmin(np.abs(np.log(rates / wanted)))])


def _matched(samples: TaskOutputs, point: TaskOutputs) -> tuple[TaskOutputs, TaskOutputs]:
    if samples.case is not None and point.case is not None:
        place = {str(name): k for k, name in enumerate(point.case)}
        kept = [k for k, name in enumerate(samples.case) if str(name) in place]
        if not kept:
            raise InputError("the two tables have no case in common", code="resume.mismatch")
        point = point.select(cases=np.array([place[str(samples.case[k])] for k in kept]))
        samples = samples.select(cases=np.array(kept))
    if samples.cases != point.cases:
        text = f"the tables have {samples.cases} and {point.cases} cases; give the same cases"
        raise InputError(text, code="shape.mismatch")
    same_shape = samples.targets.shape == point.targets.shape
    if not same_shape or np.abs(samples.targets - point.targets).max() > SAME_TARGET:
        text = "the tables have different targets of the same cases; make both with one task"
        raise InputError(text, code="resume.mismatch")
    return samples, point


Log = Callable[[str], None]

EXPERIMENTS: Registry[Experiment] = Registry(
    "experiment",
    {
        "interval-length": "taskuq.experiments._intervals:INTERVAL_LENGTH",
        "sample-count": "taskuq.experiments._intervals:SAMPLE_COUNT",
        "coverage-law": "taskuq.experiments._intervals:COVERAGE_LAW",
        "conditional-coverage": "taskuq.experiments._intervals:CONDITIONAL_COVERAGE",
        "multi-round": "taskuq.experiments._multi_round:MULTI_ROUND",
        "paper-protocol": "taskuq.experiments._multi_round:PAPER_PROTOCOL",
        "masks": "taskuq.experiments._setup:MASKS",
        "data-splits": "taskuq.experiments._setup:DATA_SPLITS",
        "examples": "taskuq.experiments._recovery_quality:EXAMPLES",
        "recovery-quality": "taskuq.experiments._recovery_quality:EXPERIMENT",
        "classifier-quality": "taskuq.experiments._setup:CLASSIFIER_QUALITY",
    },
)


def run_one(name: str, inputs: ClaimInputs, settings: ClaimSettings) -> dict[str, Any]:
    experiment = EXPERIMENTS[name]
    if (lacking := inputs.lacks(experiment.needs)) is not None:
        raise InputError(f"{name} cannot be run: {lacking}", code="option.missing")
    with warnings.catch_warnings():
        # A record has the paper's splits by case next to those by group.
        warnings.simplefilter("ignore", GuaranteeWarning)
        return experiment.run(inputs, settings)


def run_all(
    samples_table: TaskOutputs | None,
    point_table: TaskOutputs | None = None,
    settings: ClaimSettings | None = None,
    *,
    log: Log = lambda line: None,
    **others: Any,
) -> list[dict[str, Any]]:
    """Return a record ``taskuq.experiment/1`` for every experiment whose inputs are given."""
    inputs = make_inputs(samples_table, point_table, **others)
    return list(run_experiments(inputs, ClaimSettings() if settings is None else settings, log=log))


def run_experiments(
    inputs: ClaimInputs, settings: ClaimSettings, *, log: Log = lambda line: None
) -> Iterator[dict[str, Any]]:
    for name in EXPERIMENTS:
        experiment = EXPERIMENTS[name]
        if (lacking := inputs.lacks(experiment.needs)) is not None:
            log(f"{name} is left out: {lacking}")
            continue
        log(f"{name}: {experiment.shows}")
        yield run_one(name, inputs, settings)


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
    learns = has_tuning_cases(inputs, unit, [settings.alpha])
    every = (*settings.scores, *settings.ours)
    names = [s for s in every if learns or not tuning_fraction(resolve_score(s, settings.alpha))]
    if not names:
        text = f"{inputs.table.cases} cases are too few to tune {listing(every)}; add other scores"
        raise InputError(text, code="units.few")
    plan = EvaluationGrid(
        alpha=settings.alpha,
        splits=None if exact and not unit.is_group else settings.trials,
        seed=settings.seed,
        unit=unit.name,
        samples=None if samples is None else tuple(samples),
        size_bins=settings.size_bins,
    )
    rates = tuple(inputs.table.accelerations if accelerations is None else accelerations)
    point = inputs.point if samples is None and "ar" in names else None
    parts = [(inputs.table, [s for s in names if point is None or s != "ar"], rates)]
    if point is not None:
        there = point.accelerations
        shared = [R for R in rates if np.isnan(R) or np.isclose(there, R, rtol=1e-9).any()]
        if not shared:
            raise InputError(
                "the table of point estimates has none of these accelerations",
                code="rounds.invalid",
            )
        parts.append((point, ["ar"], tuple(shared)))
    found: list[Evaluation] = []
    for table, scores, shown in parts:
        if scores:
            # The paper computes lengths without a range.
            table = table if clip else replace_arrays(table, task_ranges=None)
            chosen = replace(plan, scores=tuple(scores), accelerations=shown)
            found += evaluate_table(table, chosen).results
    order: dict[float | None, int] = {R: k for k, R in enumerate(rates)}
    found.sort(key=lambda r: (order.get(r.acceleration, 0), names.index(r.score), r.samples))
    return found


def length_figure(
    found: Sequence[Evaluation], along: Literal["acceleration", "samples"], unit: Unit, caption: str
) -> Figure:
    return replace(
        width_against([r.to_dict() for r in found], along),
        name=f"length-against-{along}-by-{unit.counted}",
        caption=caption,
        y_label="mean interval length",
    )


def table_for_score(inputs: ClaimInputs, score: str) -> TaskOutputs:
    return inputs.point if score == "ar" and inputs.point is not None else inputs.table


def point_source(inputs: ClaimInputs) -> str:
    return "the point estimate" if inputs.point is not None else "the mean of the samples"


@dataclass
class FindingWriter:
    """Writer of the tables, figures and finding of one claim."""

    name: str
    title: str
    claim: str
    criterion: str
    figures: list[Figure] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    compared: dict[str, dict[str, Any]] = field(default_factory=dict)
    parts: dict[str, dict[str, bool]] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    rows_are: str = "quantity"

    def find(self, unit: Unit, compared: Mapping[str, Any], parts: Mapping[str, bool]) -> None:
        """Add results of splits by case or group, and True for each supported part of the claim."""
        by = f"by {unit.counted}"
        self.parts[by] = dict(parts)
        for what, value in compared.items():
            self.compared.setdefault(what, {})[by] = value

    def lack(self, unit: Unit, reason: str) -> None:
        """Record the reason why splits by case (or by group) allow no comparison."""
        self.reasons.append(f"by {unit.counted}, {reason}")

    def record(
        self, settings: Mapping[str, Any], measured: str | None, number: str | None, note: str = ""
    ) -> dict[str, Any]:
        outcome = verdict(right for of in self.parts.values() for right in of.values())
        return experiment_record(
            self.name, self.title, self.claim, finding(outcome, measured, self._but), settings,
            self.figures, [*self.tables, *self._summary(note)], verdict=outcome, number=number,
            criterion=self.criterion,
        )  # fmt: skip

    @property
    def _but(self) -> str:
        wrong: dict[str, list[str]] = {}
        for by, of in self.parts.items():
            if not all(of.values()):
                parts = listing(part for part, right in of.items() if not right)
                wrong.setdefault(parts, []).append(by)
        each = [f"for splits {' and '.join(by)} that {parts}" for parts, by in wrong.items()]
        return "; ".join([*(["not confirmed " + "; ".join(each)] if each else []), *self.reasons])

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
                "caption": f"{caption} {note}".strip() or "Results.",
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
    return value.get(name) if isinstance(value, Mapping) else value


def finding(outcome: str, measured: str | None, but: str = "") -> str:
    """Return the finding of a claim in at most two sentences, beginning with the outcome."""
    head = outcome[:1].upper() + outcome[1:]
    if measured is None:
        return f"{head}: {but.rstrip('.')}."
    return f"{head}: {measured}." + (f" {but[:1].upper()}{but[1:].rstrip('.')}." if but else "")


def verdict(parts: Iterable[bool]) -> str:
    found = list(parts)
    if not found:
        return NOT_TESTED
    if all(found):
        return SUPPORTED
    return PARTLY_SUPPORTED if any(found) else NOT_SUPPORTED


def format_range(values: Iterable[float], digits: int = 2) -> str:
    known = [v for v in values if not math.isnan(v)]
    if not known:
        return "–"
    low, high = (f"{v:.{digits}f}" if math.isfinite(v) else "∞" for v in (min(known), max(known)))
    return low if low == high else f"{low} to {high}"


def listing(words: Iterable[str]) -> str:
    found = list(words)
    if len(found) < 2:
        return found[0] if found else "none"
    return f"{', '.join(found[:-1])} and {found[-1]}"


def title(score: str) -> str:
    return score.upper() if len(score) <= 4 else score


def is_decreasing(values: Iterable[float]) -> bool:
    return all(b < a for a, b in pairwise(values))


def no_finite_interval(found: Sequence[Evaluation]) -> str | None:
    """Return the reason why intervals cannot be compared, or None."""
    if any(r.infinite < 1 for r in found):
        return None
    first = found[0]
    count = f"{first.n_calibration} {first.unit}s"
    reason = f"an error rate of {first.alpha:g} cannot be guaranteed from {count}"
    if all(r.n_calibration - r.n_tuning >= min_calibration_size(r.alpha) for r in found):
        reason = f"too many scores are infinite for an error rate of {first.alpha:g}"
    return f"{reason}, so every interval is the whole range and nothing is compared."
