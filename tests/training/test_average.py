"""The running mean of weights, the rise of the rate, and the number of epochs that fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from bits import same_bits
from raising import refused
from taskuq._config import read_toml
from taskuq.training._checkpoints import Checkpoint, _load_state, _read_log
from taskuq.training._config import Recipe, TrainingConfig
from taskuq.training._fit import TrainerOptions, _fit
from taskuq.training._module import TrainingModule
from taskuq.training._weights import read_tensors

CPU = TrainerOptions(accelerator="cpu", progress=False)
CONFIG = TrainingConfig(epochs=4, batch=4, learning_rate=0.1, average=0.6)


class Points:
    def __len__(self):
        return 12

    def __getitem__(self, place):
        return {"x": torch.tensor([float(place[1])])}


def falling(told=None):
    """A weight that falls for ever; ``told`` collects what the loss and the judge see."""
    told = [] if told is None else told

    def loss(net, batch, generator):
        told.append(("step", net.weight.item(), batch["progress"]))
        return net.weight.mean()

    def validate(net, batch, generator):
        told.append(("judge", net.weight.item(), None))
        return {"loss": net(batch["x"])[:, 0]}

    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 1.0)
    return Recipe("line", net, CONFIG, loss, validate)


def seen(told, what):
    return [(value, progress) for name, value, progress in told if name == what]


def test_the_mean_of_the_weights_is_judged_and_kept(tmp_path):
    told = []
    _fit(falling(told), Points(), Points(), CONFIG, tmp_path, machine=CPU)
    weights = [value for value, _ in seen(told, "step")]
    weights.append(weights[-1] + (weights[-1] - weights[-2]))  # Adam's steps are alike here
    mean = weights[0]
    for step, weight in enumerate(weights[1:], start=1):
        decay = min(0.6, (1 + step) / (10 + step))
        mean = decay * mean + (1 - decay) * weight
    last = read_tensors(tmp_path / "last.safetensors")["weight"].item()
    assert last == pytest.approx(mean, rel=1e-4)
    assert last == pytest.approx(seen(told, "judge")[-1][0], rel=1e-6)
    assert _load_state(tmp_path / "resume.safetensors")["state_dict"][
        "network.weight"
    ].item() == pytest.approx(weights[-1], rel=1e-4)


def test_progress_goes_from_nothing_to_nearly_one(tmp_path):
    told = []
    _fit(falling(told), Points(), Points(), CONFIG, tmp_path, machine=CPU)
    progress = [done for _, done in seen(told, "step")]
    assert progress == pytest.approx([k / 12 for k in range(12)])


def test_a_restart_goes_on_with_the_mean(tmp_path, monkeypatch):
    _fit(falling(), Points(), Points(), CONFIG, tmp_path / "whole", machine=CPU)
    step = TrainingModule.training_step

    def broken(self, batch, index):
        if self.current_epoch == 2:
            raise RuntimeError("a fault in epoch 2")
        return step(self, batch, index)

    monkeypatch.setattr(TrainingModule, "training_step", broken)
    with pytest.raises(RuntimeError, match="a fault in epoch 2"):
        _fit(falling(), Points(), Points(), CONFIG, tmp_path / "parts", machine=CPU)
    monkeypatch.undo()
    _fit(falling(), Points(), Points(), CONFIG, tmp_path / "parts", machine=CPU)
    for name in ("best", "last"):
        files = [tmp_path / run / f"{name}.safetensors" for run in ("whole", "parts")]
        one, two = (read_tensors(path)["weight"] for path in files)
        assert same_bits(one, two)


def test_the_rate_rises_in_the_first_steps(tmp_path):
    told = []
    config = replace(CONFIG, average=0.0, warmup=4)
    _fit(falling(told), Points(), Points(), config, tmp_path, machine=CPU)
    weights = torch.tensor([value for value, _ in seen(told, "step")])
    # Adam's step is as large as the rate while the gradient stays what it is.
    assert torch.allclose(-weights.diff()[:6], 0.1 * torch.tensor([0.25, 0.5, 0.75, 1, 1, 1]))


@pytest.mark.parametrize("fitting", [2, 3])
def test_what_does_not_fit_into_the_minutes_is_not_begun(tmp_path, monkeypatch, fitting):
    monkeypatch.setattr(Checkpoint, "_fitting", lambda self, trainer, most: fitting)
    config = replace(CONFIG, minutes=1.0, schedule="cosine", decay=0.5)
    recipe, points = falling(), Points()
    _fit(recipe, points, points, config, tmp_path, machine=CPU)
    assert len(_read_log(tmp_path / "metrics.csv")) == fitting
    monkeypatch.undo()
    _fit(falling(), points, points, config, tmp_path, machine=CPU)  # it is over, and stays so
    assert len(_read_log(tmp_path / "metrics.csv")) == fitting
    assert read_toml(tmp_path / "last.toml")["reached"]["epoch"] == fitting - 1


def test_minutes_are_counted_from_the_second_epoch(tmp_path, monkeypatch):
    """Epochs that take no time at all fit into any minute."""
    _fit(falling(), Points(), Points(), replace(CONFIG, minutes=5.0), tmp_path / "a", machine=CPU)
    assert len(_read_log(tmp_path / "a" / "metrics.csv")) == 4
    _fit(falling(), Points(), Points(), replace(CONFIG, minutes=1e-9), tmp_path / "b", machine=CPU)
    assert len(_read_log(tmp_path / "b" / "metrics.csv")) == 2


def test_epochs_are_foreseen_again_until_half_of_them_are_done(tmp_path, monkeypatch):
    """A machine that becomes quick lets more epochs fit, one that becomes slow fewer."""
    clock = Clock(monkeypatch)
    clock.seconds = [20] * 3 + [5] * 97
    config = replace(CONFIG, epochs=100, minutes=4.0)
    _fit(falling(), Points(), Points(), config, tmp_path / "a", machine=CPU)
    # 4 minutes are 12 epochs of 20 s, or 3 of them and 36 of 5 s.
    assert len(_read_log(tmp_path / "a" / "metrics.csv")) == 39
    clock.seconds = [5] * 3 + [20] * 97
    _fit(falling(), Points(), Points(), config, tmp_path / "b", machine=CPU)
    assert len(_read_log(tmp_path / "b" / "metrics.csv")) == 14


def test_minutes_of_all_starts_count(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    clock.seconds, config = [20] * 100, replace(CONFIG, epochs=100, minutes=4.0)
    step = TrainingModule.training_step

    def broken(self, batch, index):
        if self.current_epoch == 4:
            raise RuntimeError("a fault in epoch 4")
        return step(self, batch, index)

    monkeypatch.setattr(TrainingModule, "training_step", broken)
    with pytest.raises(RuntimeError, match="a fault in epoch 4"):
        _fit(falling(), Points(), Points(), config, tmp_path, machine=CPU)
    monkeypatch.setattr(TrainingModule, "training_step", step)
    _fit(falling(), Points(), Points(), config, tmp_path, machine=CPU)
    assert len(_read_log(tmp_path / "metrics.csv")) == 12


class Clock:
    """A clock of which every epoch takes as long as it is told to."""

    def __init__(self, monkeypatch):
        self.seconds, self.now = [], 0.0
        monkeypatch.setattr("taskuq.training._checkpoints.time.monotonic", lambda: self.now)
        validated = TrainingModule.on_validation_epoch_end

        def later(module):
            if not module.trainer.sanity_checking:
                self.now += self.seconds[module.current_epoch]
            return validated(module)

        monkeypatch.setattr(TrainingModule, "on_validation_epoch_end", later)


@pytest.mark.parametrize("wrong", [{"average": 1.0}, {"warmup": -1}, {"minutes": -0.5}])
def test_what_is_no_setting_is_refused(wrong):
    with refused("value.invalid", next(iter(wrong))):
        TrainingConfig(**wrong)
