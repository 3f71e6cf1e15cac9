"""From images to the table: the one place where measurement, recovery and task meet."""

from taskuq.pipeline.cluster import RayOptions
from taskuq.pipeline.run import Pipeline, status
from taskuq.pipeline.slurm import SlurmOptions

__all__ = ["Pipeline", "RayOptions", "SlurmOptions", "status"]
