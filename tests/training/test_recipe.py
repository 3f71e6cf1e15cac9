"""Any network trains: the engine knows nothing about images."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from bits import same_bits
from raising import refused
from taskuq._config import read_toml
from taskuq.errors import MachineError
from taskuq.training._config import Recipe, TrainingConfig
from taskuq.training._determinism import EpochSampler, seeded
from taskuq.training._fit import TrainerOptions, _fit
from taskuq.training._module import TrainingModule
from taskuq.training._weights import read_tensors

CPU = TrainerOptions(accelerator="cpu", progress=False)
CONFIG = TrainingConfig(epochs=4, batch=4, learning_rate=0.1)


class Points:
    """Cases that are numbers; each knows the epoch in which it was asked for."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, place):
        epoch, index = place
        return {"x": torch.tensor([float(index)]), "epoch": torch.tensor(epoch)}


def growing(seen=None):
    """A network whose monitored value gets worse with every step, with dropout on the way."""
    with seeded(0):
        net = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 1))

    def loss(net, batch, generator):
        noise = torch.randn(len(batch["x"]), 1, generator=generator)
        return -(net(batch["x"] / 10) + 0.01 * noise).mean()

    def validate(net, batch, generator):
        if seen is not None:
            seen.extend(batch["x"][:, 0].tolist())
        return {"value": net(batch["x"] / 10)[:, 0]}

    return Recipe("line", net, CONFIG, loss, validate, monitor="value")


def test_a_restart_keeps_the_best_weights_of_before_and_the_bits_of_dropout(tmp_path, monkeypatch):
    _fit(growing(), Points(10), Points(5), CONFIG, tmp_path / "whole", machine=CPU)
    whole_step = TrainingModule.training_step

    def broken(self, batch, index):
        if self.current_epoch == 2:
            raise RuntimeError("a fault in epoch 2")
        return whole_step(self, batch, index)

    monkeypatch.setattr(TrainingModule, "training_step", broken)
    with pytest.raises(RuntimeError, match="a fault in epoch 2"):
        _fit(growing(), Points(10), Points(5), CONFIG, tmp_path / "parts", machine=CPU)
    monkeypatch.undo()
    _fit(growing(), Points(10), Points(5), CONFIG, tmp_path / "parts", machine=CPU)
    assert read_toml(tmp_path / "parts" / "best.toml")["reached"]["epoch"] == 0
    for name in ("best", "last"):
        one, two = (
            read_tensors(tmp_path / run / f"{name}.safetensors") for run in ("whole", "parts")
        )
        assert all(same_bits(one[key], two[key]) for key in one)


def test_every_validation_case_is_judged_once_in_each_epoch(tmp_path):
    seen = []
    _fit(growing(seen), Points(10), Points(5), CONFIG, tmp_path, machine=CPU)
    assert sorted(seen) == sorted(4 * [0.0, 1.0, 2.0, 3.0, 4.0])


def test_a_summary_of_all_cases_decides(tmp_path):
    recipe = growing()
    largest = Recipe(
        "line", recipe.network, CONFIG, recipe.loss, recipe.validate, monitor="top", mode="max",
        summary=lambda values: {"top": float(values["value"].max())},
    )  # fmt: skip
    best = _fit(largest, Points(10), Points(5), CONFIG, tmp_path, machine=CPU)
    assert read_toml(best.with_suffix(".toml"))["reached"]["epoch"] == 3


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_gradients_are_clipped_in_every_precision_and_by_every_optimiser(
    tmp_path, monkeypatch, precision, fused
):
    """A GPU has the fused optimiser, which Lightning does not clip for in mixed precision."""
    adam, norms = torch.optim.Adam, []

    def watched(*weights, **named):
        optimiser = adam(*weights, **(named | {"fused": fused}))
        optimiser.register_step_post_hook(lambda *_: norms.append(_gradient_norm(optimiser)))
        return optimiser

    monkeypatch.setattr(torch.optim, "Adam", watched)
    config = TrainingConfig(epochs=2, batch=4, clip=1e-3, precision=precision)
    _fit(growing(), Points(10), Points(5), config, tmp_path, machine=CPU)
    assert norms == pytest.approx(6 * [1e-3], rel=1e-2)


def _gradient_norm(optimiser):
    weights = [p for group in optimiser.param_groups for p in group["params"]]
    return torch.cat([p.grad.flatten() for p in weights]).norm().item()


@pytest.mark.parametrize("schedule", ["constant", "step", "cosine"])
def test_schedules_end_where_they_say(tmp_path, schedule):
    from taskuq.training._checkpoints import _read_log

    config = TrainingConfig(
        epochs=4, batch=4, learning_rate=0.1, schedule=schedule, decay=0.5, decay_epochs=2
    )
    _fit(growing(), Points(8), Points(4), config, tmp_path, machine=CPU)
    rates = [row["learning_rate"] for row in _read_log(tmp_path / "metrics.csv")]
    first = {"constant": 0.1, "step": 0.1, "cosine": 0.05 + 0.05 * (1 + 2**0.5 / 2) / 2}
    last = {"constant": 0.1, "step": 0.025, "cosine": 0.05}
    assert rates[0] == pytest.approx(first[schedule])
    assert rates[-1] == pytest.approx(last[schedule])


def test_an_order_is_a_permutation_that_changes_with_the_epoch():
    order = EpochSampler(50, seed=3)
    orders = []
    for epoch in (0, 1, 0):
        order.set_epoch(epoch)
        orders.append([index for _, index in order])
    assert sorted(orders[0]) == list(range(50))
    assert orders[0] == orders[2]
    assert orders[0] != orders[1]


def test_a_part_without_cases_is_refused(tmp_path):
    with refused("units.few"):
        _fit(growing(), Points(0), Points(5), CONFIG, tmp_path, machine=CPU)


def out_of_memory(net, batch, generator):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nSee more")


def test_too_little_memory_is_the_machines_and_says_what_to_do(tmp_path):
    recipe = replace(growing(), loss=out_of_memory)
    with pytest.raises(MachineError, match=r"20\.00 GiB.*; give a smaller training\.batch"):
        _fit(recipe, Points(10), Points(5), CONFIG, tmp_path, machine=CPU)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("devices", [1, 2])
def test_a_device_that_is_not_there_is_refused_in_a_sentence(tmp_path, devices):
    machine = TrainerOptions("gpu", devices, progress=False)
    with refused("dependency.missing", f"{devices} × gpu"):
        _fit(growing(), Points(10), Points(5), CONFIG, tmp_path / "run", machine=machine)
    assert not (tmp_path / "run").exists()
