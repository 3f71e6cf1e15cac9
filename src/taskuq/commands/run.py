"""taskuq run, status and table: from images, or from outputs made elsewhere, to the table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from taskuq.commands.arguments import load_table
from taskuq.commands.terminal import hand_over, say, show
from taskuq.errors import InputError


def run(
    config: Path,
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    slurm: Annotated[list[str] | None, Parameter(name="--slurm", negative=())] = None,
    device: str | None = None,
    batch: int | None = None,
    threads: int | None = None,
    pictures: int = 0,
    fresh: bool = False,
    dry_run: bool = False,
) -> None:
    """Fill a table of task outputs, or go on filling it after a stop.

    Arguments:
        config: A TOML file that names data, measurement, recovery and task.
        output: The folder of the table.
        engine: This process (local), a Ray cluster (ray), SLURM jobs (slurm), or one of your own.
        address: Of a running Ray cluster, host:port; a local one is started without it. With
            slurm, 'local' runs the jobs on this machine.
        workers: How many Ray workers, or SLURM jobs, share the cases.
        slurm: What SLURM is asked for, as submitit names it, e.g. slurm_partition=gpu; repeatable.
            Jobs get a GPU (gpus_per_node=1) and four hours (timeout_min=240) by default.
        device: Where networks run: cpu, cuda, mps; the best there is by default.
        batch: How many cases run at once; chosen by memory by default.
        threads: Threads of each worker on a CPU; with equal threads and batches all bits are equal.
        pictures: Of how many cases to keep pictures for the page of the table (taskuq report).
        fresh: Throw away what the folder holds and begin again.
        dry_run: Try a few cases, say what all of them will take, and write nothing.
    """
    from taskuq.pipeline.engines import ENGINES, Flags
    from taskuq.runs.run import foresee, open_run, read_run

    settings = read_run(config)
    chosen = ENGINES[engine].from_flags(Flags(address, workers, tuple(slurm or ()), device))
    opened = open_run(settings, device)
    if dry_run:
        show(foresee(opened).sentence)
        return
    filled = opened.pipeline.run(
        opened.images, accelerations=opened.config.measure.accelerations,
        round_names=opened.config.measure.round_names,
        samples=opened.config.samples, seed=opened.config.seed, store=output,
        configuration=opened.configuration, engine=chosen, batch=batch, threads=threads,
        fresh=fresh, pictures=pictures, words=opened.words,
    )  # fmt: skip
    say(f"{filled}" + (f", {len(filled.missing)} cases missing" if filled.missing else ""))
    show(str(output))


def status(
    table: Path,
    /,
    *,
    json: Annotated[str | None, Parameter(name="--json", allow_leading_hyphen=True)] = None,
) -> None:
    """Tell how far a run is and what failed.

    Arguments:
        table: The folder of a table.
        json: Write the record to this file, or to stdout for '-'.
    """
    from taskuq.pipeline import status as look

    found = look(table)
    if json != "-":
        show(
            f"{found['finished']} of {found['cases']} cases finished, {len(found['failed'])} "
            f"failed, {found['left']} left"
        )
        for case, reason in list(found["failed"].items())[:20]:
            show(f"  {case}: {reason}")
    hand_over(found, json)


def table(
    source: Path,
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    range: Annotated[str | None, Parameter(name="--range", allow_leading_hyphen=True)] = None,
    share: float | None = None,
    rest: Path | None = None,
    unit: Literal["case", "group"] | None = None,
    sum_groups: float | None = None,
) -> None:
    """Make a table of task outputs that were made elsewhere, or two of one.

    A CSV or Parquet file has one row for each case and round: case, acceleration, target, group,
    label, and output_0, output_1 and so on; or one row for each sample, with sample and output.

    Arguments:
        source: A .csv, .parquet or .npz file.
        output: The table to write: a folder, or an .npz file.
        range: The task's range, low,high; outputs and targets must lie in it.
        share: Write this share of the groups (or cases) to the output, taken at even steps.
        rest: Where to write the others.
        unit: What the share counts: group where the table has groups, else case.
        sum_groups: Make one case of each group, the sum of its cases times this weight: of areas
            and the distance of slices a volume.
    """
    if (share is None) != (rest is None):
        raise InputError("--share and --rest go together: a part of the table, and the others")
    if rest is not None and len({path.resolve() for path in (source, output, rest)}) < 3:
        raise InputError("the table, -o and --rest must be three different files; name others")
    loaded = load_table(source, range)
    if sum_groups is not None:
        from taskuq.outputs import whole_groups

        loaded = whole_groups.sum_groups(loaded, sum_groups)
    missing = f", {len(loaded.missing)} cases lack a round" if loaded.missing else ""
    say(f"{loaded}{missing}")
    if share is None or rest is None:
        show(str(loaded.save(output)))
        return
    from taskuq.calibration.units import as_unit, take_share

    whom = as_unit(unit, has_groups=loaded.group is not None)
    part = take_share(whom.index(loaded.cases, loaded.group), share)
    show(str(loaded.select(cases=part).save(output)))
    show(str(loaded.select(cases=~part).save(rest)))
