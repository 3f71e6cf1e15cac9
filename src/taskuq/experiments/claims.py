"""The list of experiments, one for each claim, and running those that the inputs permit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from taskuq.errors import InputError
from taskuq.experiments.inputs import ClaimSettings, Experiment, Inputs, make_inputs
from taskuq.kinds import Kinds
from taskuq.outputs import TaskOutputs

Tell = Callable[[str], None]

EXPERIMENTS: Kinds[Experiment] = Kinds(
    "experiment",
    {
        "interval-length": "taskuq.experiments.interval_length:EXPERIMENT",
        "sample-count": "taskuq.experiments.sample_count:EXPERIMENT",
        "coverage-law": "taskuq.experiments.coverage_law:EXPERIMENT",
        "conditional-coverage": "taskuq.experiments.conditional_coverage:EXPERIMENT",
        "multi-round": "taskuq.experiments.multi_round:EXPERIMENT",
        "paper-protocol": "taskuq.experiments.paper_protocol:EXPERIMENT",
        "masks": "taskuq.experiments.sampling_masks:EXPERIMENT",
        "data-splits": "taskuq.experiments.data_splits:EXPERIMENT",
        "recovery-quality": "taskuq.experiments.recovery_quality:EXPERIMENT",
        "classifier-quality": "taskuq.experiments.classifier_quality:EXPERIMENT",
    },
)


def run_one(name: str, inputs: Inputs, settings: ClaimSettings) -> dict[str, Any]:
    """Return the record of one of :data:`EXPERIMENTS`, by its name.

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
        others: Further fields of :class:`~taskuq.experiments.inputs.Inputs`, by name.

    Example:
        >>> [record["name"] for record in run_all(None)]
        ['masks']
    """
    inputs = make_inputs(samples_table, point_table, **others)
    return list(run_each(inputs, ClaimSettings() if settings is None else settings, tell=tell))


def run_each(
    inputs: Inputs, settings: ClaimSettings, *, tell: Tell = lambda line: None
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
