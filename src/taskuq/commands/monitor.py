"""taskuq monitor: are the cases of a table still like those a policy was calibrated on?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from taskuq.commands.terminal import say, show, show_table


def monitor(
    policy: Path,
    table: Path,
    /,
    *,
    delta: float = 0.01,
    audited: bool = False,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("monitor.json"),
) -> None:
    """Look for evidence that new cases are not exchangeable with a policy's calibration cases.

    Arguments:
        policy: The policy's file.
        table: Task outputs of new cases, in the order in which they came, .npz or folder; targets
            are not needed.
        delta: The probability of a false alarm, over all time.
        audited: Whether the table's targets are those of scans that were completed at random: then
            how far outputs are from them is watched too.
        output: Where to keep what was seen. With the file of an earlier call the watch goes on, and
            units that it has seen are not counted again.
    """
    from taskuq.decide.monitor import Monitor
    from taskuq.decide.policy import load_policy
    from taskuq.decide.watching import watch_table
    from taskuq.outputs import TaskOutputs

    watch = Monitor(load_policy(policy), delta=delta, state=output)
    before = watch.units
    watch_table(watch, TaskOutputs.load(table), audited=audited)
    share = len(watch.streams)
    rows = [
        [
            name,
            str(len(stream.values)),
            f"{100 * stream.median_rank:.3g} %" if stream.values else "-",
            f"{stream.evidence[-1] / share:.3g}" if stream.values else "-",
            f"{stream.largest / share:.3g}",
            "yes" if name in watch.changed else "no",
        ]
        for name, stream in watch.streams.items()
    ]
    title = (
        f"{watch.units - before} new {watch.policy.guarantee.unit}s, {watch.units} in all; evidence"
        f" is shared among {share} statistics, and {1 / watch.delta:g} in one of them withdraws the"
        " promise"
    )
    columns = ["statistic", "seen", "median lies above", "evidence", "largest", "changed"]
    show_table(title, columns, rows)
    say(watch.sentence)
    show(str(watch.save(output)))
