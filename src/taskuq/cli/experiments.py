"""Commands experiment, quality and rehearse."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from taskuq.cli.app import (
    Seed,
    TableOption,
    load_table,
    parse_floats,
    parse_list,
    print_message,
    print_result,
    show_table,
)
from taskuq.errors import InputError
from taskuq.experiments._claims import EXPERIMENTS, SubsetMembers, run_all, run_one

if TYPE_CHECKING:
    from taskuq.experiments._claims import SubsetMembers

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
    from taskuq._io import read_json, write_json
    from taskuq.experiments._claims import ClaimSettings, make_inputs

    widths, bins = parse_floats(max_width, "max-width"), parse_floats(size_bins, "size-bins")
    scores = None if score is None else parse_list(score)
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
        records = run_all(drawn, estimated, settings, tell=print_message, **others)
    else:
        print_message(f"{name}: {EXPERIMENTS[name].shows}")
        records = [run_one(name, make_inputs(drawn, estimated, **others), settings)]
    for record in records:
        print_experiment(record)
    for record in records:
        print_result(str(write_json(output / "records" / f"{record['name']}.json", record)))


def print_experiment(record: dict[str, Any]) -> None:
    """Print the claim, the finding and the tables of an experiment."""
    from taskuq.report._records import shown

    for table in record["tables"]:
        rows = [[shown(value) for value in row] for row in table["rows"]]
        show_table(f"{record['title']}: {table['name']}", table["columns"], rows)
    print_message(f"Claim: {record['claim']}")
    print_message(f"Finding: {record['finding']}\n")


def _masks(path: Path) -> tuple[Any, tuple[float, ...]]:
    import numpy as np

    from taskuq._io import open_npz

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


def _parts(config: Path) -> list[SubsetMembers]:
    from taskuq.data._readers import open_data, read_data
    from taskuq.experiments._claims import SubsetMembers

    opened = zip(("train", "tune"), open_data(read_data(config)), strict=True)
    return [SubsetMembers(name, part.groups, part.labels) for name, part in opened]


TABLES = (
    "A TOML file with the tables data and measure, and the weights varnet, flow, recoveries and "
    "features."
)


def quality(
    config: Annotated[Path, Parameter(help=TABLES)],
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("quality.json"),
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    slurm: Annotated[list[str] | None, Parameter(name="--slurm", negative=())] = None,
    device: str | None = None,
    threads: int | None = None,
) -> None:
    """Judge recovery networks: PSNR and SSIM of whole volumes, and FID, at each acceleration.

    What is judged is kept beside the output until all is; started again after a stop, it goes on.

    Arguments:
        config: What to judge.
        output: The JSON record to write.
        engine: This process (local), a Ray cluster (ray), SLURM jobs (slurm), or one of your own.
        address: Of a running Ray cluster, host:port; a local one is started without it. With
            slurm, 'local' runs the jobs on this machine.
        workers: How many Ray workers, or SLURM jobs, share the volumes.
        slurm: What SLURM is asked for, as submitit names it, e.g. slurm_partition=gpu; repeatable.
            Jobs get a GPU (gpus_per_node=1) and four hours (timeout_min=240) by default.
        device: Where networks run: cpu, cuda, mps; the best there is by default.
        threads: Threads of each worker on a CPU; with equal threads all bits are equal.
    """
    from taskuq._config import read_config
    from taskuq._io import write_json
    from taskuq.experiments._quality import QualityConfig, evaluate_quality
    from taskuq.pipeline._engines import ENGINES, EngineOptions

    settings = read_config(QualityConfig, config)
    chosen = ENGINES[engine].from_flags(EngineOptions(address, workers, tuple(slurm or ()), device))
    store = output.with_name(f"{output.stem}-pieces")
    record = evaluate_quality(settings, store=store, engine=chosen, device=device, threads=threads)
    for line in table(record):
        print_message(line)
    print_result(str(write_json(output, record)))


def table(record: dict[str, Any]) -> list[str]:
    r"""The record as lines of text, one for each acceleration and method.

    Arguments:
        record: What :func:`taskuq.experiments._quality.evaluate_quality` returns.

    Example:
        >>> row = {"acceleration": 4.0, "method": "flow", "psnr": {"mean": 37.974,
        ...        "standard_error": 0.216}, "ssim": {"mean": 0.926, "standard_error": 0.003}}
        >>> print("\n".join(table({"results": [row]})))
          R method           PSNR             SSIM          FID
          4 flow        37.97 ± 0.22     0.926 ± 0.003    -
    """
    lines = ["  R method           PSNR             SSIM          FID"]
    for row in record["results"]:
        psnr, ssim = (_with_error(row[name], digits) for name, digits in (("psnr", 2), ("ssim", 3)))
        fid = f"{row['fid']:.3f}" if "fid" in row else "-"
        lines.append(f"{row['acceleration']:3g} {row['method']:11s} {psnr:16s} {ssim:16s} {fid}")
    return lines


def _with_error(value: dict[str, float | None], digits: int) -> str:
    mean, error = value["mean"], value["standard_error"]
    tail = "" if error is None else f" ± {error:.{digits}f}"
    return "-" if mean is None else f"{mean:.{digits}f}{tail}"


def rehearse(
    configs: Path,
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("runs/rehearsal"),
    steps: Annotated[int, Parameter(validator=Number(gte=2))] = 3,
    volumes: Annotated[int, Parameter(validator=Number(gte=4, lte=10))] = 5,
    data: Path | None = None,
    toy: bool = False,
    fresh: bool = False,
) -> None:
    """Run every command of docs/fastmri.md at its real size, a few steps each; project the hours.

    A command that fails does not end the rehearsal. Started again, it keeps what has passed.

    Arguments:
        configs: The folder of configurations, configs/fastmri-knee.
        output: The folder for the record, the logs and the working folder.
        steps: Steps of each training, at least 2: the first compiles.
        volumes: Training volumes, and validation volumes, to make or to link.
        data: Your own files, laid out as data/ of the document; they are linked and only read.
            Without it, volumes of the same layout are made.
        toy: Small images and networks: the machinery without a GPU.
        fresh: Throw away an earlier rehearsal.
    """
    from taskuq.experiments._rehearse import PAGE, Rehearsal, rehearsal_markdown

    rehearsal = Rehearsal(output, configs, steps, volumes, data, toy, print_message)
    record = rehearsal.run(fresh=fresh)
    print_message("\n" + rehearsal_markdown(record))
    print_result(str(output / PAGE))
    if record["failed"]:
        sys.exit(1)
