"""Whether a scan is made with what its policy was calibrated with."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from taskuq.decide.policy import Policy
from taskuq.errors import VoidWarning
from taskuq.protocols import NamedPart

VOID = "its promise is not about this one; plan again"


def differences(
    policy: Policy, recover: Any, task: Any, rule: Any, masks: str | None = None
) -> list[str]:
    """Say in sentences what is known not to be as it was in the policy's calibration.

    Arguments:
        policy: The policy; what it does not know of its calibration is not compared.
        recover: The recovery method.
        task: The task.
        rule: What chooses the lines of later rounds; None where nothing does.
        masks: The mark of the masks (:func:`taskuq.measure.mask_files.mask_mark`), where they are
            known.
    """
    known = policy.provenance.get("fingerprints")
    if not isinstance(known, Mapping):
        return []
    found = []
    if ("rule" in known) != (rule is not None):
        chose = "a rule chose" if rule is None else "no rule chose"
        found.append(
            f"the policy was calibrated with lines that {chose}, and this scan is not: {VOID}"
        )
    parts = {"recover": recover, "task": task} | ({"rule": rule} if "rule" in known else {})
    marks = {n: str(p.fingerprint) for n, p in parts.items() if isinstance(p, NamedPart)}
    for name, mark in {**marks, "masks": masks}.items():
        # A run marks masks always, and other parts where they have weights.
        was = known.get(name, "none with weights" if "masks" in known else "")
        if was and mark and mark != was:
            found.append(f"the policy was calibrated with {name} {was}, and this is {mark}: {VOID}")
    return found


def other_coils(policy: Policy, coils: int) -> str | None:
    """Say where a scan has another number of coils than the policy's calibration had.

    Arguments:
        policy: The policy; where it does not know its coils, nothing is said.
        coils: Receiver channels of the scan.
    """
    known = policy.provenance.get("coils")
    if known in (None, coils):
        return None
    return f"the policy was calibrated with {known} coils, and this scan has {coils}: {VOID}"


def void_of(found: Sequence[str], *, depth: int) -> str | None:
    """Warn that nothing is promised where parts differ, and return that sentence; None else.

    Arguments:
        found: What :func:`differences` found.
        depth: How many calls lie between whoever is warned and this one.
    """
    if not found:
        return None
    said = "; ".join(found)
    warnings.warn(f"nothing is promised: {said}", VoidWarning, stacklevel=depth)
    return f"Nothing is promised: {said}."
