"""data commands and masks."""

from __future__ import annotations

import sys
import time
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from cyclopts import Parameter

from taskuq.cli.app import Seed, print_json, print_message, print_result
from taskuq.errors import InputError
from taskuq.measure._masks import acs_width, nested_masks, plot_masks, published_masks, save_masks

if TYPE_CHECKING:
    from taskuq.data._fastmri import Precision
    from taskuq.data._readers import DataCheck, DataConfig
    from taskuq.data._volume import FastMRIPreprocessing, Volume


Output = Annotated[Path, Parameter(name=["--output", "-o"])]
Slices = Literal["central-60", "central-80", "all"]


def check(
    source: Path,
    /,
    *,
    labels: Path | None = None,
    files: Path | None = None,
    pathology: str = "Meniscus Tear",
    acquisition: str = "CORPD_FBK",
    minimum_coils: int = 9,
    minimum_width: int = 320,
    size: int = 320,
    slices: Slices = "central-60",
    group: Literal["file", "folder", "each"] | None = None,
    strict: bool = False,
    thorough: bool = False,
    json_file: Annotated[str | None, Parameter(name="--json", allow_leading_hyphen=True)] = None,
) -> None:
    from taskuq.data._readers import check as look

    reader = _reader(
        source, labels=labels, files=files, pathology=pathology, acquisition=acquisition,
        minimum_coils=minimum_coils, minimum_width=minimum_width, size=size, slices=slices,
        group=group,
    )  # fmt: skip
    _show(look(reader, strict=strict, thorough=thorough), json_file)


def _reader(
    source: Path,
    *,
    labels: Path | None,
    pathology: str,
    group: Literal["file", "folder", "each"] | None,
    **volumes: Any,
) -> DataConfig:
    """The reader of whatever lies at a place."""
    if not source.exists():
        raise InputError(f"{source} does not exist; give a folder or an .npz file")
    if source.suffix == ".toml":
        from taskuq.data._readers import read_data

        flags = {"labels": labels, "pathology": pathology, "group": group, **volumes}
        usual = signature(check).parameters
        given = [name for name, value in flags.items() if value != usual[name].default]
        if given:
            names = " and ".join(f"--{name.replace('_', '-')}" for name in given)
            raise InputError(f"the table data of {source} says everything; leave out {names}")
        return read_data(source)
    if source.suffix == ".npz":
        from taskuq.data._arrays import NpzData

        if group not in (None, "each"):
            raise InputError(f"group is {group!r}; for an .npz file it can only be 'each'")
        return NpzData(path=source, group=group)
    if any(source.rglob("*.h5")):
        from taskuq.data._fastmri import FastMRIData

        coils = min(8, volumes["minimum_coils"])
        return FastMRIData(
            validation_path=source, labels=labels, finding=pathology, coils=coils, **volumes
        )
    from taskuq.data._folder import FolderData

    if labels is None:
        raise InputError(
            f"{source} holds no .h5 file; for your own images give --labels TABLE.csv with the "
            "columns file, label, group"
        )
    return FolderData(path=source, labels=labels, group=group)


def prepare(
    folder: Path,
    /,
    *,
    cache: Path,
    precision: Literal["half", "single"] = "half",
    acquisition: str = "CORPD_FBK",
    minimum_coils: int = 9,
    minimum_width: int = 320,
    size: int = 320,
    coils: int = 8,
    compression: Literal["measured", "full"] = "measured",
    workers: int = 1,
    strict: bool = False,
) -> None:
    """Keep the slices of every fastMRI volume as networks see them: compressed, cropped, scaled."""
    from taskuq.data._dataset import parallel_map
    from taskuq.data._fastmri import FastMRIDataset, is_prepared, prepared_bytes, require_disk_space
    from taskuq.data._volume import FastMRIPreprocessing
    from taskuq.pipeline._progress import duration

    preparation = FastMRIPreprocessing(
        acquisition=acquisition, minimum_coils=minimum_coils, minimum_width=minimum_width,
        size=size, coils=coils, compression=compression, slices="all",
    )  # fmt: skip
    data = FastMRIDataset(folder, preparation, strict=strict)
    todo = [v for v in data.volumes if not is_prepared(v, preparation, cache, precision)]
    needed = sum(prepared_bytes(volume, preparation, precision) for volume in todo)
    free = require_disk_space(cache, needed)
    print_message(
        f"{len(data.volumes)} of {len(data.surveyed)} files are used, "
        f"{len(data.volumes) - len(todo)} are in {cache} already; "
        f"{sum(v.slices for v in todo)} slices in {precision} precision "
        f"take {needed / 1e9:.3g} GB, and {free / 1e9:.4g} GB are free"
    )
    started, failed = time.monotonic(), 0
    same = ([preparation] * len(todo), [cache] * len(todo), [precision] * len(todo))
    outcomes = parallel_map(_keep, todo, *same, workers=workers)
    for done, (is_kept, outcome) in enumerate(outcomes, start=1):
        left = (time.monotonic() - started) / done * (len(todo) - done)
        print_message(f"{done}/{len(todo)} {outcome}; {duration(left)} left")
        failed += not is_kept
    if failed:
        print_message(
            f"{failed} volumes could not be prepared; fetch them again, or take them away"
        )
    print_result(str(cache / preparation.key))
    if failed:
        sys.exit(1)


