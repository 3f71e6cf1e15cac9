"""Commands experiment, quality and rehearse."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from taskuq.cli import app
from taskuq.errors import InputError
from taskuq.experiments._claims import EXPERIMENTS, SubsetMembers, run_all, run_one

if TYPE_CHECKING:
    from taskuq.experiments._claims import SubsetMembers

    Name = str
else:
    Name = Literal[("all", *EXPERIMENTS)]


@app.command("experiment")
def experiment(
    name: Name,
    /,
    *,
    table: Path | None = None,
    point: Path | None = None,
    quality: Path | None = None,
    classifier: Path | None = None,
    masks: Path | None = None,
    data: Path | None = None,
    alpha: float | None = None,
    max_width: str | None = None,
    size_bins: str | None = None,
    score: str | None = None,
    splits: int | None = None,
    seed: app.Seed = 0,
    range: app.Range = None,
    task: str | None = None,
    output: app.Output = Path("runs/experiments"),
) -> None:
    from taskuq._io import read_json, write_json
    from taskuq.experiments._claims import ClaimSettings, make_inputs

    widths, bins = (
        app.parse_floats(max_width, "max-width"),
        app.parse_floats(size_bins, "size-bins"),
    )
    scores = None if score is None else app.parse_list(score)
    changed: dict[str, Any] = {
        "alpha": alpha, "trials": splits, "size_bins": bins,
        "goals": widths and tuple((alpha or ClaimSettings.alpha, width) for width in widths),
        "widths": widths,
        "scores": scores and tuple(s for s in scores if s in ClaimSettings.scores),
        "ours": scores and tuple(s for s in scores if s not in ClaimSettings.scores),
    }  # fmt: skip
    settings = ClaimSettings(seed=seed, **{k: v for k, v in changed.items() if v is not None})
    mask_array, rates = (None, ()) if masks is None else _masks(masks)
    sampled, estimated = (
        None if t is None else app.load_table(t, range, task) for t in (table, point)
    )
    others: dict[str, Any] = {
        "masks": mask_array,
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
        records = run_all(sampled, estimated, settings, log=app.print_message, **others)
    else:
        app.print_message(f"{name}: {EXPERIMENTS[name].shows}")
        records = [run_one(name, make_inputs(sampled, estimated, **others), settings)]
    for record in records:
        print_experiment(record)
    for record in records:
        app.print_result(str(write_json(output / "records" / f"{record['name']}.json", record)))


def print_experiment(record: dict[str, Any]) -> None:
    """Print the claim, the finding and the tables of an experiment."""
    from taskuq.report._records import shown

    for table in record["tables"]:
        rows = [[shown(value) for value in row] for row in table["rows"]]
        app.show_table(f"{record['title']}: {table['name']}", table["columns"], rows)
    app.print_message(f"Claim: {record['claim']}")
    app.print_message(f"Finding: {record['finding']}\n")


def _masks(path: Path) -> tuple[Any, tuple[float, ...]]:
    import numpy as np

    from taskuq._io import open_npz

    try:
        with open_npz(path, "masks") as file:
            masks, rates = file["masks"].astype(bool), file["accelerations"].astype(float)
    except InputError as error:
        raise InputError(
            f"{path} holds no masks ({error!s:.60}); rebuild it with taskuq masks",
            code="file.format",
        ) from None
    is_cost = rates.ndim == 1 and bool(np.isfinite(rates).all() and (rates >= 1).all())
    if masks.ndim != 2 or rates.shape != masks.shape[:1] or not is_cost:
        raise InputError(
            f"{path} holds masks {masks.shape} and accelerations {rates.shape}; each round needs "
            "one acceleration of at least 1",
            code="rounds.invalid",
        )
    return masks, tuple(rates.tolist())


def _parts(config: Path) -> list[SubsetMembers]:
    from taskuq.data._readers import open_data, read_data
    from taskuq.experiments._claims import SubsetMembers

    opened = zip(("train", "tune"), open_data(read_data(config)), strict=True)
    return [SubsetMembers(name, part.groups, part.labels) for name, part in opened]


@app.command("quality")
def quality(
    config: Path,
    /,
    *,
    output: app.Output = Path("quality.json"),
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    slurm: app.Slurm = None,
    device: str | None = None,
    threads: int | None = None,
) -> None:
    from taskuq._config import read_config
    from taskuq._io import write_json
    from taskuq.experiments._quality import QualityConfig, evaluate_quality
    from taskuq.pipeline._engines import ENGINES, EngineOptions

    settings = read_config(QualityConfig, config)
    chosen = ENGINES[engine].from_options(
        EngineOptions(address, workers, tuple(slurm or ()), device)
    )
    store = output.with_name(f"{output.stem}-pieces")
    record = evaluate_quality(settings, store=store, engine=chosen, device=device, threads=threads)
    app.print_message("\n".join(quality_lines(record)))
    app.print_result(str(write_json(output, record)))


def quality_lines(record: dict[str, Any]) -> list[str]:
    """Return a record of image quality as lines of text."""
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


@app.command("rehearse")
def rehearse(
    configs: Path,
    /,
    *,
    output: app.Output = Path("runs/rehearsal"),
    steps: Annotated[int, Parameter(validator=Number(gte=2))] = 3,
    volumes: Annotated[int, Parameter(validator=Number(gte=4, lte=10))] = 5,
    data: Path | None = None,
    toy: bool = False,
    overwrite: bool = False,
) -> None:
    from taskuq.experiments._rehearse import PAGE, Rehearsal, rehearsal_markdown

    rehearsal = Rehearsal(output, configs, steps, volumes, data, toy, app.print_message)
    record = rehearsal.run(fresh=overwrite)
    app.print_message("\n" + rehearsal_markdown(record))
    app.print_result(str(output / PAGE))
    if record["failed"]:
        sys.exit(1)
