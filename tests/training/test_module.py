"""EMA of weights, warm-up and progress."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from raising import refused
from taskuq.training._checkpoints import _load_state
from taskuq.training._config import Recipe, TrainingConfig
from taskuq.training._fit import TrainerOptions, _fit
from taskuq.training._weights import read_tensors

CPU = TrainerOptions(accelerator="cpu", progress=False)
CONFIG = TrainingConfig(epochs=4, batch=4, learning_rate=0.1, ema=0.6)


class Points:
    def __len__(self):
        return 12

    def __getitem__(self, place):
        return {"x": torch.tensor([float(place[1])])}


def falling(log=None):
    """A weight that falls in every step; ``log`` collects its values."""
    log = [] if log is None else log

    def loss(net, batch, generator):
        log.append(("step", net.weight.item(), batch["progress"]))
        return net.weight.mean()

    def validate(net, batch, generator):
        log.append(("validate", net.weight.item(), None))
        return {"loss": net(batch["x"])[:, 0]}

    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 1.0)
    return Recipe("line", net, CONFIG, loss, validate)


def seen(log, what):
    return [(value, progress) for name, value, progress in log if name == what]


def test_ema_of_weights_is_validated_and_saved(tmp_path):
    log = []
    _fit(falling(log), Points(), Points(), CONFIG, tmp_path, machine=CPU)
    weights = [value for value, _ in seen(log, "step")]
    weights.append(weights[-1] + (weights[-1] - weights[-2]))  # Adam's steps are alike here
    mean = weights[0]
    for step, weight in enumerate(weights[1:], start=1):
        decay = min(0.6, (1 + step) / (10 + step))
        mean = decay * mean + (1 - decay) * weight
    assert [done for _, done in seen(log, "step")] == pytest.approx([k / 12 for k in range(12)])
    last = read_tensors(tmp_path / "last.safetensors")["weight"].item()
    assert last == pytest.approx(mean, rel=1e-4)
    assert last == pytest.approx(seen(log, "validate")[-1][0], rel=1e-6)
    assert _load_state(tmp_path / "resume.safetensors")["state_dict"][
        "network.weight"
    ].item() == pytest.approx(weights[-1], rel=1e-4)


def test_warmup_raises_the_rate(tmp_path):
    log = []
    config = replace(CONFIG, ema=0.0, warmup_steps=4)
    _fit(falling(log), Points(), Points(), config, tmp_path, machine=CPU)
    weights = torch.tensor([value for value, _ in seen(log, "step")])
    # Adam's step is as large as the rate while the gradient stays what it is.
    assert torch.allclose(-weights.diff()[:6], 0.1 * torch.tensor([0.25, 0.5, 0.75, 1, 1, 1]))


@pytest.mark.parametrize("wrong", [{"ema": 1.0}, {"warmup_steps": -1}])
def test_wrong_settings_are_refused(wrong):
    with refused("value.invalid", next(iter(wrong))):
        TrainingConfig(**wrong)
