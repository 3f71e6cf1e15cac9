"""Train a task network from its configuration file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from taskuq.data.readers import Data, open_task_data, paper_data
from taskuq.data.splits import Part, Split, SplitConfig
from taskuq.errors import InputError
from taskuq.settings import read_settings, to_table
from taskuq.task.attack import AttackConfig
from taskuq.task.augment import AugmentConfig
from taskuq.task.backbone import Backbone
from taskuq.task.cases import TaskCases, collate
from taskuq.task.classifier import Classifier, ClassifierConfig
from taskuq.task.metrics import require_classes
from taskuq.task.recipes import class_weights, classifier_recipe, simclr_recipe
from taskuq.task.resnet50 import read_imagenet
from taskuq.task.simclr import ContrastiveConfig
from taskuq.training.config import TrainingConfig
from taskuq.training.fit import Machine, fit
from taskuq.training.recipe import Recipe
from taskuq.training.seeds import own_randomness
from taskuq.weights.files import fill, read_card, read_tensors


@dataclass(frozen=True)
class StartConfig:
    """What a network starts from: weights of an earlier training, ImageNet's, or random ones.

    Arguments:
        simclr: Weights that ``taskuq train simclr`` wrote.
        imagenet: A file of torchvision's ResNet-50 weights.
        classifier: Weights that ``taskuq train classifier`` wrote, head included: plain training
            first and adversarial training after it is much quicker than the second alone.

    Example:
        >>> StartConfig(simclr=Path("a.safetensors"), imagenet=Path("b.pth"))
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: start names several files; name one
    """

    simclr: Path | None = None
    imagenet: Path | None = None
    classifier: Path | None = None

    def __post_init__(self) -> None:
        if sum(path is not None for path in (self.simclr, self.imagenet, self.classifier)) > 1:
            raise InputError("start names several files; name one")


@dataclass(frozen=True)
class ClassifierTraining:
    """One TOML file for a task network; the defaults are the paper's.

    Arguments:
        network: The size of the network and its outputs.
        training: Optimiser, epochs, batch; ``patience`` stops early by AUROC on tuning patients.
        data: Where labelled images come from.
        split: Who is trained on, tuned on, judged.
        views: How far a view is from its image.
        attack: Radius and steps of adversarial training; radius 0 trains plainly.
        start: What the network starts from.
        balance: Whether both classes count alike in the loss.

    Example:
        >>> ClassifierTraining().training.epochs, ClassifierTraining().attack.radius
        (100, 1.5)
    """

    network: ClassifierConfig = field(default_factory=ClassifierConfig)
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            epochs=100,
            batch=128,
            learning_rate=1e-4,
            weight_decay=1e-2,
            schedule="cosine",
            decay=0.02,
        )
    )
    data: Data = field(default_factory=paper_data)
    split: SplitConfig = field(default_factory=SplitConfig)
    views: AugmentConfig = field(default_factory=AugmentConfig)
    attack: AttackConfig = field(default_factory=AttackConfig)
    start: StartConfig = field(default_factory=StartConfig)
    balance: bool = True


@dataclass(frozen=True)
class ContrastiveTraining:
    """One TOML file for self-supervised pre-training; the defaults are the paper's.

    Arguments:
        network: The size of the network.
        training: Optimiser, epochs, batch.
        data: Where images come from; labels are not looked at.
        split: Who is trained on, tuned on, judged: the same file as for the classifier.
        views: How far a view is from its image.
        start: What the backbone starts from.

    Example:
        >>> ContrastiveTraining().training.epochs, ContrastiveTraining().views.blur
        (500, 2.0)
    """

    network: ContrastiveConfig = field(default_factory=ContrastiveConfig)
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            epochs=500,
            batch=128,
            learning_rate=2e-4,
            weight_decay=1e-2,
            schedule="cosine",
            decay=0.02,
        )
    )
    data: Data = field(default_factory=paper_data)
    split: SplitConfig = field(default_factory=SplitConfig)
    views: AugmentConfig = field(default_factory=lambda: AugmentConfig(contrast=0.5, blur=2.0))
    start: StartConfig = field(default_factory=StartConfig)


Settings = ClassifierTraining | ContrastiveTraining


def read_task_settings(kind: Literal["simclr", "classifier"], config: Path | str) -> Settings:
    """Read what a TOML file says about a training.

    Arguments:
        kind: What is trained.
        config: The TOML file.

    Returns:
        The settings.

    Example:
        >>> read_task_settings("classifier", "absent.toml")
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: cannot read absent.toml: No such file or directory
    """
    layout: Any = ClassifierTraining if kind == "classifier" else ContrastiveTraining
    settings: Settings = read_settings(layout, config)
    return settings


def open_parts(settings: Settings, split: Split | None = None) -> tuple[Part, Part, Part]:
    """Open the data a training names, in three parts that share no patient.

    Arguments:
        settings: What a configuration file says.
        split: Who goes where; by default what the settings say.

    Returns:
        Cases to train on, to tune on, to judge.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from taskuq.data.arrays import NpzData
        >>> path = Path(tempfile.mkdtemp()) / "mine.npz"
        >>> np.savez(path, images=np.ones((10, 8, 8)), label=[0, 1] * 5, group=np.arange(10))
        >>> settings = ClassifierTraining(data=NpzData(path=path))
        >>> [len(part.cases) for part in open_parts(settings)]
        [6, 1, 3]
    """
    whole = open_task_data(settings.data)
    if split is None:
        split = settings.split.split(whole.cases.groups)
    train, tune, judge = whole.split(split)
    if settings.data.in_memory:
        processes = settings.data.processes
        return train.in_memory(processes), tune.in_memory(processes), judge
    return train, tune, judge


def train(
    settings: Settings,
    folder: Path | str,
    *,
    machine: Machine | None = None,
    fresh: bool = False,
    parts: tuple[Part, Part] | None = None,
) -> Path:
    """Train a task network.

    Arguments:
        settings: Everything that a configuration file says.
        folder: Where weights, logs and the state go.
        machine: On what to train.
        fresh: Whether to begin again and overwrite what is there.
        parts: Cases to train on and to tune on; by default those the settings name.

    Returns:
        The best weights.
    """
    training, tuning = parts or open_parts(settings)[:2]
    with own_randomness(settings.training.seed):
        recipe = _recipe(settings, training, tuning)
    return fit(
        recipe,
        TaskCases(training.cases, training.targets),  # type: ignore[arg-type]
        TaskCases(tuning.cases, tuning.targets),  # type: ignore[arg-type]
        settings.training,
        folder,
        settings=to_table(settings),
        machine=machine,
        fresh=fresh,
        collate=collate,
    )


def _recipe(settings: Settings, training: Part, tuning: Part) -> Recipe:
    if isinstance(settings, ContrastiveTraining):
        if settings.training.batch < 2:
            raise InputError("training.batch is 1; a contrastive loss compares images: give more")
        recipe = simclr_recipe(settings.network, settings.views)
        if settings.start.classifier is not None:
            raise InputError("start.classifier is for a classifier; name simclr or imagenet")
        _start(recipe.network.backbone, settings.start)  # type: ignore[arg-type]
        return recipe
    network = Classifier(settings.network)
    _start(network.backbone, settings.start)
    if settings.start.classifier is not None:
        read_card(settings.start.classifier, ("classifier",))
        fill(network, read_tensors(settings.start.classifier), settings.start.classifier)
    tasks = len(settings.network.tasks)
    if training.targets.shape[1] != tasks:
        raise InputError(
            f"the data have {training.targets.shape[1]} targets for each case and the network "
            f"{tasks} outputs; give network.tasks one name for each target"
        )
    weights = torch.ones(tasks, 2)
    if settings.network.output == "probability":
        require_classes(training.targets, "training patients")
        require_classes(tuning.targets, "tuning patients")
        weights = class_weights(training.targets, settings.balance)
    else:
        _standardise(network, training)
    return classifier_recipe(network, settings.views, settings.attack, weights)


def _standardise(network: Classifier, training: Part) -> None:
    spread = training.targets.std(axis=0)
    if (spread == 0).any():
        raise InputError("all training targets are the same number; give others to learn from")
    network.shift.copy_(torch.as_tensor(training.targets.mean(axis=0)))
    network.spread.copy_(torch.as_tensor(spread))


def _start(backbone: Backbone, start: StartConfig) -> None:
    """Fill a backbone from what was pre-trained."""
    if start.imagenet is not None:
        if backbone.config.kind != "resnet50":
            raise InputError("start.imagenet is for a resnet50; the backbone is small: leave it")
        read_imagenet(backbone.body, start.imagenet)
    if start.simclr is not None:
        read_card(start.simclr, ("simclr",))
        prefix = "backbone."
        found = read_tensors(start.simclr)
        shared = {k.removeprefix(prefix): v for k, v in found.items() if k.startswith(prefix)}
        fill(backbone, shared, start.simclr)