def atlas(
    *,
    patients: int = 125,
    seed: Seed = 0,
    first: int = 0,
    size: int = 128,
    slices: int = 8,
    contrast: Literal["t1", "t2", "flair", "mixed"] = "flair",
    base: Path | None = None,
    workers: int = 1,
    output: Output = Path("atlas.npz"),
) -> None:
    """Draw synthetic patients into one .npz file: images, label, group, case, lesion masks."""
    from taskuq.data._atlas import Atlas, PatientDistribution, save_atlas

    plan = PatientDistribution(size=size, slices=slices, contrast=contrast)
    drawn = Atlas(patients=patients, seed=seed, first=first, plan=plan, base=base)
    print_result(str(save_atlas(drawn, output, workers=workers)))


def atlas_base(*, output: Output = Path("atlas-base.npz")) -> None:
    """Write the base volumes of the atlas into one file, for machines without nilearn."""
    from taskuq.data._atlas import save_anatomy

    print_result(str(save_anatomy(output)))


def sheet(
    source: Path | None = None,
    /,
    *,
    seed: Seed = 0,
    patients: int = 6,
    size: int = 128,
    contrast: Literal["t1", "t2", "flair", "mixed"] = "flair",
    outline: bool = False,
    cases: int = 48,
    output: Output = Path("sheet.png"),
) -> None:
    """Draw a contact sheet of the atlas, or of an .npz file of images."""
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
    print_result(str(path))


def _show(checked: DataCheck, json_file: str | None) -> None:
    if json_file == "-":
        print_json(checked.as_record(), json_file)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for name in ("file", "kind", "size", "slices", "positive"):
        table.add_column(name, no_wrap=True)
    table.add_column("skipped because")
    for row in checked.rows:
        counts = (str(row.slices), str(row.positives)) if row.used else ("", "")
        table.add_row(row.file, row.kind, row.size, *counts, row.reason)
    console = Console()
    console.print(table)
    total = checked.summary
    console.print(
        f"{total['used']} of {total['files']} files used: {total['groups']} groups, "
        f"{total['slices']} images, {total['positives']} positive",
        highlight=False,
    )
    for note in checked.notes:
        console.print(note, highlight=False)
    print_json(checked.as_record(), json_file)


def _keep(
    volume: Volume, preparation: FastMRIPreprocessing, cache: Path, precision: Precision
) -> tuple[bool, str]:
    from taskuq.data._fastmri import prepare_slices

    try:
        kept = prepare_slices(volume, preparation, cache, precision)
    except InputError as error:
        return False, f"{volume.name}: skipped, {error}"
    return True, f"{volume.name}: {volume.slices} slices, scale {kept.scale:.4g}"


def masks(
    *,
    learn: Path | None = None,
    size: int = 320,
    accelerations: str = "16,8,4,2",
    published: bool = False,
    rule: Literal["inverse-distance", "uniform"] = "inverse-distance",
    acs: str | None = None,
    seed: Seed = 0,
    picture: Path | None = None,
    device: str | None = None,
    fresh: bool = False,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("masks.npz"),
) -> None:
    """Make nested sampling masks: arrays masks (round, size) and accelerations, and a picture."""
    drawn = picture or output.with_suffix(".png")
    if output.suffix != ".npz":
        raise InputError(f"the output is {output}; give a name that ends in .npz")
    if learn is not None:
        _learn(learn, output, drawn, device, fresh)
        return
    rates = _numbers(accelerations, "accelerations")
    if published:
        if size != 320:
            raise InputError(f"size is {size}; the published masks have size 320")
        made = published_masks(rates)
    else:
        widths = None if acs is None else [int(w) for w in _numbers(acs, "acs")]
        made = nested_masks(size, rates, rng=np.random.default_rng(seed), rule=rule, acs=widths)
    save_masks(output, made, rates)
    plot_masks(made, rates, drawn)
    for mask, R in zip(made, rates, strict=True):
        print_message(f"R = {R:g}: {mask.sum()} of {len(mask)} lines, centre of {acs_width(mask)}")
    print_message(f"picture: {drawn}")
    print_result(str(output))


def _learn(config: Path, output: Path, picture: Path, device: str | None, fresh: bool) -> None:
    from taskuq._config import read_config
    from taskuq.experiments._mask_learning import MaskLearningConfig, learn_masks, open_learner

    learner = open_learner(read_config(MaskLearningConfig, config), device)
    made, order = learn_masks(learner, output, fresh=fresh)
    words, rates = learner.config.measure.terminology, learner.config.measure.accelerations
    plot_masks(made, rates, picture, order.all, what=words.many("measurement"))
    print_message(
        f"learned on {len(learner.cases)} training cases by {learner.config.aim}: calibrate on "
        "others, or the promise is gone"
    )
    for mask, R in zip(made, rates, strict=True):
        print_message(f"R = {R:g}: {mask.sum()} of {len(mask)} {words.many('measurement')}")
    print_message(f"picture: {picture}")
    print_result(str(output))


def _numbers(text: str, name: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{name} is {text!r}; give numbers separated by commas") from None
