"""From an image to numbers: the classifier, its self-supervised start, its adversarial training.

``build`` makes a network by name, ``load`` reads a trained one. ``MeanIntensity`` is a task without
a network and ``AsTask`` makes one of any module or function.
"""

from taskuq.task.attack import AttackConfig
from taskuq.task.backbone import BackboneConfig
from taskuq.task.classifier import Classifier, ClassifierConfig
from taskuq.task.methods import TASKS, AsTask, MeanIntensity

build, load = TASKS.build, TASKS.load

__all__ = [
    "TASKS",
    "AsTask",
    "AttackConfig",
    "BackboneConfig",
    "Classifier",
    "ClassifierConfig",
    "MeanIntensity",
    "build",
    "load",
]
