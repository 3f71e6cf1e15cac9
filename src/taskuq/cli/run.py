"""run, status, table, demo, report, train."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts
from cyclopts import Parameter

from taskuq.cli.app import (
    Seed,
    load_table,
    parse_mapping,
    parse_per_task,
    print_json,
    print_message,
    print_result,
    print_wrapped,
    ranges,
)
from taskuq.errors import InputError
from taskuq.training._networks import LISTED, NETWORKS


def demo(
    *,
    fast: bool = False,
    verbose: bool = False,
    seed: Seed = 0,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("runs/demo"),
) -> None:
    """Scan synthetic patients until the answer is certain enough, judge everything, write a page."""
    from taskuq.experiments._demo import DemoSettings, run_demo
    from taskuq.report._report import answer_lines

    settings = DemoSettings.fast(seed) if fast else DemoSettings(seed=seed)
    # What is told round by round says how far it is, too.
    page = run_demo(
        settings,
        output,
        stage=print_message,
        tell=print_message if verbose else lambda line: None,
        quiet=verbose,
    )
    print_message("")
    print_wrapped(answer_lines(output))
    print_message(
        "\nOpen the page in a browser; its explorer shows every image and recomputes intervals."
    )
    print_result(str(page))


def report(
    source: Path,
    /,
    *,
    alpha: float | None = None,
    max_width: str | None = None,
    unit: Literal["case", "group", "whole-group"] | None = None,
    trials: int = 1000,
    seed: Seed = 0,
    range: Annotated[str | None, Parameter(name="--range", allow_leading_hyphen=True)] = None,
    title: str | None = None,
    words: str | None = None,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    export: bool = False,
) -> None:
    """Build report.html: of a run's folder, or of any table with --alpha."""
    from taskuq.report._report import answer_lines, write_report

    is_table = source.is_file() or (source / "table.json").is_file()
    if is_table and alpha is None:
        raise InputError(f"{source} is a table; say at which error rate to judge it: --alpha 0.1")
    if not is_table and alpha is not None:
        raise InputError(f"{source} is the folder of a run, which has its alpha; leave --alpha out")
    run_dir = source
    if is_table:
        assert alpha is not None
        from taskuq.report._report import make_report

        run_dir = output or source.with_name(f"{source.stem}-report")
        page = make_report(
            source, run_dir, alpha=alpha, max_width=parse_per_task(max_width, "max-width"), unit=unit,
            trials=trials, seed=seed, title=title, task_range=ranges(range), tell=print_message,
            words=parse_mapping(words, "words"),
        )  # fmt: skip
    else:
        page = write_report(run_dir)
    print_wrapped(answer_lines(run_dir))
    if export:
        from taskuq.report._report import export as write_exports

        folder = write_exports(run_dir)
        print_message(f"{folder}: tables and numbers; {folder.parent / 'figures'}: drawings")
    print_result(str(page))


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
    """Fill a table of task outputs, or go on filling it after a stop."""
    from taskuq.experiments._run import estimate_run_cost, open_run, read_run
    from taskuq.pipeline._engines import ENGINES, EngineOptions

    settings = read_run(config)
    chosen = ENGINES[engine].from_options(EngineOptions(address, workers, tuple(slurm or ()), device))
    opened = open_run(settings, device)
    if dry_run:
        print_result(estimate_run_cost(opened).sentence)
        return
    filled = opened.pipeline.run(
        opened.images, accelerations=opened.config.measure.accelerations,
        round_names=opened.config.measure.round_names,
        samples=opened.config.samples, seed=opened.config.seed, store=output,
        configuration=opened.configuration, engine=chosen, batch=batch, threads=threads,
        overwrite=fresh, keep_images=pictures, terminology=opened.words,
    )  # fmt: skip
    print_message(
        f"{filled}" + (f", {len(filled.missing)} cases missing" if filled.missing else "")
    )
    print_result(str(output))


