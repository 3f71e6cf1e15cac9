from ._config import Recipe, TrainingConfig
from ._fit import train
from ._networks import NETWORKS, NetworkKind
from ._weights import load_weights, save_weights

__all__ = [
    "NETWORKS",
    "NetworkKind",
    "Recipe",
    "TrainingConfig",
    "load_weights",
    "save_weights",
    "train",
]
