"""A watch over the units of a table, in the order in which they lie there."""

from __future__ import annotations

import numpy as np

from taskuq.decide.monitor import Monitor
from taskuq.errors import InputError
from taskuq.outputs import TaskOutputs


def watch_table(monitor: Monitor, table: TaskOutputs, *, audited: bool = False) -> None:
    """Show the units of a table to a monitor, each group in the place of its first case.

    Arguments:
        monitor: The monitor.
        table: Task outputs of new cases; their names are the names of the units.
        audited: Whether its targets are those of scans that were completed at random.

    Example:
        >>> from taskuq.decide.planning import plan
        >>> from taskuq.outputs.synthetic import SyntheticScanner, synthetic_outputs
        >>> table = synthetic_outputs(SyntheticScanner(volumes=60), seed=0)
        >>> old, new = (table.select(group=np.unique(table.group)[part]) for part in
        ...             (slice(40), slice(40, None)))
        >>> monitor = Monitor(plan(old, alpha=0.2, max_width=0.2))
        >>> watch_table(monitor, new)
        >>> monitor.units, monitor.is_withdrawn
        (20, False)
    """
    _require_first_round(monitor, table)
    if audited and not table.has_targets:
        raise InputError("the table has no targets, so its cases were not audited; leave that out")
    named = table.group if monitor.is_by_group else table.case
    if monitor.is_by_group and named is None:
        raise InputError(
            "the policy is about groups, and the table does not say which group its cases are of"
        )
    units = np.arange(table.cases) if named is None else named
    _, first, index = np.unique(units, return_index=True, return_inverse=True)
    cases = np.argsort(index, kind="stable")
    ends = np.cumsum(np.bincount(index))
    with monitor.kept():
        for unit in np.argsort(first):
            members = cases[ends[unit - 1] if unit else 0 : ends[unit]]
            name = None if named is None else str(named[members[0]])
            outputs = table.outputs[:1, members]
            monitor.update(outputs, name=name)
            if audited:
                monitor.audit(outputs, table.targets_at(0)[members], name=name)


def _require_first_round(monitor: Monitor, table: TaskOutputs) -> None:
    """Refuse a table whose first round is another: what is seen there depends on how much it has.

    Later rounds are not looked at, and a table that does not name its rounds is taken at its word.
    """
    mine, theirs = (list(map(float, one.accelerations)) for one in (monitor.policy, table))
    if not np.isnan(theirs[0]) and mine[0] != theirs[0]:
        said = [", ".join(f"{R:g}" for R in rates) for rates in (mine, theirs)]
        raise InputError(
            f"the policy has rounds of acceleration {said[0]}, and the table has {said[1]}; give "
            "outputs of new cases whose first round is the policy's"
        )
