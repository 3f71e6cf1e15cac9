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
    seed: int = 0,
    range: app.Range = None,
    task: str | None = None,
    cases: str | None = None,
    accelerations: str | None = None,
    output: app.Output = Path("runs/experiments"),
) -> None:
    from taskuq._io import read_json, write_json
    from taskuq.experiments._claims import ClaimSettings, make_inputs
    from taskuq.report._records import shown

    widths = app.parse_floats(max_width, "max-width")
    scores = None if score is None else app.parse_list(score)
    changed: dict[str, Any] = {
        "cases": None if cases is None else tuple(app.parse_list(cases)),
        "accelerations": app.parse_floats(accelerations, "accelerations"),
        "alpha": alpha, "trials": splits, "round_trials": splits, "protocol_trials": splits,
        "size_bins": app.parse_floats(size_bins, "size-bins"),
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
    others: dict[str, Any] = {"masks": mask_array, "mask_accelerations": rates, "parts": ()}
    for kind, path in (("quality", quality), ("task", classifier)):
        others[kind] = path and read_json(path, f"taskuq.{kind}/1", is_sealed=False)
    if data is not None:
        from taskuq.data._readers import open_data, read_data

        opened = zip(("train", "tune"), open_data(read_data(data)), strict=True)
        others["parts"] = [SubsetMembers(name, part.groups, part.labels) for name, part in opened]
    if name == "all":
        records = run_all(sampled, estimated, settings, log=app.print_message, **others)
    else:
        app.print_message(f"{name}: {EXPERIMENTS[name].shows}")
        records = [run_one(name, make_inputs(sampled, estimated, **others), settings)]
    for record in records:
        for printed in record["tables"]:
            rows = [list(zip(printed["columns"], map(shown, r), strict=True))
                    for r in printed["rows"]]  # fmt: skip
            app.show_table(f"{record['title']}: {printed['name']}", rows)
        app.print_message(f"Claim: {record['claim']}")
        app.print_message(f"Finding: {record['finding']}\n")
    for record in records:
        app.print_result(str(write_json(output / "records" / f"{record['name']}.json", record)))


def _masks(path: Path) -> tuple[Any, tuple[float, ...]]:
    import numpy as np

    from taskuq._io import open_npz

    with open_npz(path, "masks") as file:
        masks, rates = file["masks"].astype(bool), file["accelerations"].astype(float)
    is_cost = rates.ndim == 1 and bool(np.isfinite(rates).all() and (rates >= 1).all())
    if masks.ndim != 2 or rates.shape != masks.shape[:1] or not is_cost:
        raise InputError(
            f"{path} needs one acceleration of at least 1 for each of its masks {masks.shape}",
            code="rounds.invalid",
        )
    return masks, tuple(rates.tolist())


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
    from taskuq._io import file_lock, write_json
    from taskuq.experiments._quality import QualityConfig, evaluate_quality
    from taskuq.pipeline._engines import ENGINES, EngineOptions

    settings = read_config(QualityConfig, config)
    options = EngineOptions(address, workers, tuple(slurm or ()), device)
    chosen = ENGINES[engine].from_options(options)
    store = output.with_name(f"{output.stem}-pieces")
    with file_lock(output.with_name(f".{output.name}.lock"), what=str(output)):
        record = evaluate_quality(
            settings, store=store, engine=chosen, device=device, threads=threads
        )
        write_json(output, record)
    app.print_message("\n".join(quality_lines(record)))
    app.print_result(str(output))


def quality_lines(record: dict[str, Any]) -> list[str]:
    """Format an image-quality record as a table, one text per line."""
    rows = record["results"]
    shown = [(name, digits) for name, digits in _DIGITS.items() if any(name in r for r in rows)]
    lines = ["  R method      " + "".join(f"{name.upper():16s}" for name, _ in shown) + "FID"]
    for row in rows:
        cells = (_with_error(row[name], digits) if name in row else "-" for name, digits in shown)
        fid = f"{row['fid']:.3f}" if "fid" in row else "-"
        text = "".join(f"{cell:16s}" for cell in cells)
        lines.append(f"{row['acceleration']:3g} {row['method']:11s} {text}{fid}")
    return lines


_DIGITS = {"psnr": 2, "ssim": 3, "nmse": 4, "lpips": 3, "dists": 3}


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
