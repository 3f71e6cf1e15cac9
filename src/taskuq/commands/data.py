"""taskuq data: look at data, make the atlas, prepare fastMRI."""

from __future__ import annotations

import sys
import time
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from taskuq.commands.arguments import Seed
from taskuq.commands.terminal import hand_over, say, show
from taskuq.errors import InputError

if TYPE_CHECKING:
    from taskuq.data.check import Check
    from taskuq.data.preparation import Preparation
    from taskuq.data.readers import Reader
    from taskuq.data.store import Precision
    from taskuq.data.volume import Volume

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
    """Tell in a table what a folder holds, what would be skipped, and why.

    Arguments:
        source: A folder of fastMRI volumes (.h5) or of your own images, an .npz file, or the .toml
            of any command, whose table [data] then says everything.
        labels: fastMRI+ annotations, or for your own images a CSV with file, label, group.
        files: The fastMRI+ list of annotated volumes; others are skipped.
        pathology: Which fastMRI+ pathology is counted.
        acquisition: Which acquisition is used; '' takes all.
        minimum_coils: Volumes with fewer receive coils are skipped.
        minimum_width: Volumes with fewer encoded lines are skipped.
        size: Rows and columns of the central crop; smaller volumes are skipped.
        slices: Which slices of a volume are used.
        group: What a group is where a table of your own images does not say.
        strict: Stop at the first file or label row that cannot be used.
        thorough: Read all k-space, which finds files that break off.
        json_file: Write the table as JSON; '-' prints it.
    """
    from taskuq.data.check import check as look

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
) -> Reader:
    """The reader of whatever lies at a place."""
    if not source.exists():
        raise InputError(f"{source} does not exist; give a folder or an .npz file")
    if source.suffix == ".toml":
        from taskuq.data.readers import read_data

        flags = {"labels": labels, "pathology": pathology, "group": group, **volumes}
        usual = signature(check).parameters
        given = [name for name, value in flags.items() if value != usual[name].default]
        if given:
            names = " and ".join(f"--{name.replace('_', '-')}" for name in given)
            raise InputError(f"the table data of {source} says everything; leave out {names}")
        return read_data(source)
    if source.suffix == ".npz":
        from taskuq.data.arrays import NpzData

        if group not in (None, "each"):
            raise InputError(f"group is {group!r}; for an .npz file it can only be 'each'")
        return NpzData(path=source, group=group)
    if any(source.rglob("*.h5")):
        from taskuq.data.fastmri import FastMRIData

        coils = min(8, volumes["minimum_coils"])
        return FastMRIData(
            validation_path=source, labels=labels, finding=pathology, coils=coils, **volumes
        )
    from taskuq.data.folder import FolderData

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
    """Keep the slices of every fastMRI volume as networks see them: compressed, cropped, scaled.

    Every command whose table [data] names the cache then reads no raw k-space. Started again, it
    goes on where it stopped; several may work on one cache.

    Arguments:
        folder: A folder of fastMRI volumes (.h5).
        cache: Where the slices are kept.
        precision: Half precision rounds, which training does not feel; single precision is, to the
            bit, what raw files give, and what cases that are judged need.
        acquisition: Which acquisition is used; '' takes all.
        minimum_coils: Volumes with fewer receive coils are skipped.
        minimum_width: Volumes with fewer encoded lines are skipped.
        size: Rows and columns of the central crop.
        coils: The number of virtual coils.
        compression: Virtual coils from the lines of the first round, or, as the paper, from all.
        workers: The number of processes.
        strict: Stop at the first file that cannot be used.
    """
    from taskuq.data.fastmri import FastMRI
    from taskuq.data.memory import shared_out
    from taskuq.data.preparation import Preparation
    from taskuq.data.store import bytes_of, is_stored, require_space
    from taskuq.pipeline.progress import duration

    preparation = Preparation(
        acquisition=acquisition, minimum_coils=minimum_coils, minimum_width=minimum_width,
        size=size, coils=coils, compression=compression, slices="all",
    )  # fmt: skip
    data = FastMRI(folder, preparation, strict=strict)
    todo = [v for v in data.volumes if not is_stored(v, preparation, cache, precision)]
    needed = sum(bytes_of(volume, preparation, precision) for volume in todo)
    free = require_space(cache, needed)
    say(
        f"{len(data.volumes)} of {len(data.surveyed)} files are used, "
        f"{len(data.volumes) - len(todo)} are in {cache} already; "
        f"{sum(v.slices for v in todo)} slices in {precision} precision "
        f"take {needed / 1e9:.3g} GB, and {free / 1e9:.4g} GB are free"
    )
    started, failed = time.monotonic(), 0
    same = ([preparation] * len(todo), [cache] * len(todo), [precision] * len(todo))
    outcomes = shared_out(_keep, todo, *same, workers=workers)
    for done, (is_kept, outcome) in enumerate(outcomes, start=1):
        left = (time.monotonic() - started) / done * (len(todo) - done)
        say(f"{done}/{len(todo)} {outcome}; {duration(left)} left")
        failed += not is_kept
    if failed:
        say(f"{failed} volumes could not be prepared; fetch them again, or take them away")
    show(str(cache / preparation.key))
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
    """Draw synthetic patients into one .npz file: images, label, group, case, lesion masks.

    Arguments:
        patients: The number of patients.
        seed: The seed; patient k of a seed is always the same.
        first: The number of the first patient.
        size: Rows and columns of a slice.
        slices: Slices for each patient.
        contrast: What the images look like.
        base: A base file, where nilearn is not installed.
        workers: The number of processes.
        output: The .npz file to write.
    """
    from taskuq.data.atlas import Atlas, save_atlas
    from taskuq.data.patient import PatientPlan

    plan = PatientPlan(size=size, slices=slices, contrast=contrast)
    drawn = Atlas(patients=patients, seed=seed, first=first, plan=plan, base=base)
    show(str(save_atlas(drawn, output, workers=workers)))


