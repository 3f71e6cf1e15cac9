"""What a service decides with, opened once from files and names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from taskuq.decide.likeness import differences, void_of
from taskuq.decide.monitor import Monitor
from taskuq.decide.policy import Policy, load_policy
from taskuq.errors import InputError
from taskuq.interval import BoolArray
from taskuq.measure.adaptive import AdaptiveLines
from taskuq.measure.mask_files import mask_mark, read_masks
from taskuq.measure.masks import MaskConfig
from taskuq.measure.mri import added_columns
from taskuq.pipeline.device import pick_device
from taskuq.weights import locate

if TYPE_CHECKING:
    from taskuq.runs.mrd.session import Chain

Columns = Sequence[NDArray[np.intp]]
# Lines of a slice where no masks are given: those of the embedded networks.
SIZE = 128


def open_chain(
    policy: Path,
    recover: str | None,
    task: str | None,
    masks: Path | None,
    folder: Path,
    *,
    runtime: Path | None = None,
    seed: int = 0,
    deadline: float | None = None,
    watch: float | None = None,
    shadow: bool = False,
    device: str | None = None,
    choose: Path | None = None,
    unlike: bool = False,
) -> Chain:
    """Open policy, networks and masks, and see that they belong together.

    Arguments:
        policy: The policy's file.
        recover: The recovery network, by name or by its weights.
        task: The task network, by name or by its weights.
        masks: What ``taskuq masks`` wrote.
        folder: Where states are kept.
        runtime: What ``taskuq export`` wrote, in place of networks and masks.
        seed: The seed of the recoveries.
        deadline: Seconds for a round.
        watch: The probability of a false alarm of a monitor; none watches where None.
        shadow: Whether nothing is stopped.
        device: Where networks run.
        choose: The run whose table ``[choose]`` says how lines are chosen for each slice; by the
            masks where None.
        unlike: Whether what is known not to be as it was in the policy's calibration is served all
            the same, without a promise; it is refused otherwise.
    """
    from taskuq.runs.mrd.session import Chain

    loaded = load_policy(policy)
    if runtime is not None:
        if any(given is not None for given in (recover, task, masks, device, choose)):
            raise InputError(
                "a runtime has recovery, task and masks of its own and runs on the CPU; leave "
                "--recover, --task, --masks, --choose and --device out"
            )
        parts = _of_runtime(runtime, loaded)
    elif recover is None or task is None:
        raise InputError("give --recover and --task, or --runtime with what taskuq export wrote")
    else:
        parts = _of_networks(loaded, recover, task, masks, device)
        if choose is not None:
            parts["rule"] = _rule(choose, loaded, masks)
    void = _unlike(loaded, unlike, **parts)
    monitor = None
    if watch is not None:
        monitor = Monitor(loaded, delta=watch, state=folder / "monitor.json")
    return Chain(
        policy=loaded,
        **parts,
        folder=folder,
        seed=seed,
        deadline=deadline,
        monitor=monitor,
        shadow=shadow,
        void=void,
        unlike=unlike,
    )


def _unlike(
    policy: Policy, allowed: bool, recover: Any, task: Any, columns: Columns, rule: Any = None,
    **others: Any,
) -> str | None:  # fmt: skip
    """Say why a policy promises nothing about these parts; refuse them unless that is allowed."""
    masks = np.zeros((len(columns) - 1, sum(map(len, columns))), dtype=bool)
    for k, added in enumerate(columns[:-1]):
        masks[k:, added] = True
    found = differences(policy, recover, task, rule, mask_mark(masks))
    if not found:
        return None
    if not allowed:
        raise InputError(f"{'; '.join(found)} (--unlike goes on without a promise)")
    return void_of(found, depth=4)


def _rule(path: Path, policy: Policy, masks: Path | None) -> AdaptiveLines:
    from taskuq.measure.mri import MultiCoilMRI
    from taskuq.runs.run import read_run

    chosen = read_run(path).choose
    if chosen is None:
        raise InputError(f"{path} has no table [choose]; name the run that the policy is of")
    lines, rates = masks_of_rounds(policy, masks), tuple(map(float, policy.accelerations))
    return chosen.rule(MultiCoilMRI(lines, rates), lines, rates)


def _of_runtime(runtime: Path, policy: Policy) -> dict[str, Any]:
    from taskuq.runs.runtime.opened import open_runtime

    return vars(open_runtime(runtime, policy))


def _of_networks(
    policy: Policy, recover: str, task: str, masks: Path | None, device: str | None
) -> dict[str, Any]:
    from taskuq.recover import open_recovery
    from taskuq.runs.run import mark_of
    from taskuq.task import load

    chosen = pick_device(device)
    parts: dict[str, Any] = {
        "recover": open_recovery(recover, device=chosen),
        "task": load(locate(task)).to(chosen),
    }
    for name, weights in (("recover", recover), ("task", task)):
        # What a run calls them, so that a policy knows whether they are its own.
        object.__setattr__(parts[name], "fingerprint", mark_of(weights))
    return {**parts, "columns": added_columns(masks_of_rounds(policy, masks))}


def masks_of_rounds(policy: Policy, masks: Path | None) -> BoolArray:
    """Return the lines that are measured in each round of a policy, booleans (round, width).

    Arguments:
        policy: The policy.
        masks: What ``taskuq masks`` wrote; the masks of the embedded networks where None.
    """
    rates = tuple(map(float, policy.accelerations))
    if masks is None:
        return MaskConfig(accelerations=rates).masks(SIZE)
    return read_masks(masks, rates)


def export(
    policy: Path, recover: str, task: str, masks: Path | None, folder: Path, *, coils: int,
    height: int | None, unlike: bool = False,
) -> Path:  # fmt: skip
    """Write recovery and task as programs that a service runs from.

    Arguments:
        policy: The policy's file.
        recover: The recovery network, by name or by its weights.
        task: The task network, by name or by its weights.
        masks: What ``taskuq masks`` wrote.
        folder: Where to write.
        coils: Receiver channels of a scan.
        height: Samples of a readout; as many as lines where None.
        unlike: Whether parts that are known not to be the policy's are written all the same.
    """
    from taskuq.runs.runtime.export import write_runtime

    if coils < 1 or (height is not None and height < 1):
        raise InputError(f"got {coils} coils and height {height}; give whole numbers above 0")
    loaded = load_policy(policy)
    parts = _of_networks(loaded, recover, task, masks, "cpu")
    _unlike(loaded, unlike, **parts)
    width = sum(map(len, parts["columns"]))
    return write_runtime(folder, loaded, **parts, shape=(coils, height or width, width))
