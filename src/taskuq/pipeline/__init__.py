"""From images to the table: the one place where measurement, recovery and task meet."""

from taskuq.pipeline.adapters import PhysicsRecovery
from taskuq.pipeline.cluster import RayOptions
from taskuq.pipeline.engines import ENGINES
from taskuq.pipeline.precomputed import RecoveryFolder
from taskuq.pipeline.run import Pipeline, status
from taskuq.pipeline.slurm import SlurmOptions

__all__ = [
    "ENGINES",
    "PhysicsRecovery",
    "Pipeline",
    "RayOptions",
    "RecoveryFolder",
    "SlurmOptions",
    "status",
]
