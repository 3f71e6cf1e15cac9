"""All experiments by name, and running those that the inputs permit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taskuq.errors import InputError
from taskuq.experiments.classifier_quality import classifier_quality
from taskuq.experiments.conditional_coverage import conditional_coverage
from taskuq.experiments.coverage_law import coverage_law
from taskuq.experiments.data_splits import data_splits
from taskuq.experiments.inputs import Inputs, Members, make_inputs
from taskuq.experiments.interval_length import interval_length
from taskuq.experiments.multi_round import multi_round
from taskuq.experiments.paper_protocol import paper_protocol
from taskuq.experiments.recovery_quality import recovery_quality
from taskuq.experiments.sample_count import sample_count
from taskuq.experiments.sampling_masks import sampling_masks
from taskuq.experiments.settings import ClaimSettings
from taskuq.interval import BoolArray
from taskuq.outputs import TaskOutputs

__all__ = ["EXPERIMENTS", "ClaimSettings", "Experiment", "run_all", "run_one"]

Tell = Callable[[str], None]


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


EXPERIMENTS: Mapping[str, Experiment] = {
    "interval-length": Experiment(
        interval_length, ("samples", "rounds"), "interval length against acceleration"
    ),
    "sample-count": Experiment(
        sample_count, ("samples", "several samples"), "interval length against posterior samples"
    ),
    "coverage-law": Experiment(coverage_law, ("samples",), "coverage against its exact law"),
    "conditional-coverage": Experiment(
        conditional_coverage, ("samples",), "coverage within classes and widths"
    ),
    "multi-round": Experiment(
        multi_round, ("samples", "rounds", "several samples"), "when scans stop"
    ),
    "paper-protocol": Experiment(
        paper_protocol,
        ("samples", "rounds", "several samples", "groups"),
        "the paper's multi-round protocol",
    ),
    "masks": Experiment(sampling_masks, (), "sampling masks"),
    "data-splits": Experiment(data_splits, ("samples",), "who calibrates and who tests"),
    "recovery-quality": Experiment(recovery_quality, ("quality",), "image quality of recoveries"),
    "classifier-quality": Experiment(
        classifier_quality, ("classifier",), "the task network as a classifier"
    ),
}


def run_one(name: str, inputs: Inputs, settings: ClaimSettings) -> dict[str, Any]:
    """Run one experiment by name.

    Arguments:
        name: One of :data:`EXPERIMENTS`.
        inputs: What it looks at.
        settings: What decides the numbers.

    Example:
        >>> run_one("multi-round", Inputs(), ClaimSettings())
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
    masks: BoolArray | None = None,
    mask_accelerations: Sequence[float] = (),
    quality: Mapping[str, Any] | None = None,
    task: Mapping[str, Any] | None = None,
    parts: Sequence[Members] = (),
    tell: Tell = lambda line: None,
) -> list[dict[str, Any]]:
    """Run every experiment that the inputs permit.

    Arguments:
        samples_table: Task outputs of posterior samples.
        point_table: Task outputs of a point estimate of the same cases, for AR.
        settings: What decides the numbers; the paper's values where None.
        masks: Which columns of k-space each round measures (round, width).
        mask_accelerations: R of the masks.
        quality: A record ``taskuq.quality/1``.
        task: A record ``taskuq.task/1``.
        parts: Parts of the data beside the judged one.
        tell: Called with a line of progress before each experiment.

    Returns:
        Records ``taskuq.experiment/1``, in the order of :data:`EXPERIMENTS`; equal inputs and
        settings give equal records.

    Example:
        >>> [record["name"] for record in run_all(None)]
        ['masks']
    """
    inputs = make_inputs(
        samples_table,
        point_table,
        masks=masks,
        mask_accelerations=tuple(mask_accelerations),
        quality=quality,
        task=task,
        parts=tuple(parts),
    )
    chosen = ClaimSettings() if settings is None else settings
    records = []
    for name, experiment in EXPERIMENTS.items():
        lacking = inputs.lacks(experiment.needs)
        if lacking is not None:
            tell(f"{name} is left out: {lacking}")
            continue
        tell(f"{name}: {experiment.shows}")
        records.append(experiment.run(inputs, chosen))
    return records
