"""From images to the table: the one place where measurement, recovery and task meet."""

from taskuq.pipeline.adapters import PhysicsRecovery
from taskuq.pipeline.engines import ENGINES, RayOptions, SlurmOptions
from taskuq.pipeline.precomputed import RecoveryFolder
from taskuq.pipeline.run import Pipeline, status

__all__ = [
    "ENGINES",
    "PhysicsRecovery",
    "Pipeline",
    "RayOptions",
    "RecoveryFolder",
    "SlurmOptions",
    "status",
]
