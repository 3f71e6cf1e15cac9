"""Whether a policy, a scanner and a monitor can work together, said before anything is measured."""

from __future__ import annotations

import os
from numbers import Integral, Real
from typing import Any

from taskuq.decide.monitor import Monitor
from taskuq.decide.policy import Policy
from taskuq.decide.scanners import Scanners
from taskuq.errors import InputError


def require_fitting(
    policy: Policy,
    scanners: Scanners,
    samples: int,
    scan_id: str | None,
    state: str | os.PathLike[str] | None,
    deadline: Any,
    seed: Any,
) -> None:
    """Refuse a scan that its policy cannot be asked about.

    Arguments:
        policy: When to stop.
        scanners: Who measures.
        samples: The number of posterior samples.
        scan_id: What the scan is called.
        state: Where it is kept.
        deadline: Seconds for a round.
        seed: The seed of the recoveries.
    """
    if samples != policy.samples:
        raise InputError(
            f"this policy was calibrated with {policy.samples} samples, got samples={samples}"
        )
    if policy.whole_group and not scanners.is_group:
        raise InputError(
            "this policy decides about all cases of a group at once, got a scanner of one case; "
            "give a scanner for each case, or name them, cases=[...], and measure all in a round"
        )
    if state is not None and not scan_id:
        raise InputError(
            f"the state {state} needs the name of its scan, so that no other is taken for it; give "
            "scan_id=, e.g. an accession number"
        )
    if deadline is not None and not (isinstance(deadline, Real) and 0 < float(deadline) < 1e6):
        raise InputError(f"the deadline must be a positive number of seconds, got {deadline!r}")
    if not isinstance(seed, Integral):
        raise InputError(f"the seed must be an integer, got {seed!r}")


def require_watching(monitor: Monitor, policy: Policy, scanners: Scanners) -> None:
    """Refuse a monitor that cannot watch a scan.

    Arguments:
        monitor: The monitor.
        policy: The policy of the scan.
        scanners: Who measures.
    """
    if not monitor.is_of(policy):
        raise InputError("the monitor watches another policy; make one of this policy")
    if monitor.is_by_group and not scanners.is_group:
        raise InputError(
            "this policy is about groups, so its monitor has to see all cases of a group at once, "
            "got a scanner of one case; give a scanner for each case of the group"
        )
    if monitor.reference and monitor.look is None:
        raise InputError(
            f"the monitor has statistics of your own ({', '.join(monitor.reference)}), and a scan "
            "has to know how they are read off a measurement; give the monitor look="
        )
