from ._adapters import DeepinvRecover, RecoveryFolder
from ._engines import ENGINES, Engine, RayOptions, SlurmOptions, WorkItems
from ._pipeline import Pipeline, status

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
