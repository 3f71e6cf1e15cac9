"""A trial takes the first steps of a training; a dry run takes them too and leaves nothing."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bits import same_bits
from raising import refused
from taskuq._config import read_toml
from taskuq.cli.app import main
from taskuq.recover._methods import RECOVERIES
from taskuq.training import _module as timing_module
from taskuq.training._checkpoints import _load_state, _read_log
from taskuq.training._config import Recipe, TrainingConfig
from taskuq.training._determinism import EpochSampler
from taskuq.training._fit import (
    TrainerOptions,
    _estimate_training_cost,
    _fit,
    estimate_training,
    train_config,
)
from taskuq.training._module import StepTimer, TrainingModule, read_timing
from taskuq.training._weights import read_tensors

CPU = TrainerOptions(accelerator="cpu", progress=False)


@pytest.fixture
def steps_taken(monkeypatch):
    """Weights after each training step, whoever takes it."""
    taken, whole = [], TrainingModule.on_before_zero_grad

    def watched(self, optimiser):
        taken.append(torch.cat([p.detach().flatten().clone() for p in self.network.parameters()]))
        return whole(self, optimiser)

    monkeypatch.setattr(TrainingModule, "on_before_zero_grad", watched)
    return taken


def test_a_trial_and_a_dry_run_take_the_first_steps_of_the_training(
    tmp_path, configure, steps_taken
):
    config = configure("varnet", epochs=2)
    train_config("varnet", config, tmp_path / "whole", machine=CPU)
    whole = steps_taken.copy()
    for take in (
        lambda: train_config("varnet", config, tmp_path / "trial", machine=CPU, steps=5),
        lambda: estimate_training("varnet", config, machine=CPU, steps=5),
    ):
        steps_taken.clear()
        take()
        assert len(steps_taken) == 5
        assert all(same_bits(a, b) for a, b in zip(whole, steps_taken, strict=False))


@pytest.mark.parametrize("steps", [1, 3, 4])  # 3 steps are an epoch
def test_a_trial_leaves_what_a_training_leaves(tmp_path, configure, steps):
    config, folder = configure("varnet", epochs=40), tmp_path / "run"
    best = train_config("varnet", config, folder, machine=CPU, steps=steps)
    train_config("varnet", configure("varnet", epochs=1), tmp_path / "whole", machine=CPU)
    assert {p.name for p in folder.iterdir()} == {p.name for p in (tmp_path / "whole").iterdir()}
    assert RECOVERIES.load(best).config.cascades == 2
    assert _read_log(folder / "metrics.csv")[-1]["step"] == steps
    assert _load_state(folder / "resume.safetensors")["global_step"] == steps
    for file in ("config.toml", "best.toml", "last.toml"):
        assert read_toml(folder / file)["trial"] == {"steps": steps}


def test_each_part_of_a_trial_takes_its_steps(tmp_path, configure):
    config, folder = configure("flow-mean", epochs=9), tmp_path / "run"
    train_config("flow", config, folder, machine=CPU, steps=2)
    record = read_timing(folder)
    assert (record["steps"], record["before"]["steps"]) == (2, 2)
    assert record["before"] == read_timing(folder / "pretrain")
    assert (record["kind"], record["before"]["kind"]) == ("flow", "unet")
    assert record["projected_hours"] > record["before"]["projected_hours"] > 0
    assert not estimate_training("flow", config, machine=CPU, steps=1)["before"]["keep_s"]


def test_no_training_goes_on_from_a_trial_and_no_trial_overwrites_one(tmp_path, configure):
    config, folder = configure("varnet", epochs=1), tmp_path / "run"
    train_config("varnet", config, folder, machine=CPU, steps=1)
    train_config("varnet", config, folder, machine=CPU, steps=2)  # a trial begins anew
    assert _load_state(folder / "resume.safetensors")["global_step"] == 2
    with refused("file.exists", "2 steps"):
        train_config("varnet", config, folder, machine=CPU)
    best = train_config("varnet", config, folder, machine=CPU, fresh=True)
    train_config("varnet", config, tmp_path / "other", machine=CPU)
    there, other = read_tensors(best), read_tensors(tmp_path / "other" / best.name)
    assert all(same_bits(there[name], other[name]) for name in other)
    with refused("file.exists", str(folder)):
        train_config("varnet", config, folder, machine=CPU, steps=1)


class Slow:
    """Cases that take their time to be read."""

    def __init__(self, count, seconds):
        self.count, self.seconds = count, seconds

    def __len__(self):
        return self.count

    def __getitem__(self, place):
        time.sleep(self.seconds)
        return {"x": torch.ones(1)}


def slow_recipe(step, validation):
    net = torch.nn.Linear(1, 1)

    def loss(net, batch, generator):
        time.sleep(step)
        return net(batch["x"]).square().mean()

    def validate(net, batch, generator):
        time.sleep(validation)
        return {"loss": net(batch["x"])[:, 0]}

    return Recipe("line", net, TrainingConfig(), loss, validate)


def test_the_clock_shows_steps_waits_and_hours():
    """Sleeping sets the least that each may take; a busy machine only adds to that."""
    config = TrainingConfig(epochs=10, batch=2, accumulate=3)
    recipe = slow_recipe(0.02, 0.05)
    record = _estimate_training_cost(
        recipe, Slow(60, 0.01), Slow(10, 0.0), config, machine=CPU, steps=4
    )
    assert (record["steps"], record["steps_per_epoch"], record["validation_steps"]) == (4, 10, 5)
    assert record["step_s"] > 3 * (0.02 + 2 * 0.01)
    assert record["validation_step_s"] > 0.05
    assert 0.1 < record["wait_share"] < 1
    least = 10 * (10 * record["step_s"] + 5 * record["validation_step_s"])
    assert least - 1e-9 <= 3600 * record["projected_hours"] < least + record["first_step_s"] + 1e-9
    assert record["peak_host_bytes"] > 1e7


def test_a_batch_that_comes_while_the_gpu_computes_is_not_waited_for(monkeypatch):
    """A step takes a host 1 s and the GPU 10; the loader takes 3 s, then holds until the GPU is."""
    clock, gpu = [0.0], [0.0]
    monkeypatch.setattr(timing_module.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(
        timing_module.torch.cuda, "synchronize", lambda device: clock.append(clock.pop() + gpu[0])
        or gpu.__setitem__(0, 0.0),
    )  # fmt: skip
    timing = StepTimer("line", TrainingConfig(batch=1), validation_steps=1)
    module = SimpleNamespace(device=torch.device("cuda"))
    timing.on_train_epoch_start(SimpleNamespace(global_step=0), module)
    for step in range(60):
        clock[0] += 3.0 + gpu[0]
        gpu[0] = 0.0
        timing.on_train_batch_start(None, module, None, step)
        clock[0] += 1.0
        gpu[0] = 10.0
        timing.on_train_batch_end(SimpleNamespace(global_step=step + 1), module, None, None, step)
    assert timing._waited / timing._trained == pytest.approx(3 / 14)


def test_a_training_knows_its_epochs(tmp_path):
    config = TrainingConfig(epochs=3, batch=2)
    _fit(slow_recipe(0.01, 0.01), Slow(8, 0.0), Slow(4, 0.0), config, tmp_path, machine=CPU)
    record = read_timing(tmp_path)
    assert not record["trial"]
    assert record["epoch_s"] > 4 * 0.01 + 2 * 0.01
    assert 3600 * record["projected_hours"] >= 3 * record["epoch_s"] - 1e-9


def test_a_trial_validates_by_cases_of_all_the_data():
    places = [index for _, index in EpochSampler(100, None, most=5)]
    assert places == [0, 24, 49, 74, 99]
    assert len(EpochSampler(3, None, most=5)) == 3


def test_a_dry_run_prints_and_leaves_nothing(tmp_path, configure, monkeypatch, capsys):
    config = configure("varnet", epochs=2)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    asked = ["train", "varnet", config, "--dry-run", "--accelerator", "cpu", "--no-progress"]
    main([*asked, "--steps", "2"])
    assert "2 epochs of 3 steps and 1 batches of validation: about" in capsys.readouterr().out
    main([*asked, "--json", "-"])
    record = json.loads(capsys.readouterr().out)
    assert (record["schema"], record["steps"]) == ("taskuq.timing/1", 5)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", ["simclr", "classifier"])
def test_a_dry_run_decides_no_split(tmp_path, kind):
    images, labels = np.random.default_rng(0).random((8, 32, 32)), [1, 0] * 4
    np.savez(tmp_path / "a.npz", images=images, label=labels, group=[0, 0, 1, 1, 2, 2, 3, 3])
    config = tmp_path / "config.toml"
    config.write_text(
        f"[network.backbone]\nkind = 'small'\nwidth = 4\nblocks = [1]\n[training]\nbatch = 2\n"
        f"[split]\npath = '{tmp_path}/split.json'\ntrain = 0.5\ntune = 0.25\n"
        f"[data]\nkind = 'npz'\npath = '{tmp_path}/a.npz'\n"
    )
    estimate_training(kind, config, machine=CPU, steps=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "config.toml"]


@pytest.mark.parametrize("steps", [0, -1])
def test_a_trial_of_no_steps_is_refused(tmp_path, configure, steps):
    with refused("value.invalid"):
        train_config("varnet", configure("varnet"), tmp_path / "run", machine=CPU, steps=steps)


def test_a_trial_of_a_classifier_may_meet_one_class_alone(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.array([1, 0] * 16)
    np.savez(tmp_path / "a.npz", images=rng.random((32, 32, 32)), label=labels, group=range(32))
    config = tmp_path / "classifier.toml"
    config.write_text(
        f"[network]\nhidden = [4]\n[network.backbone]\nkind = 'small'\nwidth = 4\n"
        f"blocks = [1]\n[training]\nbatch = 1\n[attack]\nradius = 0.0\n[split]\ntune = 0.25\n"
        f"[data]\nkind = 'npz'\npath = '{tmp_path}/a.npz'"
    )
    train_config("classifier", config, tmp_path / "run", machine=CPU, steps=1)
    assert np.isnan(_read_log(tmp_path / "run" / "metrics.csv")[0]["validation_auroc"])
