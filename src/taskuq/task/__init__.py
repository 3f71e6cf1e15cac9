"""Tasks that map images to numbers, and the training of task networks.

``build`` makes a network by name and ``load`` reads a trained one. ``MeanIntensity`` is a task
without a network; ``TorchTask`` wraps any module or function.
"""

from __future__ import annotations

from taskuq.task._backbone import BackboneConfig
from taskuq.task._classifier import Classifier, ClassifierConfig
from taskuq.task._classifier_training import AttackConfig
from taskuq.task._methods import TASKS, AirFraction, Area, MeanIntensity, TorchTask
from taskuq.task._quality import DISTS, LPIPS, NMSE, PSNR, SSIM, ImageQuality

build, load = TASKS.build, TASKS.load

__all__ = [
    "DISTS",
    "LPIPS",
    "NMSE",
    "PSNR",
    "SSIM",
    "TASKS",
    "AirFraction",
    "Area",
    "AttackConfig",
    "BackboneConfig",
    "Classifier",
    "ClassifierConfig",
    "ImageQuality",
    "MeanIntensity",
    "TorchTask",
    "build",
    "load",
]
