"""What a service decides with, opened once from files and names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from taskuq.decide.monitor import Monitor
from taskuq.decide.policy import load_policy
from taskuq.errors import InputError
from taskuq.interval import BoolArray
from taskuq.measure.adaptive import AdaptiveLines
from taskuq.measure.mask_files import read_masks
from taskuq.measure.masks import MaskConfig
from taskuq.measure.mri import added_columns
from taskuq.pipeline.device import pick_device
from taskuq.weights import locate

if TYPE_CHECKING:
    from taskuq.runs.mrd.session import Chain

# Lines of a slice where no masks are given: those of the embedded networks.
SIZE = 128


def open_chain(
    policy: Path,
    recover: str,
    task: str,
    masks: Path | None,
    folder: Path,
    *,
    seed: int = 0,
    deadline: float | None = None,
    watch: float | None = None,
    shadow: bool = False,
    device: str | None = None,
    choose: Path | None = None,
) -> Chain:
    """Open policy, networks and masks, and see that they belong together.

    Arguments:
        policy: The policy's file.
        recover: The recovery network, by name or by its weights.
        task: The task network, by name or by its weights.
        masks: What ``taskuq masks`` wrote.
        folder: Where states are kept.
        seed: The seed of the recoveries.
        deadline: Seconds for a round.
        watch: The probability of a false alarm of a monitor; none watches where None.
        shadow: Whether nothing is stopped.
        device: Where networks run.
        choose: The run whose table ``[choose]`` says how lines are chosen for each slice; by the
            masks where None.
    """
    from taskuq.recover import open_recovery
    from taskuq.runs.mrd.session import Chain
    from taskuq.task import load

    loaded, chosen = load_policy(policy), pick_device(device)
    rates = tuple(map(float, loaded.accelerations))
    if masks is None:
        lines = MaskConfig(accelerations=rates).masks(SIZE)
    else:
        lines = read_masks(masks, rates)
    rule = None if choose is None else _rule(choose, lines, rates)
    monitor = None
    if watch is not None:
        monitor = Monitor(loaded, delta=watch, state=folder / "monitor.json")
    return Chain(
        policy=loaded,
        recover=open_recovery(recover, device=chosen),
        task=load(locate(task)).to(chosen),
        columns=added_columns(lines),
        folder=folder,
        seed=seed,
        deadline=deadline,
        monitor=monitor,
        shadow=shadow,
        rule=rule,
    )


def _rule(path: Path, lines: BoolArray, rates: tuple[float, ...]) -> AdaptiveLines:
    from taskuq.measure.mri import MultiCoilMRI
    from taskuq.runs.run import read_run

    chosen = read_run(path).choose
    if chosen is None:
        raise InputError(f"{path} has no table [choose]; name the run that the policy is of")
    return chosen.rule(MultiCoilMRI(lines, rates), lines, rates)
