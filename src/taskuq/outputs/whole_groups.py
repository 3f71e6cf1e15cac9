"""Quantities of whole groups: a volume is the sum of the areas of its slices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from taskuq.errors import InputError
from taskuq.interval import FloatArray, TaskRange
from taskuq.outputs.table import TaskOutputs


def sum_groups(table: TaskOutputs, weight: float = 1.0) -> TaskOutputs:
    r"""Return a table of one case for each group: the weighted sums over its cases.

    .. math:: \hat V^{(j)}_g = w \sum_{i \in g} \hat z^{(j)}_i, \qquad V_g = w \sum_{i \in g} z_i

    With areas and the distance of slices as :math:`w` these are volumes. The samples of different
    slices are drawn on their own, so that errors which slices share are not in the spread of their
    sum; calibration makes up for that. Intervals of the sums are promised for a new group.

    Arguments:
        table: The table, with groups and without missing cases: a sum without one of its slices
            would be another quantity.
        weight: :math:`w`, above 0.

    Example:
        >>> table = TaskOutputs(outputs=np.ones((1, 3, 2)), targets=[1.0, 2.0, 4.0],
        ...                     accelerations=[2], group=["a", "a", "b"])
        >>> sums = sum_groups(table, weight=5.0)
        >>> sums.case, sums.targets, sums.outputs[0, :, 0]
        (array(['a', 'b'], dtype='<U1'), array([15., 20.]), array([10.,  5.]))
    """
    if not 0 < weight < math.inf:
        raise InputError(f"weight is {weight}; give a number above 0, e.g. a slice's thickness")
    if table.group is None:
        raise InputError("the table has no groups; sums are over the cases of a group")
    if table.missing:
        raise InputError(
            f"{len(table.missing)} cases are missing, first {table.missing[0]}; a sum without one "
            "of its cases would be another quantity: finish the run"
        )
    names, of_case = np.unique(np.asarray(table.group), return_inverse=True)
    members = (of_case == np.arange(len(names))[:, None]).astype(float)

    def summed(values: FloatArray, axis: int) -> FloatArray:
        moved = np.moveaxis(np.tensordot(members, values, axes=(1, axis)), 0, axis)
        return np.asarray(weight * moved)

    return TaskOutputs(
        outputs=summed(table.outputs, 1),
        targets=summed(table.targets, 1 if table.has_round_targets else 0),
        accelerations=table.accelerations,
        round_names=table.round_names,
        case=names,
        task_names=table.task_names,
        task_ranges=tuple(_range(one) for one in table.task_ranges),
        provenance=_provenance(table),
    )


def _provenance(table: TaskOutputs) -> dict[str, Any]:
    """Where the table is from; what was called a group is a case now."""
    said = dict(table.provenance)
    if isinstance(said.get("words"), Mapping) and "group" in said["words"]:
        said["words"] = {**said["words"], "case": said["words"]["group"]}
    return said


def _range(one: TaskRange) -> TaskRange:
    """Groups differ in size: of a range of cases only its sign is left."""
    if one is None or one[0] < 0:
        return None
    return (0.0, math.inf)
