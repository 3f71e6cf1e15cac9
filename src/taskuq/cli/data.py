"""Commands data and masks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from taskuq.cli import app
from taskuq.errors import InputError
from taskuq.interval import BoolArray
from taskuq.measure._masks import acs_width, nested_masks, published_masks, save_masks

if TYPE_CHECKING:
    from taskuq.data._fastmri import Precision
    from taskuq.data._readers import DataCheck, DataConfig
    from taskuq.data._volume import FastMRIPreprocessing, Volume


Group = Literal["file", "folder", "image", "patient", "volume"] | None


@app.command("data check")
def check(
    source: Path,
    /,
    *,
    labels: Path | None = None,
    file_list: Path | None = None,
    pathology: str = "Meniscus Tear",
    acquisition: str = "CORPD_FBK",
    min_coils: int = 9,
    min_lines: int = 320,
    size: int = 320,
    slices: Literal["central-60", "central-80", "all"] = "central-60",
    group: Group = None,
    strict: bool = False,
    quick: bool = False,
    json: app.Json = None,
) -> None:
    reader = _reader(
        source, labels=labels, file_list=file_list, pathology=pathology, acquisition=acquisition,
        min_coils=min_coils, min_lines=min_lines, size=size, slices=slices, group=group,
    )  # fmt: skip
    _show(reader.check(strict=strict, quick=quick), json)


def _reader(
    source: Path, *, labels: Path | None, pathology: str, group: Group, **volumes: Any
) -> DataConfig:
    """Return the configuration that reads a folder or file of data."""
    if not source.exists():
        raise InputError(f"{source} does not exist", code="file.missing")
    if source.suffix == ".toml":
        from taskuq.data._readers import read_data

        flags = {"labels": labels, "pathology": pathology, "group": group, **volumes}
        defaults = signature(check).parameters
        if given := [name for name, value in flags.items() if value != defaults[name].default]:
            names = " and ".join(f"--{name.replace('_', '-')}" for name in given)
            raise InputError(f"{source} sets this in [data]; remove {names}", code="option.unused")
        return read_data(source)
    if source.suffix == ".npz":
        from taskuq.data._arrays import NpzData

        if group not in (None, "image"):
            raise InputError("--group must be image for an .npz file", code="option.conflict")
        return NpzData(path=source, group=group)
    if any(source.rglob("*.h5")):
        from taskuq.data._fastmri import FastMRIData

        if group not in (None, "patient", "volume"):
            text = "--group must be patient or volume for .h5 files"
            raise InputError(text, code="option.conflict")
        volumes["group"] = group or "patient"
        return FastMRIData(
            validation_path=source, labels=labels, pathology=pathology,
            coils=min(8, volumes["min_coils"]), **volumes,
        )  # fmt: skip
    from taskuq.data._folder import FolderData

    if labels is None:
        needed = "for images use --labels with a CSV of the columns file, label, group"
        raise InputError(f"{source} holds no .h5 file; {needed}", code="option.missing")
    if group == "patient" or group == "volume":
        text = "--group must be file, folder or image for images"
        raise InputError(text, code="option.conflict")
    return FolderData(path=source, labels=labels, group=group)


@app.command("data prepare")
def prepare(
    folder: Path,
    /,
    *,
    cache: Path,
    precision: Literal["half", "single"] = "half",
    acquisition: str = "CORPD_FBK",
    min_coils: int = 9,
    min_lines: int = 320,
    size: int = 320,
    coils: int = 8,
    compression: Literal["measured", "full"] = "measured",
    workers: int = 1,
    strict: bool = False,
) -> None:
    from taskuq.data._dataset import parallel_map
    from taskuq.data._fastmri import FastMRIDataset, is_prepared, prepared_bytes, require_disk_space
    from taskuq.data._volume import FastMRIPreprocessing
    from taskuq.pipeline._progress import duration

    preparation = FastMRIPreprocessing(
        acquisition=acquisition, min_coils=min_coils, min_lines=min_lines,
        size=size, coils=coils, compression=compression, slices="all",
    )  # fmt: skip
    data = FastMRIDataset(folder, preparation, strict=strict)
    for note in data.notes:
        app.print_message(note)
    todo = [v for v in data.volumes if not is_prepared(v, preparation, cache, precision)]
    needed = sum(prepared_bytes(volume, preparation, precision) for volume in todo)
    free = require_disk_space(cache, needed)
    app.print_message(
        f"{len(data.volumes)} of {len(data.surveyed)} files are usable, "
        f"{len(data.volumes) - len(todo)} are in {cache} already; {sum(v.slices for v in todo)} "
        f"slices in {precision} precision need {needed / 1e9:.3g} GB, {free / 1e9:.4g} GB are free"
    )
    started = time.monotonic()
    omitted = [row.file.name for row in data.surveyed if row.volume is None]
    same = ([preparation] * len(todo), [cache] * len(todo), [precision] * len(todo))
    outcomes = parallel_map(_prepare, todo, *same, workers=workers)
    for done, (volume, (is_ready, outcome)) in enumerate(zip(todo, outcomes, strict=True), start=1):
        left = (time.monotonic() - started) / done * (len(todo) - done)
        app.print_message(f"{done}/{len(todo)} {outcome}; {duration(left)} left")
        omitted += [] if is_ready else [volume.path.name]
    app.print_result(str(cache / preparation.key))
    if omitted:
        text = f"{len(omitted)} of {len(data.surveyed)} files are left out for the reasons above"
        remedy = "replace them and run the same command again"
        raise InputError(f"{text} ({', '.join(omitted[:5])}); {remedy}", code="file.damaged")


@app.command("data atlas")
def atlas(
    *,
    patients: int = 125,
    seed: int = 0,
    first_patient: int = 0,
    size: int = 128,
    slices: int = 8,
    contrast: Literal["t1", "t2", "flair", "mixed"] = "flair",
    base: Path | None = None,
    workers: int = 1,
    output: app.Output = Path("atlas.npz"),
) -> None:
    from taskuq.data._atlas import Atlas, PatientDistribution, save_atlas

    plan = PatientDistribution(size=size, slices=slices, contrast=contrast)
    made = Atlas(patients=patients, seed=seed, first=first_patient, plan=plan, base=base)
    app.print_result(str(save_atlas(made, output, workers=workers)))


@app.command("data atlas-base")
def atlas_base(*, output: app.Output = Path("atlas-base.npz")) -> None:
    from taskuq.data._atlas import save_anatomy

    app.print_result(str(save_anatomy(output)))


@app.command("data preview")
def preview(
    source: Path | None = None,
    /,
    *,
    seed: int = 0,
    patients: int = 6,
    size: int = 128,
    contrast: Literal["t1", "t2", "flair", "mixed"] = "flair",
    outline: bool = False,
    cases: int = 48,
    output: app.Output = Path("sheet.png"),
) -> None:
    from taskuq.data._arrays import read_npz
    from taskuq.data._atlas import Atlas, PatientDistribution
    from taskuq.data._readers import plot_contact_sheet

    if source is None:
        drawn = Atlas(patients, seed=seed, plan=PatientDistribution(size=size, contrast=contrast))
        masks = drawn.lesion_mask if outline else None
        path = plot_contact_sheet(drawn, output, indices=range(len(drawn)), outline=masks)
    else:
        data = read_npz(source)
        step = max(1, len(data) // cases)
        path = plot_contact_sheet(data, output, indices=range(0, len(data), step)[:cases])
    app.print_result(str(path))


def _show(checked: DataCheck, json: str | None) -> None:
    if json == "-":
        app.print_json(checked.as_record(), json)
    else:
        from rich.console import Console
        from rich.table import Table

        table = Table("file", "kind", "size", "slices", "positive")
        for row in checked.rows:
            counts = (str(row.slices), str(row.positives)) if row.used else ("skipped", "")
            table.add_row(row.file, row.kind, row.size, *counts)
        console, total = Console(), checked.summary
        console.print(table)
        used = f"{total['used']} of {total['files']} files used: {total['groups']} groups"
        found = f"{used}, {total['slices']} images, {total['positives']} positive"
        skipped = (f"{row.file} is skipped: {row.reason}" for row in checked.rows if not row.used)
        for note in (*skipped, found, *checked.notes):
            console.print(note, highlight=False, markup=False)
        app.print_json(checked.as_record(), json)
    if not any(row.used for row in checked.rows):
        reasons = sorted({row.reason or "unknown" for row in checked.rows})
        text = f"no file can be used: {'; '.join(reasons)[:200]}"
        raise InputError(text, code="file.format")


def _prepare(
    volume: Volume, preparation: FastMRIPreprocessing, cache: Path, precision: Precision
) -> tuple[bool, str]:
    from taskuq.data._fastmri import prepare_slices

    try:
        kept = prepare_slices(volume, preparation, cache, precision)
    except InputError as error:
        return False, f"{volume.name}: skipped, {error}"
    return True, f"{volume.name}: {volume.slices} slices, scale {kept.scale:.4g}"


@app.command("masks")
def masks(
    *,
    learn: Path | None = None,
    size: int = 320,
    accelerations: str = "16,8,4,2",
    published: bool = False,
    pattern: Literal["inverse-distance", "uniform"] = "inverse-distance",
    acs: str | None = None,
    seed: int = 0,
    figure: Path | None = None,
    device: str | None = None,
    overwrite: bool = False,
    output: app.Output = Path("masks.npz"),
) -> None:
    if output.suffix != ".npz":
        raise InputError(f"--output must end in .npz, got {output}", code="file.format")
    figure = figure or output.with_suffix(".png")
    if learn is not None:
        _learn(learn, output, figure, device, overwrite)
        return
    rates = list(app.parse_floats(accelerations, "accelerations") or ())
    if published:
        if size != 320:
            raise InputError("--published masks have --size 320", code="option.conflict")
        made = published_masks(rates)
    else:
        widths = None if acs is None else list(app.parse_ints(acs, "acs") or ())
        made = nested_masks(size, rates, seed=seed, rule=pattern, acs=widths)
    save_masks(output, made, rates)
    _show_masks(made, rates, figure, output)


def _show_masks(
    masks: BoolArray, rates: Sequence[float], figure: Path, output: Path, lines: str | None = None
) -> None:
    """Plot masks; print how many lines each mask has and, if not learned, its central width."""
    from taskuq.report.figures import draw_all
    from taskuq.report.figures._imaging import masks_figure

    draw_all(masks_figure(masks, rates, lines=lines or "lines"), [figure])
    for mask, R in zip(masks, rates, strict=True):
        what = lines or f"lines, centre of {acs_width(mask)}"
        app.print_message(f"R = {R:g}: {mask.sum()} of {len(mask)} {what}")
    app.print_message(f"figure: {figure}")
    app.print_result(str(output))


def _learn(config: Path, output: Path, figure: Path, device: str | None, overwrite: bool) -> None:
    from taskuq._config import read_config
    from taskuq._io import file_lock
    from taskuq.experiments._mask_learning import MaskLearningConfig, learn_masks, open_learner

    settings = read_config(MaskLearningConfig, config)
    with file_lock(output.with_name(f".{output.name}.lock"), what=str(output)):
        learner = open_learner(settings, device)
        made, _ = learn_masks(learner, output, overwrite=overwrite)
    words, rates = learner.config.measure.terminology, learner.config.measure.accelerations
    app.print_message(
        f"learned on {len(learner.cases)} training cases by {learner.config.objective}; calibrate "
        "on other cases, or the guarantee is void"
    )
    _show_masks(made, rates, figure, output, words.many("measurement"))
