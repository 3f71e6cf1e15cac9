"""taskuq demo: the embedded experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from taskuq.commands.evaluate import draw_all, print_record
from taskuq.commands.policies import simulate
from taskuq.commands.terminal import say, show
from taskuq.files import write_json


def demo(
    *,
    fast: bool = False,
    seed: int = 0,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("runs/demo"),
) -> None:
    """Make a synthetic table, judge scores and stopping policies on it, and draw the figures.

    Args:
        fast: A smaller table and fewer splits.
        seed: The seed of the table and of the splits.
        output: The folder for the table, the record and the figures.
    """
    from taskuq.experiments.comparison import Comparison, compare
    from taskuq.experiments.synthetic import SyntheticScanner, synthetic_outputs

    say("Making a synthetic table: latent logit truth, biased and under-dispersed samples.")
    table = synthetic_outputs(SyntheticScanner(volumes=30 if fast else 100), seed=seed)
    path = table.save(output / "synthetic.npz")
    say(f"{path}: {table}")
    scores = ("ar", "lwr", "cqr", "mlwr", "learned")
    trials = 500 if fast else 10_000
    say(f"Judging {', '.join(scores)} over {trials} random splits by case, alpha 0.05.")
    record = compare(table, Comparison(scores=scores, trials=trials, seed=seed, unit="case"))
    print_record(record)
    write_json(output / "evaluate-by-case.json", record.to_dict())
    say("The same by group: whole volumes are split, and the promise is for a new volume.")
    by_group = compare(table, Comparison(scores=scores, trials=trials, seed=seed, unit="group"))
    print_record(by_group)
    write_json(output / "evaluate-by-group.json", by_group.to_dict())
    draw_all(record, output / "figures")
    say("Stopping policies: scan round by round until the interval is at most 0.1 wide.")
    simulate(
        path, score="lwr,cqr", alpha=0.05, max_width=0.1, trials=trials, unit="case", seed=seed,
        json=str(output / "simulate-by-case.json"), figures=output / "figures",
    )  # fmt: skip
    show(str(output))
