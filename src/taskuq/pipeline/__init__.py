"""From images to the table: the one place where measurement, recovery and task meet."""

from __future__ import annotations

from taskuq.pipeline._adapters import DeepinvRecover, RecoveryFolder
from taskuq.pipeline._engines import ENGINES, Engine, RayOptions, SlurmOptions, WorkItems
from taskuq.pipeline._pipeline import Pipeline, status

__all__ = [
    "ENGINES",
    "DeepinvRecover",
    "Engine",
    "Pipeline",
    "RayOptions",
    "RecoveryFolder",
    "SlurmOptions",
    "WorkItems",
    "status",
]
