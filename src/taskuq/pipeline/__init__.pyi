from ._engines import ENGINES, Engine, RayOptions, SlurmOptions, WorkItems
from ._executor import RecoveryFolder
from ._pipeline import Pipeline, status

__all__ = [
    "ENGINES",
    "Engine",
    "Pipeline",
    "RayOptions",
    "RecoveryFolder",
    "SlurmOptions",
    "WorkItems",
    "status",
]
