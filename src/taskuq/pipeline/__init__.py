"""From images to the table: the one place where measurement, recovery and task meet."""

from taskuq.pipeline.run import Pipeline, status

__all__ = ["Pipeline", "status"]
