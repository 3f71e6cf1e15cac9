"""taskuq report: the page of any run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from taskuq.commands.arguments import Seed, by_task, names, ranges
from taskuq.commands.terminal import say, say_paragraphs, show
from taskuq.errors import InputError


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
    """Build report.html: of a run's folder, or of any table with --alpha.

    Of a run's folder the page shows what is stored there. A table is judged, a policy is planned
    where --max-width is given, and all of it is written into a folder of its own.

    Arguments:
        source: The folder of a run; or a table of task outputs: a folder, .npz, .csv or .parquet.
        alpha: Of a table: the error rate.
        max_width: Of a table: stop when intervals are this narrow; one number, or one for each
            task, e.g. lesion=0.1,area=20.
        unit: Of a table: promise for a case, a group, or whole groups; groups where it has them.
        trials: Of a table: the number of random splits.
        seed: Of a table: the seed of the splits.
        range: Of a table: the task's range, low,high, where the table does not declare it; of
            several tasks lesion=0:1,area=0:inf.
        title: Of a table: what the page is called.
        words: Of a table: what things are called where it does not say, e.g.
            case=slice,group=patient; also estimate, round, measurement and truth.
        output: Of a table: the folder of the page; the table's name and -report by default.
        export: Also write tables (CSV, JSON, LaTeX), figures (SVG, PNG, PDF) and intervals.csv.
    """
    from taskuq.report.report import answer_lines, write_report

    is_table = source.is_file() or (source / "table.json").is_file()
    if is_table and alpha is None:
        raise InputError(f"{source} is a table; say at which error rate to judge it: --alpha 0.1")
    if not is_table and alpha is not None:
        raise InputError(f"{source} is the folder of a run, which has its alpha; leave --alpha out")
    run_dir = source
    if is_table:
        assert alpha is not None
        from taskuq.report import make_report

        run_dir = output or source.with_name(f"{source.stem}-report")
        page = make_report(
            source, run_dir, alpha=alpha, max_width=by_task(max_width, "max-width"), unit=unit,
            trials=trials, seed=seed, title=title, task_range=ranges(range), tell=say,
            words=names(words, "words"),
        )  # fmt: skip
    else:
        page = write_report(run_dir)
    say_paragraphs(answer_lines(run_dir))
    if export:
        from taskuq.report.report import export as write_exports

        folder = write_exports(run_dir)
        say(f"{folder}: tables and numbers; {folder.parent / 'figures'}: drawings")
    show(str(page))
