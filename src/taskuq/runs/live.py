"""The live half of the embedded experiment: scan patients round by round until a policy stops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from taskuq.checks import as_array
from taskuq.data.dataset import Dataset
from taskuq.decide.acquisition import acquire
from taskuq.decide.policy import Policy
from taskuq.decide.scan import Acquisition
from taskuq.interval import BoolArray, FloatArray
from taskuq.measure.coils import rss
from taskuq.measure.mri import MultiCoilMRI, SimulatedScanner
from taskuq.pipeline.device import pick_device
from taskuq.protocols import Recover, Task
from taskuq.recover import open_recovery
from taskuq.seeds import case_seed
from taskuq.task import load
from taskuq.weights import locate


@dataclass(frozen=True)
class Networks:
    """The recoveries and the task of an experiment.

    Arguments:
        sampler: Draws posterior samples.
        point: Gives a point estimate.
        task: Reads a number off an image.
    """

    sampler: Recover
    point: Recover
    task: Task


def embedded_networks() -> Networks:
    """Open the networks that travel with the package, on the device there is."""
    device = pick_device(None)
    return Networks(
        sampler=open_recovery("sampler-atlas", device=device),
        point=open_recovery("varnet-atlas", device=device),
        task=load(locate("classifier-atlas")).to(device),
    )


class ScannedSlice(NamedTuple):
    """One slice: what the policy decided, and what the explorer shows of it, by its names there."""

    scan: Acquisition
    shown: dict[str, Any]


class Remembering:
    """A recovery that keeps what it recovered, so that nothing is drawn twice."""

    def __init__(self, recover: Recover) -> None:
        self.recover, self.drawn = recover, list[Tensor]()

    def __call__(self, measurement: Any, *, samples: int, seed: int) -> Tensor:
        """Recover, and keep the images."""
        images: Tensor = self.recover(measurement, samples=samples, seed=seed)
        self.drawn.append(images)
        return images


def scan_slice(
    data: Dataset,
    index: int,
    policy: Policy,
    networks: Networks,
    masks: BoolArray,
    *,
    seed: int = 0,
    shown: int = 8,
    tell: Callable[[str], None] = lambda line: None,
) -> ScannedSlice:
    """Scan one slice until the policy stops; then look at the rounds it did not need.

    Arguments:
        data: The data set.
        index: Which case of it.
        policy: When to stop.
        networks: Recoveries and task.
        masks: Nested masks (round, width).
        seed: The seed of the samples.
        shown: How many samples to keep as images.
        tell: Called with a sentence after every round.
    """
    item = data[index]
    rates = tuple(float(R) for R in policy.accelerations)
    recover = Remembering(networks.sampler)
    scan = acquire(
        policy, SimulatedScanner(item.image, masks, rates), recover=recover, task=networks.task,
        samples=policy.samples, seed=seed, case=item.case,
        on_round=lambda r: tell(_sentence(item.case, r.acceleration, r.lower, r.upper, r.stop)),
    )  # fmt: skip
    scanner = MultiCoilMRI(masks, rates)
    measurements = [scanner(item.image, R) for R in rates]
    for k in range(len(recover.drawn), len(rates)):
        recover(measurements[k], samples=policy.samples, seed=case_seed(seed, item.case, rates[k]))
    drawn = torch.stack([images.cpu() for images in recover.drawn[: len(rates)]])
    points = torch.cat([networks.point(m, samples=1, seed=0).cpu() for m in measurements])
    outputs = [one.outputs for one in scan.rounds[: len(rates)]]
    outputs += [_numbers(networks.task(images)) for images in drawn[len(outputs) :]]
    truth = rss(item.image)
    return ScannedSlice(
        scan,
        {
            "case": item.case,
            "group": item.group,
            "label": int(item.label),
            "truth": truth.numpy(),
            "targets": float(_numbers(networks.task(truth[None]))[0]),
            "estimate": torch.stack([rss(m.zero_filled) for m in measurements]).numpy(),
            "mean": drawn.mean(1).numpy(),
            "sd": drawn.std(1).numpy(),
            "samples": drawn[:, :shown].numpy(),
            "outputs": np.stack(outputs),
            "point": points.numpy(),
            "point_outputs": _numbers(networks.task(points)),
        },
    )


def _numbers(values: Any) -> FloatArray:
    return as_array(values, "task outputs").astype(float)


def _sentence(case: str, R: float, lower: Any, upper: Any, stop: bool) -> str:
    ends = f"[{float(lower):.3f}, {float(upper):.3f}]"
    if R == 1:
        return f"{case}: all measured, the answer is {float(upper):.3f}"
    return f"{case}, R = {R:g}: {ends}, {'stop' if stop else 'measure more'}"
