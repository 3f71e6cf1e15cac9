"""What experiments look at, tables of the same cases and records; and what decides the numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np

from taskuq.calibration.rank import exact_level
from taskuq.calibration.scores.learned import FEWEST_TO_LEARN, Learned
from taskuq.calibration.tuning import tuning_units
from taskuq.calibration.units import NewCase, RandomCase, Unit
from taskuq.errors import InputError
from taskuq.evaluation.splits import fold_sizes
from taskuq.evaluation.strata import PAPER_SIZE_BINS
from taskuq.interval import BoolArray
from taskuq.outputs.synthetic import SyntheticScanner, synthetic_outputs
from taskuq.outputs.table import TaskOutputs
from taskuq.words import MRI

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
            exact_level(alpha)
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
class Members:
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
class Inputs:
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
    parts: Sequence[Members] = field(default=())

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

    run: Callable[[Inputs, ClaimSettings], dict[str, Any]]
    needs: tuple[str, ...]
    shows: str


def make_inputs(
    samples: TaskOutputs | None, point: TaskOutputs | None = None, **others: Any
) -> Inputs:
    """Return tables brought together: the same cases in the same order, and one task.

    Cases that only one of the tables has are left out.

    Arguments:
        samples: Task outputs of posterior samples.
        point: Task outputs of a point estimate of the same cases.
        others: Further fields of :class:`Inputs`.

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
    return Inputs(samples=samples, point=point, **others)


def synthetic_inputs(volumes: int = 30, seed: int = 0) -> Inputs:
    """Return posterior samples of a synthetic scanner, to try an experiment without data.

    Example:
        >>> synthetic_inputs(volumes=20).table.rounds
        4
    """
    return make_inputs(synthetic_outputs(SyntheticScanner(volumes=volumes), seed=seed))


def units(inputs: Inputs) -> tuple[Unit, ...]:
    """Return by what the table can be split: by case, and by group where it has some groups."""
    return (NewCase(),) if inputs.lacks(("groups",)) else (NewCase(), RandomCase())


def learns(inputs: Inputs, unit: Unit, alphas: Sequence[float]) -> bool:
    """Return whether a score that learns from targets has enough cases for it in every split.

    Arguments:
        inputs: The tables.
        unit: By what they are split.
        alphas: The error rates, on which depends how many units are set aside.

    Example:
        >>> few = Inputs(TaskOutputs(rng.random((2, 55, 8)), rng.random(55), (4, 2)))
        >>> [learns(few, NewCase(), [alpha]) for alpha in (0.05, 0.1)]  # sets aside 19 and 9
        [True, False]
    """
    sizes = np.bincount(unit.index(inputs.table.cases, inputs.table.group))
    if len(sizes) < UNITS_TO_LEARN:
        return False
    calibration, _ = fold_sizes(len(sizes))
    aside = min(tuning_units(Learned(), unit, calibration, alpha, None) for alpha in alphas)
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
