"""Whether a scan is made with what its policy was calibrated with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskuq.decide.policy import Policy
from taskuq.protocols import NamedPart


def differences(policy: Policy, recover: Any, task: Any, rule: Any) -> list[str]:
    """Say in sentences what is known not to be as it was in the policy's calibration.

    Arguments:
        policy: The policy.
        recover: The recovery method.
        task: The task.
        rule: What chooses the lines of later rounds; None where nothing does.
    """
    known = policy.provenance.get("fingerprints")
    if not isinstance(known, Mapping):
        return []
    found = []
    if ("rule" in known) != (rule is not None):
        chose = "a rule chose" if rule is None else "no rule chose"
        found.append(
            f"the policy was calibrated with lines that {chose}, and this scan is not: its promise "
            "is not about this one; plan again"
        )
    for name, part in {"recover": recover, "task": task, "rule": rule}.items():
        was = known.get(name)
        if was and isinstance(part, NamedPart) and part.fingerprint not in ("", was):
            found.append(
                f"the policy was calibrated with {name} {was}, and this is {part.fingerprint}: "
                "its promise is not about this one; plan again"
            )
    return found
