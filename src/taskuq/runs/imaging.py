"""What every run over images is made of: data, measurement, recovery, task, samples and a seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from taskuq.data.readers import Data, paper_data
from taskuq.measure.masks import MaskConfig
from taskuq.measure.systems import AnySystem
from taskuq.recover.methods import RECOVERIES, ZeroFilled
from taskuq.task.methods import TASKS, MeanIntensityMethod
from taskuq.training.networks import Method


@dataclass(frozen=True)
class Imaging:
    """How images become numbers; a run, learning an order and comparing orders add their own.

    Arguments:
        data: Where images come from.
        measure: What the rounds measure: masks of MRI, or views of tomography.
        noise: Standard deviation of the measurement noise.
        recover: How images are recovered.
        task: What is read off them.
        samples: Posterior samples per case and round.
        seed: The seed of noise and samples.
    """

    data: Data = field(default_factory=paper_data)
    measure: AnySystem = field(default_factory=MaskConfig)
    noise: float = 0.0
    recover: Annotated[Method, RECOVERIES] = field(default_factory=ZeroFilled)
    task: Annotated[Method, TASKS] = field(default_factory=MeanIntensityMethod)
    samples: int = 32
    seed: int = 0
