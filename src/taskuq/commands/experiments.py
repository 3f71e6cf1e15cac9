"""taskuq experiment: look at the paper's claims on stored tables and records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from taskuq.commands.arguments import Seed, TableOption, load_table, numbers, words
from taskuq.commands.terminal import say, show, show_table
from taskuq.errors import InputError
from taskuq.experiments.claims import EXPERIMENTS, run_all, run_one

if TYPE_CHECKING:
    from taskuq.experiments.inputs import Members

    Name = str
else:
    Name = Literal[("all", *EXPERIMENTS)]


def experiment(
    name: Name,
    /,
    *,
    samples: TableOption = None,
    point: Path | None = None,
    quality: Path | None = None,
    classifier: Path | None = None,
    masks: Path | None = None,
    data: Path | None = None,
    alpha: float | None = None,
    max_width: str | None = None,
    size_bins: str | None = None,
    score: str | None = None,
    trials: int | None = None,
    seed: Seed = 0,
    range: Annotated[str | None, Parameter(name="--range", allow_leading_hyphen=True)] = None,
    task: str | None = None,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("runs/experiments"),
) -> None:
    """Look at one of the paper's claims, or at all that the inputs permit, and record it.

    Arguments:
        name: The experiment, or all.
        samples: A table of posterior samples.
        point: A table of point estimates of the same cases, for AR.
        quality: A record of image quality, as taskuq quality writes it.
        classifier: A record of the task network, as taskuq train classifier writes it.
        masks: Masks as taskuq masks writes them; the paper's without it.
        data: A configuration whose data table names training data, to count them too.
        alpha: The error rate of lengths and coverage; the paper's 0.05 by default.
        max_width: Widths to stop at, separated by commas, each at --alpha; the paper's pairs of
            error rates and widths by default.
        size_bins: Edges of width ranges for coverage by width; the paper's by default.
        score: Scores to compare, separated by commas; the paper's and ours by default.
        trials: The number of random splits; the paper's 10 000 by default.
        seed: The seed of the splits.
        range: The task's range, low,high, where the tables do not declare it.
        task: One task of tables of several.
        output: The run's folder; records go to its folder records.
    """
    from taskuq.experiments.inputs import ClaimSettings, make_inputs
    from taskuq.files import read_json, write_json

    widths, bins = numbers(max_width, "max-width"), numbers(size_bins, "size-bins")
    scores = None if score is None else words(score)
    changed: dict[str, Any] = {
        "alpha": alpha, "trials": trials, "size_bins": bins,
        "goals": widths and tuple((alpha or ClaimSettings.alpha, width) for width in widths),
        "widths": widths,
        "scores": scores and tuple(s for s in scores if s in ClaimSettings.scores),
        "ours": scores and tuple(s for s in scores if s not in ClaimSettings.scores),
    }  # fmt: skip
    settings = ClaimSettings(seed=seed, **{k: v for k, v in changed.items() if v is not None})
    found, rates = (None, ()) if masks is None else _masks(masks)
    drawn, estimated = (None if t is None else load_table(t, range, task) for t in (samples, point))
    others: dict[str, Any] = {
        "masks": found,
        "mask_accelerations": rates,
        "quality": None
        if quality is None
        else read_json(quality, "taskuq.quality/1", is_sealed=False),
        "task": None
        if classifier is None
        else read_json(classifier, "taskuq.task/1", is_sealed=False),
        "parts": () if data is None else _parts(data),
    }
    if name == "all":
        records = run_all(drawn, estimated, settings, tell=say, **others)
    else:
        say(f"{name}: {EXPERIMENTS[name].shows}")
        records = [run_one(name, make_inputs(drawn, estimated, **others), settings)]
    for record in records:
        print_experiment(record)
    for record in records:
        show(str(write_json(output / "records" / f"{record['name']}.json", record)))


def print_experiment(record: dict[str, Any]) -> None:
    """Print the claim, the finding and the tables of an experiment."""
    from taskuq.report._records import shown

    for table in record["tables"]:
        rows = [[shown(value) for value in row] for row in table["rows"]]
        show_table(f"{record['title']}: {table['name']}", table["columns"], rows)
    say(f"Claim: {record['claim']}")
    say(f"Finding: {record['finding']}\n")


def _masks(path: Path) -> tuple[Any, tuple[float, ...]]:
    import numpy as np

    from taskuq.files import open_npz

    try:
        with open_npz(path, "masks") as file:
            masks, rates = file["masks"].astype(bool), file["accelerations"].astype(float)
    except InputError as error:
        raise InputError(
            f"{path} does not hold masks ({error!s:.60}); make it with taskuq masks"
        ) from None
    is_cost = rates.ndim == 1 and bool(np.isfinite(rates).all() and (rates >= 1).all())
    if masks.ndim != 2 or rates.shape != masks.shape[:1] or not is_cost:
        raise InputError(
            f"{path} holds masks {masks.shape} and accelerations {rates.shape}; give one "
            "acceleration of at least 1 for each round"
        )
    return masks, tuple(rates.tolist())


def _parts(config: Path) -> list[Members]:
    from taskuq.data.readers import open_data, read_data
    from taskuq.experiments.inputs import Members

    opened = zip(("train", "tune"), open_data(read_data(config)), strict=True)
    return [Members(name, part.groups, part.labels) for name, part in opened]