def status(
    table: Path,
    /,
    *,
    json: Annotated[str | None, Parameter(name="--json", allow_leading_hyphen=True)] = None,
) -> None:
    from taskuq.pipeline._pipeline import status as look

    found = look(table)
    if json != "-":
        print_result(
            f"{found['finished']} of {found['cases']} cases finished, {len(found['failed'])} "
            f"failed, {found['left']} left"
        )
        for case, reason in list(found["failed"].items())[:20]:
            print_result(f"  {case}: {reason}")
    print_json(found, json)


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
    """Make a table of task outputs that were made elsewhere, or two of one."""
    if (share is None) != (rest is None):
        raise InputError("--share and --rest go together: a part of the table, and the others")
    if rest is not None and len({path.resolve() for path in (source, output, rest)}) < 3:
        raise InputError("the table, -o and --rest must be three different files; name others")
    loaded = load_table(source, range)
    if sum_groups is not None:
        from taskuq.table import _table as whole_groups

        loaded = whole_groups.sum_groups(loaded, sum_groups)
    missing = f", {len(loaded.missing)} cases lack a round" if loaded.missing else ""
    print_message(f"{loaded}{missing}")
    if share is None or rest is None:
        print_result(str(loaded.save(output)))
        return
    from taskuq.conformal._units import as_unit, choose_fraction

    whom = as_unit(unit, has_groups=loaded.group is not None)
    part = choose_fraction(whom.index(loaded.cases, loaded.group), share)
    print_result(str(loaded.select(cases=part).save(output)))
    print_result(str(loaded.select(cases=~part).save(rest)))


WHERE = "The folder for weights, logs and the state; by default runs/ and the file's name."
Folder = Annotated[Path | None, Parameter(name=["--output", "-o"], help=WHERE)]


def command(kind: str) -> Callable[..., None]:
    """The command that trains networks of a kind."""

    def start(
        config: Path,
        /,
        *,
        output: Folder = None,
        devices: int = 1,
        nodes: int = 1,
        accelerator: Literal["auto", "cpu", "gpu", "mps"] = "auto",
        fresh: bool = False,
        steps: int | None = None,
        dry_run: bool = False,
        json: Annotated[str | None, Parameter(name="--json", allow_leading_hyphen=True)] = None,
        progress: bool = True,
    ) -> None:
        """Train a network; started again after it was stopped, it goes on."""
        # torch and lightning take seconds to import: only when there is something to train.
        from taskuq.training._fit import (
            PROBES,
            TrainerOptions,
            foresee_training,
            is_first_process,
            train_config,
        )

        machine = TrainerOptions(accelerator, devices, nodes, progress)
        folder = output or Path("runs") / f"{config.parent.name}-{config.stem}".lstrip("-.")
        if json is not None and not dry_run:
            raise InputError("--json is for --dry-run; a training writes timing.json to its folder")
        if dry_run:
            taken = PROBES if steps is None else steps
            record = foresee_training(kind, config, machine=machine, steps=taken)
            if is_first_process():
                _show_cost(record, json)
            return
        path = train_config(
            kind, config, folder, machine=machine, fresh=fresh, steps=steps, tell=print_message
        )
        if is_first_process():
            print_result(str(path))

    return start


def _show_cost(record: dict[str, Any], json: str | None) -> None:
    from taskuq.training._module import format_timing

    if json != "-":
        print_result(f"Cases were ready after {record['prepare_s']:.3g} s.")
        print_result(format_timing(record))
    print_json(record, json)


# The names are those of the list of networks, which extensions may make longer.
train = cyclopts.App(name="train", help="Train networks from their configuration files.")
_ABOUT = {name: line.about for lines in LISTED.values() for name, line in lines.items()}
for _kind in NETWORKS:
    train.command(command(_kind), name=_kind, help=_ABOUT.get(_kind, f"Train {_kind}."))