def atlas_base(*, output: Output = Path("atlas-base.npz")) -> None:
    """Write the base volumes of the atlas into one file, for machines without nilearn.

    Name the file there in the environment variable TASKUQ_ATLAS_BASE.

    Arguments:
        output: The .npz file to write.
    """
    from taskuq.data.anatomy import save_anatomy

    show(str(save_anatomy(output)))


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
    """Draw a contact sheet of the atlas, or of an .npz file of images.

    Arguments:
        source: An .npz file; without it the atlas is shown.
        seed: Seed of the atlas.
        patients: Patients of the atlas.
        size: Rows and columns of the atlas.
        contrast: What the atlas looks like.
        outline: Draw the outline of the atlas's lesions.
        cases: How many images of a file, spread over it.
        output: The picture to write.
    """
    from taskuq.data.arrays import read_npz
    from taskuq.data.atlas import Atlas
    from taskuq.data.patient import PatientPlan
    from taskuq.data.sheet import contact_sheet

    if source is None:
        drawn = Atlas(patients, seed=seed, plan=PatientPlan(size=size, contrast=contrast))
        masks = drawn.lesion_mask if outline else None
        path = contact_sheet(drawn, output, indices=range(len(drawn)), outline=masks)
    else:
        data = read_npz(source)
        step = max(1, len(data) // cases)
        path = contact_sheet(data, output, indices=range(0, len(data), step)[:cases])
    show(str(path))


def _show(checked: Check, json_file: str | None) -> None:
    if json_file == "-":
        hand_over(checked.as_record(), json_file)
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
    hand_over(checked.as_record(), json_file)


def _keep(
    volume: Volume, preparation: Preparation, cache: Path, precision: Precision
) -> tuple[bool, str]:
    from taskuq.data.store import keep_slices

    try:
        kept = keep_slices(volume, preparation, cache, precision)
    except InputError as error:
        return False, f"{volume.name}: skipped, {error}"
    return True, f"{volume.name}: {volume.slices} slices, scale {kept.scale:.4g}"
