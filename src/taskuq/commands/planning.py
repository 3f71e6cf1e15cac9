"""taskuq plan-size: how many calibration cases are needed."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from taskuq.commands.terminal import hand_over, show


def plan_size(
    *,
    alpha: float = 0.05,
    epsilon: float = 0.02,
    delta: float = 0.05,
    one_sided: bool = False,
    group_size: float = 1.0,
    icc: float = 0.0,
    json: Annotated[str | None, Parameter(name="--json", allow_leading_hyphen=True)] = None,
) -> None:
    """Say how many calibration cases keep coverage near its target.

    Args:
        alpha: The error rate.
        epsilon: The deviation of coverage that is still acceptable.
        delta: The probability of a larger deviation.
        one_sided: Count only too little coverage as a deviation.
        group_size: The mean number of cases in a group, where cases come in groups.
        icc: The correlation of misses within a group.
        json: Write the record to this file, or to stdout for '-'.
    """
    from taskuq.calibration.law import calibration_size
    from taskuq.calibration.rank import cases_needed

    size = calibration_size(
        alpha, epsilon, delta, two_sided=not one_sided, group_size=group_size, icc=icc
    )
    least = cases_needed(alpha)
    if json != "-":
        sides = f"at least {1 - alpha - epsilon:g}" if one_sided else (
            f"between {1 - alpha - epsilon:g} and {min(1.0, 1 - alpha + epsilon):g}"
        )  # fmt: skip
        show(
            f"{size} calibration cases: then all but {delta:g} of calibration sets cover {sides} "
            f"of new cases ({least} give a finite interval at all)."
        )
    hand_over(
        {
            "schema": "taskuq.plan-size/1",
            "alpha": alpha,
            "epsilon": epsilon,
            "delta": delta,
            "two_sided": not one_sided,
            "group_size": group_size,
            "icc": icc,
            "n_calibration": size,
            "n_finite": least,
        },
        json,
    )
