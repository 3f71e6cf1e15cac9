"""What experiments look at: the tables of one set of cases, and records of the networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np

from taskuq.errors import InputError
from taskuq.interval import BoolArray
from taskuq.outputs.table import TaskOutputs, replace_arrays

# Targets are the task network's word on the same image; batches round them differently.
SAME_TARGET = 1e-3
# With fewer groups a score that learns has nothing to learn from.
GROUPS_TO_LEARN = 20


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
        quality: A record ``taskuq.quality/1``.
        task: A record ``taskuq.task/1``.
        parts: Parts of the data beside the judged one, e.g. for training and tuning.
    """

    samples: TaskOutputs | None = None
    point: TaskOutputs | None = None
    masks: BoolArray | None = None
    mask_accelerations: tuple[float, ...] = ()
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

    def _lacks(self, need: str) -> str | None:
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


def make_inputs(
    samples: TaskOutputs | None, point: TaskOutputs | None = None, **others: Any
) -> Inputs:
    """Bring tables together: the same cases in the same order, and one task.

    Arguments:
        samples: Task outputs of posterior samples.
        point: Task outputs of a point estimate of the same cases.
        others: Further fields of :class:`Inputs`.

    Returns:
        The inputs; cases that only one of the tables has are left out.

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


def units(inputs: Inputs) -> tuple[str, ...]:
    """Return by what the table can be split: by case, and by group where it has some groups."""
    return ("case",) if inputs.lacks(("groups",)) else ("case", "group")


def learns(inputs: Inputs, unit: str) -> bool:
    """Return whether there are enough units for a score to learn from some of them."""
    table = inputs.table
    by_case = unit == "case" or table.group is None
    count = table.cases if by_case else len(np.unique(np.asarray(table.group)))
    return count >= GROUPS_TO_LEARN


def unclipped(table: TaskOutputs) -> TaskOutputs:
    """Return the table without its range, as the paper computes lengths."""
    return replace_arrays(table, task_range=None)


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
