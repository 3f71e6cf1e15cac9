"""taskuq demo: the embedded experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from taskuq.commands.arguments import Seed
from taskuq.commands.terminal import say, say_paragraphs, show


def demo(
    *,
    fast: bool = False,
    verbose: bool = False,
    seed: Seed = 0,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("runs/demo"),
) -> None:
    """Scan synthetic patients until the answer is certain enough, judge everything, write a page.

    Measures new patients of the embedded atlas round by round, draws posterior samples, runs the
    classifier and lets a calibrated policy decide when to stop; then repeats the paper's evaluation
    on the stored table of the package.

    Arguments:
        fast: Fewer slices and fewer random splits.
        verbose: Tell every round of every scan, and what was found of every claim.
        seed: The seed of samples and splits.
        output: The folder for tables, records and the page.
    """
    from taskuq.runs.demo import DemoSettings, run_demo
    from taskuq.report.report import answer_lines

    settings = DemoSettings.fast(seed) if fast else DemoSettings(seed=seed)
    # What is told round by round says how far it is, too.
    page = run_demo(
        settings, output, stage=say, tell=say if verbose else lambda line: None, quiet=verbose
    )
    say("")
    say_paragraphs(answer_lines(output))
    say("\nOpen the page in a browser; its explorer shows every image and recomputes intervals.")
    show(str(page))
