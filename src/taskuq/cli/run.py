"""Commands run, status, table, demo, report and train."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts
from cyclopts import Parameter

from taskuq.cli import app
from taskuq.errors import InputError
from taskuq.training._networks import LISTED, NETWORKS


@app.command("demo")
def demo(
    *,
    fast: bool = False,
    verbose: bool = False,
    seed: int = 0,
    output: app.Output = Path("runs/demo"),
) -> None:
    from taskuq.experiments._demo import DemoSettings, run_demo
    from taskuq.report._report import answer_lines

    settings = DemoSettings.fast(seed) if fast else DemoSettings(seed=seed)
    log = app.print_message if verbose else lambda line: None
    page = run_demo(settings, output, stage=app.print_message, log=log, quiet=verbose)
    app.print_message("")
    app.print_wrapped(answer_lines(output))
    app.print_message(
        "\nOpen the report in a browser; its explorer shows every image and recomputes intervals."
    )
    app.print_result(str(page))


@app.command("report")
def report(
    source: Path,
    /,
    *,
    alpha: float | None = None,
    max_width: str | None = None,
    unit: Literal["case", "group", "whole-group"] | None = None,
    splits: int = 1000,
    seed: int = 0,
    range: app.Range = None,
    title: str | None = None,
    terminology: str | None = None,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    export: bool = False,
) -> None:
    from taskuq.report import _report as writing

    run_dir = source
    if not source.is_dir() or (source / "table.json").is_file():
        table = app.load_table(source, range)
        if alpha is None:
            raise InputError(f"{source} is a table; use --alpha 0.1", code="option.missing")
        run_dir = output or source.with_name(f"{source.stem}-report")
        page = writing.make_report(
            table, run_dir, alpha=alpha, max_width=app.parse_per_task(max_width, "max-width"),
            unit=unit, splits=splits, seed=seed, title=title, log=app.print_message,
            terminology=app.parse_mapping(terminology, "terminology"),
        )  # fmt: skip
    elif alpha is not None:
        raise InputError(
            f"{source} is a run folder with its own alpha; remove --alpha", code="option.unused"
        )
    else:
        page = writing.write_report(run_dir)
    app.print_wrapped(writing.answer_lines(run_dir))
    if export:
        folder = writing.export(run_dir)
        app.print_message(f"{folder}: tables and records; {folder.parent / 'figures'}: figures")
    app.print_result(str(page))


@app.command("run")
def run(
    config: Path,
    /,
    *,
    output: app.Output,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    slurm: app.Slurm = None,
    device: str | None = None,
    batch: int | None = None,
    threads: int | None = None,
    keep_images: str = "0",
    overwrite: bool = False,
    dry_run: bool = False,
) -> None:
    from taskuq.experiments._run import estimate_run_cost, open_run, read_run
    from taskuq.pipeline._engines import ENGINES, EngineOptions

    settings = read_run(config)
    options = EngineOptions(address, workers, tuple(slurm or ()), device)
    chosen = ENGINES[engine].from_options(options)
    opened = open_run(settings, device)
    if dry_run:
        app.print_result(estimate_run_cost(opened))
        return
    filled = opened.pipeline.run(
        opened.images, accelerations=opened.config.measure.accelerations,
        round_names=opened.config.measure.round_names,
        samples=opened.config.samples, seed=opened.config.seed, store=output,
        configuration=opened.configuration, engine=chosen, batch=batch, threads=threads,
        overwrite=overwrite, keep_images=_kept(keep_images), terminology=opened.terminology,
    )  # fmt: skip
    missing = len(filled.missing_cases)
    app.print_message(f"{filled}" + (f", {missing} cases missing" if missing else ""))
    app.print_result(str(output))


def _kept(text: str) -> int | tuple[str, ...]:
    """Parse --keep-images: a number of cases, or the names of the cases."""
    return int(text) if text.isdecimal() else tuple(app.parse_list(text))


@app.command("status")
def status(table: Path, /, *, json: app.Json = None) -> None:
    from taskuq.pipeline._pipeline import status as look

    found = look(table)
    if json != "-":
        app.print_result(
            f"{found['finished']} of {found['cases']} cases finished, {len(found['failed'])} "
            f"failed, {found['left']} left"
        )
        for case, reason in list(found["failed"].items())[:20]:
            app.print_result(f"  {case}: {reason}")
    app.print_json(found, json)


@app.command("table")
def table(
    source: Path,
    /,
    *,
    output: app.Output,
    range: app.Range = None,
    fraction: float | None = None,
    remainder: Path | None = None,
    unit: Literal["case", "group"] | None = None,
    sum_groups: float | None = None,
) -> None:
    if (fraction is None) != (remainder is None):
        raise InputError("--fraction and --remainder must be used together", code="option.missing")
    if remainder is not None and len({p.resolve() for p in (source, output, remainder)}) < 3:
        raise InputError("the table, -o and --remainder must differ", code="option.conflict")
    loaded = app.load_table(source, range)
    if sum_groups is not None:
        from taskuq.table._table import sum_groups as sum_outputs

        loaded = sum_outputs(loaded, sum_groups)
    missing = f", {len(loaded.missing_cases)} cases lack a round" if loaded.missing_cases else ""
    app.print_message(f"{loaded!r}{missing}")
    if fraction is None or remainder is None:
        app.print_result(str(loaded.save(output)))
        return
    from taskuq.conformal._units import as_unit, choose_fraction

    whom = as_unit(unit, has_groups=loaded.group is not None)
    part = choose_fraction(loaded, whom.index(loaded.cases, loaded.group), fraction)
    app.print_result(str(loaded.select(cases=part).save(output)))
    app.print_result(str(loaded.select(cases=~part).save(remainder)))


def train_command(kind: str) -> Callable[..., None]:
    """Return the command that trains one kind of network."""

    @app.command("train")
    def start(
        config: Path,
        /,
        *,
        output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
        devices: int = 1,
        nodes: int = 1,
        accelerator: Literal["auto", "cpu", "gpu", "mps"] = "auto",
        overwrite: bool = False,
        steps: int | None = None,
        dry_run: bool = False,
        json: app.Json = None,
        progress: bool = True,
    ) -> None:
        from taskuq.training import _fit
        from taskuq.training._module import format_timing

        machine = _fit.TrainerOptions(accelerator, devices, nodes, progress)
        folder = output or Path("runs") / f"{config.parent.name}-{config.stem}".lstrip("-.")
        if json is not None and not dry_run:
            raise InputError("--json needs --dry-run", code="option.unused")
        if dry_run:
            taken = _fit.PROBES if steps is None else steps
            record = _fit.estimate_training(kind, config, machine=machine, steps=taken)
            if _fit.is_first_process():
                if json != "-":
                    app.print_result(f"Data loading took {record['prepare_s']:.3g} s.")
                    app.print_result(format_timing(record))
                app.print_json(record, json)
            return
        path = _fit.train_config(
            kind,
            config,
            folder,
            machine=machine,
            fresh=overwrite,
            steps=steps,
            log=app.print_message,
            on_record=_draw,
        )
        if _fit.is_first_process():
            app.print_result(str(path))

    return start


def _draw(record: dict[str, Any], folder: Path) -> None:
    from taskuq.report.figures import save_figures

    save_figures(record, folder, endings=(".svg",))


# Extensions may register more networks.
train = cyclopts.App(name="train", help=app.COMMANDS["train"]["help"])
_ABOUT = {name: line.about for lines in LISTED.values() for name, line in lines.items()}
for _kind in NETWORKS:
    _help = f"{_ABOUT.get(_kind, f'Train {_kind}.')}\n\nExample: taskuq train {_kind} {_kind}.toml"
    train.command(train_command(_kind), name=_kind, help=_help)
