"""Training, attack and evaluation of the classifier, and its settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from taskuq._config import Count, NonNegative, Positive, Size, check_ranges
from taskuq.data._dataset import LabelledSubset
from taskuq.errors import InputError
from taskuq.interval import FloatArray
from taskuq.task import _metrics
from taskuq.task._backbone import BackboneConfig
from taskuq.task._cases import TaskDataset, TaskTraining, augment, collate, unit_scale
from taskuq.task._classifier import Classifier, ClassifierConfig, eval_mode
from taskuq.task._methods import TASKS
from taskuq.training._config import Batch, Recipe, TrainingConfig, mean_summary
from taskuq.training._fit import TrainerOptions
from taskuq.training._networks import NetworkKind
from taskuq.training._weights import load_weights, read_card


@dataclass(frozen=True)
class AttackConfig:
    r"""Settings of a projected-gradient attack; the defaults are the paper's.

    A given radius is a stronger attack on a smaller image, so the radius is scaled with the square
    root of the number of pixels.

    Args:
        radius: Largest :math:`\ell_2` norm of a perturbation; 0 for no attack.
        reference_size: Rows and columns of the images for which ``radius`` is given.
        steps: Number of gradient steps.
        step_size: Length of one step relative to the radius; all steps together must reach the
            radius.

    Example:
        >>> AttackConfig().radius_for(128, 128)
        0.6
    """

    radius: NonNegative = 1.5
    reference_size: Size = 320
    steps: Count = 10
    step_size: Positive = 0.25

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.steps * self.step_size < 1:
            text = f"attack.steps * step_size must be at least 1 (the radius), got {self}"
            raise InputError(text, code="value.invalid")

    def radius_for(self, height: int, width: int) -> float:
        """Return the radius for images of a given size."""
        return self.radius * math.sqrt(height * width) / self.reference_size


def l2_pgd(
    loss: Callable[[Tensor], Tensor], images: Tensor, *, radius: float, steps: int, step: float
) -> Tensor:
    r"""Perturb images within an :math:`\ell_2` ball to increase a loss."""
    x = images.detach()
    for _ in range(steps):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(loss(x).sum(), x)
        change = x.detach() + step * gradient / _norm(gradient) - images
        change = change * (radius / _norm(change)).clamp(max=1)
        x = (images + change).clamp(0, 1)
    return x.detach()


def adversarial_images(
    network: Classifier, scaled: Tensor, targets: Tensor, config: AttackConfig
) -> Tensor:
    radius = config.radius_for(*scaled.shape[-2:])
    if radius == 0:
        return scaled.detach()

    def loss(images: Tensor) -> Tensor:
        raw = network.raw(images).float()
        if network.config.output == "probability":
            return ((1 - 2 * targets) * raw).sum(1)
        return (raw - targets).square().sum(1)

    with eval_mode(network):
        step = config.step_size * radius
        return l2_pgd(loss, scaled, radius=radius, steps=config.steps, step=step)


def _norm(images: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(images, dim=(-2, -1), keepdim=True)
    return norm.clamp_min(torch.finfo(norm.dtype).tiny)


def _classifier_metrics(
    network: Classifier, part: LabelledSubset, attack: AttackConfig | None = None
) -> list[dict[str, Any]]:
    clean, attacked = _task_outputs(network, part), None
    if attack is not None and attack.radius > 0:
        attacked = _task_outputs(network, part, attack)
    tasks = []
    for k, name in enumerate(network.config.tasks):
        z, y = clean[:, k], part.targets[:, k]
        false, true = _metrics.roc_curve(z, y)
        row: dict[str, Any] = {
            "task": name,
            "cases": len(y),
            "groups": len(np.unique(part.cases.groups)),
            "positive": int(y.sum()),
            **{k: None if v != v else v for k, v in _metrics.classification_rates(z, y).items()},
            "auroc": _metrics.auroc(z, y),
            "reliability": _metrics.reliability(z, y),
            "roc": {"false": false.tolist(), "true": true.tolist()},
        }
        if attacked is not None:
            rates = _metrics.classification_rates(attacked[:, k], y)
            row["robust_accuracy"] = rates["accuracy"]
            row["robust_auroc"] = _metrics.auroc(attacked[:, k], y)
        tasks.append(row)
    return tasks


def _regression_metrics(network: Classifier, part: LabelledSubset) -> list[dict[str, Any]]:
    z = _task_outputs(network, part)
    rows = []
    for k, name in enumerate(network.config.tasks):
        error, y = z[:, k] - part.targets[:, k], part.targets[:, k]
        variance = float(y.var())
        rows.append(
            {
                "task": name,
                "cases": len(y),
                "groups": len(np.unique(part.cases.groups)),
                "error": float(np.abs(error).mean()),
                "explained": 1 - float((error**2).mean()) / variance if variance else None,
            }
        )
    return rows


def _task_outputs(
    network: Classifier, part: LabelledSubset, attack: AttackConfig | None = None
) -> FloatArray:
    device, cases, outputs = network.shift.device, TaskDataset(part.cases, part.targets), []
    with eval_mode(network):
        for first in range(0, len(cases), 256):
            chosen = range(first, min(first + 256, len(cases)))
            together = collate([cases[0, index] for index in chosen])
            images = unit_scale(together["image"].to(device))
            if attack is not None:
                images = adversarial_images(network, images, together["target"].to(device), attack)
            with torch.no_grad():
                outputs.append(network.outputs(network.raw(images)).double().cpu().numpy())
    return np.concatenate(outputs)


SCHEMA = "taskuq.task/1"


def _table(record: dict[str, Any]) -> list[str]:
    rows = [(part, row) for part, tasks in record["parts"].items() for row in tasks]
    names = ["auroc", "accuracy", "precision", "recall", "robust_accuracy"]
    heads = [" AUROC", "accuracy", "precision", " recall", " attacked"]
    if rows and "error" in rows[0][1]:
        names, heads = ["error", "explained"], ["mean error", "explained"]
    lines = [f"{'part':6s} {'task':12s} cases groups  " + " ".join(heads)]
    for part, row in rows:
        numbers = ("-" if row.get(n) is None else f"{row[n]:.3f}" for n in names)
        values = [number.rjust(len(h)) for number, h in zip(numbers, heads, strict=True)]
        counts = f"{row['cases']:5d} {row['groups']:6d}"
        lines.append(f"{part:6s} {row['task']:12s} {counts}  " + " ".join(values))
    return lines


PRESETS = {
    "paper": ClassifierConfig(),
    "demo": ClassifierConfig(BackboneConfig("small", width=16), hidden=(64,)),
    "tiny": ClassifierConfig(BackboneConfig("small", width=8, blocks=(1, 1, 1)), hidden=(16,)),
}
PAPER = TrainingConfig(
    epochs=100, batch=128, learning_rate=1e-4, weight_decay=1e-2, schedule="cosine", lr_decay=0.02
)


@dataclass(frozen=True)
class ClassifierMethod:
    """Settings of [task] for a classifier."""

    weights: Path | None = None  #: Trained classifier: weights file or bundled name.

    def open(self, device: torch.device | str) -> Classifier:
        network: Classifier = TASKS.trained("classifier", self.weights)[1]
        return network.to(device)


@dataclass(frozen=True)
class _ClassifierTraining(TaskTraining):
    """Settings for training a classifier; the defaults are the paper's."""

    network: ClassifierConfig = field(default_factory=ClassifierConfig)
    training: TrainingConfig = PAPER
    attack: AttackConfig = field(default_factory=AttackConfig)  #: Attack in adversarial training.
    balance_classes: bool = True  #: Give both classes equal weight.
    #: "loss" gives both classes the same total weight; "sampling" draws both equally often.
    balance_by: Literal["loss", "sampling"] = "loss"

    def prepare(
        self, machine: TrainerOptions, data: Sequence[LabelledSubset] | None = None
    ) -> tuple[TaskDataset, ...]:
        train, *others = super().prepare(machine, data)
        if self._samples_classes:
            if len(self.network.tasks) > 1:
                text = "balance_by = 'sampling' is for one task; use 'loss' for several"
                raise InputError(text, code="option.conflict")
            _metrics.require_classes(train.targets, "training patients")
            train = replace(train, balance_seed=self.training.seed)
        return train, *others

    @property
    def _samples_classes(self) -> bool:
        is_probability = self.network.output == "probability"
        return self.balance_classes and self.balance_by == "sampling" and is_probability

    def recipe(self, cases: tuple[TaskDataset, ...], machine: TrainerOptions) -> Recipe:
        network = Classifier(self.network)
        self.init_from.fill(network.backbone)
        if self.init_from.classifier is not None:
            read_card(self.init_from.classifier, ("classifier",))
            load_weights(network, self.init_from.classifier)
        tasks, targets = len(self.network.tasks), cases[0].targets
        if targets.shape[1] != tasks:
            message = f"the data have {targets.shape[1]} targets; name as many network.tasks"
            raise InputError(message, code="shape.mismatch")
        weights = torch.ones(tasks, 2)
        if self.network.output == "probability":
            _metrics.require_classes(targets, "training patients")
            _metrics.require_classes(cases[1].targets, "tuning patients")
            if self.balance_classes and not self._samples_classes:
                positives = targets.mean(axis=0)
                balanced = np.stack([0.5 / (1 - positives), 0.5 / positives], axis=1)
                weights = torch.as_tensor(balanced, dtype=torch.float32)
        else:
            _standardise(network, targets)

        def loss(net: Any, batch: Batch, generator: torch.Generator) -> Tensor:
            targets = net.standardised(batch["target"])
            images = unit_scale(augment(unit_scale(batch["image"]), self.augment, generator))
            images = adversarial_images(net, images, targets, self.attack)
            return _losses(net, net.raw(images), targets, weights).mean()

        def validate(net: Any, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
            raw = net.raw(unit_scale(batch["image"]))
            values = {"loss": _losses(net, raw, net.standardised(batch["target"]), weights)}
            # Processes gather one number per case and name.
            for k, (z, y) in enumerate(zip(net.outputs(raw).T, batch["target"].T, strict=True)):
                values |= {f"output_{k}": z.contiguous(), f"target_{k}": y.contiguous()}
            return values

        is_probability = self.network.output == "probability"
        return Recipe(
            kind="classifier",
            network=network,
            config=self.network,
            loss=loss,
            validate=validate,
            summary=_classifier_summary if is_probability else _regression_summary,
            collate=collate,
            monitor="auroc" if is_probability else "loss",
            mode="max" if is_probability else "min",
        )


def _evaluate_classifier(
    settings: _ClassifierTraining, weights: Path | str, cases: tuple[TaskDataset, ...]
) -> dict[str, Any]:
    network: Classifier = TASKS.load(weights)
    network.to("cuda" if torch.cuda.is_available() else "cpu")
    attack = settings.attack if settings.attack.radius > 0 else AttackConfig()
    record: dict[str, Any] = {"schema": SCHEMA, "weights": str(weights), "parts": {}}
    for name, part in zip(("tune", "judge"), cases[1:], strict=True):
        if len(part) == 0:
            continue
        subset = LabelledSubset(part.source, part.targets)
        if network.config.output == "probability":
            record["attack"] = asdict(attack)
            record["parts"][name] = _classifier_metrics(network, subset, attack)
        else:
            record["parts"][name] = _regression_metrics(network, subset)
    return record


def _losses(net: Classifier, raw: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    if net.config.output != "probability":
        return functional.smooth_l1_loss(raw.float(), targets, reduction="none").mean(1)
    losses = functional.binary_cross_entropy_with_logits(raw.float(), targets, reduction="none")
    absent, present = weights.to(raw.device).T
    weighted: Tensor = losses * (absent + (present - absent) * targets)
    return weighted.mean(1)


def _classifier_summary(values: Mapping[str, Tensor]) -> dict[str, float]:
    tasks = sum(name.startswith("output_") for name in values)
    z, y = (
        [values[f"{name}_{k}"].double().cpu().numpy() for k in range(tasks)]
        for name in ("output", "target")
    )
    # The cases of a trial may have one class only.
    areas = [
        _metrics.auroc(*pair) if 0 < pair[1].mean() < 1 else np.nan
        for pair in zip(z, y, strict=True)
    ]
    return {"loss": float(values["loss"].double().mean()), "auroc": float(np.mean(areas))}


def _regression_summary(values: Mapping[str, Tensor]) -> dict[str, float]:
    tasks = sum(name.startswith("output_") for name in values)
    errors = [(values[f"output_{k}"] - values[f"target_{k}"]).abs() for k in range(tasks)]
    return mean_summary({"loss": values["loss"], "error": torch.stack(errors).mean(0)})


def _standardise(network: Classifier, targets: NDArray[np.floating]) -> None:
    spread = targets.std(axis=0)
    if (spread == 0).any():
        raise InputError("all training targets of a task are equal", code="value.invalid")
    if network.config.output == "positive" and targets.min() < 0:
        text = f"targets of output = 'positive' must be >= 0, got {targets.min():g}"
        raise InputError(text, code="value.invalid")
    network.shift.copy_(torch.as_tensor(targets.mean(axis=0)))
    network.spread.copy_(torch.as_tensor(spread))


NETWORK = NetworkKind(
    ClassifierConfig, Classifier, _ClassifierTraining, ClassifierMethod, PRESETS,
    evaluate=_evaluate_classifier, table=_table,
)  # fmt: skip
