"""Trainings: restarts to the bit, trials, dry runs, timing, schedules, EMA, warm-up."""

import json
import shutil
import signal
import struct
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bits import same_bits
from raising import refused
from taskuq._config import read_toml
from taskuq.cli.app import main
from taskuq.errors import MachineError
from taskuq.recover._methods import RECOVERIES, open_recovery
from taskuq.training._checkpoints import SafetensorsIO, _load_state, _read_log
from taskuq.training._config import Recipe, TrainingConfig
from taskuq.training._determinism import EpochSampler, seeded
from taskuq.training._fit import TrainerOptions, _fit, estimate_training, train_config
from taskuq.training._module import TrainingModule, read_timing
from taskuq.training._weights import read_tensors

CPU = TrainerOptions(accelerator="cpu", progress=False)


def same_weights(first: Path, second: Path) -> bool:
    a, b = read_tensors(first), read_tensors(second)
    return a.keys() == b.keys() and all(same_bits(a[name], b[name]) for name in a)


def same_runs(tmp_path, *names):
    files = [f"{name}.safetensors" for name in names]
    return all(same_weights(tmp_path / "whole" / file, tmp_path / "parts" / file) for file in files)


class StopError(Exception):
    pass


@contextmanager
def stopped_in(epoch):
    whole = TrainingModule.training_step

    def broken(self, batch, index):
        if self.current_epoch == epoch and index == 1:
            raise StopError
        return whole(self, batch, index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingModule, "training_step", broken)
        with pytest.raises(StopError):
            yield


def train_in_parts(kind, config, folder, epoch):
    with stopped_in(epoch):
        train_config(kind, config, folder, machine=CPU)
    has_state = (folder / "resume.safetensors").exists()
    train_config(kind, config, folder, machine=CPU)
    return has_state


def test_restart_is_bit_exact(tmp_path, configure):
    config = configure("varnet-any", epochs=3)
    train_config("varnet", config, tmp_path / "whole", machine=CPU)
    assert train_in_parts("varnet", config, tmp_path / "parts", epoch=2)
    assert same_runs(tmp_path, "best", "last")
    curves = [_read_log(tmp_path / run / "metrics.csv") for run in ("whole", "parts")]
    for whole, parts in zip(*curves, strict=True):
        assert {**whole, "seconds": 0} == {**parts, "seconds": 0}
    shown = scalars(tmp_path / "parts" / "tensorboard")
    losses = [row["validation_loss"] for row in curves[1]]
    assert [shown["validation_loss", k] for k in range(3)] == pytest.approx(losses)
    reached = read_toml(tmp_path / "parts" / "best.toml")["reached"]
    assert reached["loss"] == pytest.approx(min(losses), abs=1e-6)
    assert losses[reached["epoch"]] == min(losses)


def scalars(folder):
    """Values in TensorBoard: later files replace epochs of earlier ones."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    found = {}
    for file in sorted(folder.iterdir()):
        data = file.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event = event_pb2.Event.FromString(data[12 : 12 + length])
            found |= {(v.tag, event.step): v.simple_value for v in event.summary.value}
            data = data[16 + length :]
    return found


def test_restart_of_a_pretrained_flow_is_bit_exact(tmp_path, configure):
    config = configure("flow-mean", epochs=3)
    best = train_config("flow", config, tmp_path / "whole", machine=CPU)
    for epoch in (1, 2):  # in the pretraining, and after it
        folder = tmp_path / "parts"
        assert train_in_parts("flow", config, folder, epoch) == (epoch == 2)
        assert same_runs(tmp_path, "pretrain/best", "best", "last")
        assert len(_read_log(folder / "pretrain" / "metrics.csv")) == 2
        shutil.rmtree(folder)
    # The pretrained network stays, and the best weights alone are inflated.
    before, after, last = (
        read_tensors(best.parent / f"{name}.safetensors")
        for name in ("pretrain/best", "best", "last")
    )
    assert all(same_bits(before[name], after[f"unet.{name}"]) for name in before)
    assert not torch.equal(after["widening"], torch.ones_like(after["widening"]))
    assert torch.equal(last["widening"], torch.ones_like(last["widening"]))


def test_restart_of_a_sampler_is_bit_exact(tmp_path, configure):
    config, folder = configure("sampler", epochs=3, cases=12), tmp_path / "parts"
    best = train_config("sampler", config, tmp_path / "whole", machine=CPU)
    for epoch in (1, 2):  # in a fold, and in the sampler
        assert train_in_parts("sampler", config, folder, epoch) == (epoch == 2)
        assert same_runs(tmp_path, "estimate/best", *FOLDS, "best", "last")
        assert len(_read_log(folder / "fold-2-of-2" / "metrics.csv")) == 2
        shutil.rmtree(folder)
    assert not same_weights(*(best.parent / f"{name}.safetensors" for name in FOLDS))
    # A finished training is not repeated where its states were deleted.
    for state in best.parent.rglob("resume.safetensors"):
        state.unlink()
    before = best.stat().st_mtime_ns
    assert train_config("sampler", config, best.parent, machine=CPU) == best
    assert best.stat().st_mtime_ns == before
    assert not list(best.parent.rglob("resume.safetensors"))


FOLDS = "fold-1-of-2/best", "fold-2-of-2/best"


def test_sampler_starts_from_another_with_its_networks(tmp_path, configure):
    config = Path(configure("sampler", epochs=1, cases=12))
    first = train_config("sampler", config, tmp_path / "first", machine=CPU)
    again = tmp_path / "again.toml"
    taken = f'[estimate]\nreuse_from = "{first.parent}"'
    again.write_text(f'init_from = "{first}"\n' + config.read_text().replace("[estimate]", taken))
    best = train_config("sampler", again, tmp_path / "second", machine=CPU)
    assert [path.parent for path in best.parent.rglob("best.safetensors")] == [best.parent]
    assert not same_weights(first, best)
    ours, theirs = (open_recovery(path).estimator.net.state_dict() for path in (best, first))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    for old, new in (("folds = 2", "folds = 3"), ("fraction = 0.25", "fraction = 0.4")):
        again.write_text(again.read_text().replace(old, new))
        with refused("resume.mismatch"):
            train_config("sampler", again, tmp_path / "third", machine=CPU)
    again.write_text(again.read_text().replace(str(first.parent), str(tmp_path / "absent")))
    with refused("file.missing"):
        train_config("sampler", again, tmp_path / "third", machine=CPU)


def test_other_configuration_is_refused(tmp_path, configure):
    train_config("varnet", configure("varnet", epochs=1), tmp_path / "run", machine=CPU)
    with refused("resume.mismatch", "training.epochs: 1 there, 2 here"):
        train_config("varnet", configure("varnet", epochs=2), tmp_path / "run", machine=CPU)
    train_config("varnet", configure("varnet", epochs=2), tmp_path / "run", machine=CPU, fresh=True)
    assert _load_state(tmp_path / "run" / "resume.safetensors")["epoch"] == 1


@pytest.fixture
def sigint():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("written", [True, False])
def test_interrupted_training_names_its_state(
    tmp_path, configure, sigint, monkeypatch, capsys, written
):
    folder, save = tmp_path / "run", SafetensorsIO.save_checkpoint

    def interrupted(self, checkpoint, path, storage_options=None):
        if written or "resume" not in str(path):
            save(self, checkpoint, path)
        if "resume" in str(path):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(SafetensorsIO, "save_checkpoint", interrupted)
    config = configure("varnet", epochs=2)
    with pytest.raises(SystemExit) as stopped:
        main(["train", "varnet", config, "-o", str(folder), "--accelerator", "cpu"])
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert stopped.value.code == 130
    assert str(folder) in last
    assert ("state after 1 epochs" in last) == written
    assert ("training.checkpoint_every" in last) != written
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.fixture
def steps_taken(monkeypatch):
    taken, whole = [], TrainingModule.on_before_zero_grad

    def watched(self, optimiser):
        taken.append(torch.cat([p.detach().flatten().clone() for p in self.network.parameters()]))
        return whole(self, optimiser)

    monkeypatch.setattr(TrainingModule, "on_before_zero_grad", watched)
    return taken


def test_trial_and_dry_run_take_the_first_steps(tmp_path, configure, steps_taken):
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


def test_each_part_of_a_trial_takes_its_steps(tmp_path, configure):
    config, folder = configure("flow-mean", epochs=9), tmp_path / "run"
    train_config("flow", config, folder, machine=CPU, steps=2)
    record = read_timing(folder)
    assert (record["steps"], record["before"]["steps"]) == (2, 2)
    assert record["before"] == read_timing(folder / "pretrain")
    assert (record["kind"], record["before"]["kind"]) == ("flow", "unet")
    assert record["projected_hours"] > record["before"]["projected_hours"] > 0
    assert not estimate_training("flow", config, machine=CPU, steps=1)["before"]["keep_s"]


def test_trial_and_training_do_not_share_a_folder(tmp_path, configure):
    config, folder = configure("varnet", epochs=2), tmp_path / "run"
    train_config("varnet", config, folder, machine=CPU, steps=1)
    best = train_config("varnet", config, folder, machine=CPU, steps=4)  # a trial begins anew
    assert RECOVERIES.load(best).config.cascades == 2
    assert _read_log(folder / "metrics.csv")[-1]["step"] == 4  # 3 steps are an epoch
    assert _load_state(folder / "resume.safetensors")["global_step"] == 4
    for file in ("config.toml", "best.toml", "last.toml"):
        assert read_toml(folder / file)["trial"] == {"steps": 4}
    files = {path.name for path in folder.iterdir()}
    with refused("file.exists", "4 steps"):
        train_config("varnet", config, folder, machine=CPU)
    best = train_config("varnet", config, folder, machine=CPU, fresh=True)
    train_config("varnet", config, tmp_path / "other", machine=CPU)
    assert same_weights(best, tmp_path / "other" / best.name)  # trained twice, equal bits
    assert {path.name for path in (tmp_path / "other").iterdir()} == files
    with refused("file.exists", str(folder)):
        train_config("varnet", config, folder, machine=CPU, steps=1)


def test_trial_validates_on_cases_of_all_data():
    places = [index for _, index in EpochSampler(100, None, most=5)]
    assert places == [0, 24, 49, 74, 99]
    assert len(EpochSampler(3, None, most=5)) == 3


def test_dry_run_prints_and_writes_nothing(tmp_path, configure, monkeypatch, capsys):
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
    for steps in (0, -1):
        with refused("value.invalid"):
            train_config("varnet", config, tmp_path / "run", machine=CPU, steps=steps)
    for wrong in ({"ema": 1.0}, {"warmup_steps": -1}):
        with refused("value.invalid", next(iter(wrong))):
            TrainingConfig(**wrong)
    # Nor does it write the split of a task.
    split = tmp_path / "split"
    split.mkdir()
    images, groups = np.random.default_rng(0).random((8, 32, 32)), [0, 0, 1, 1, 2, 2, 3, 3]
    np.savez(split / "a.npz", images=images, label=[1, 0] * 4, group=groups)
    (split / "config.toml").write_text(
        f"[network.backbone]\nkind = 'small'\nwidth = 4\nblocks = [1]\n[training]\nbatch = 2\n"
        f"[split]\npath = '{split}/split.json'\ntrain = 0.5\ntune = 0.25\n"
        f"[data]\nkind = 'npz'\npath = '{split}/a.npz'\n"
    )
    estimate_training("classifier", split / "config.toml", machine=CPU, steps=1)
    assert sorted(path.name for path in split.iterdir()) == ["a.npz", "config.toml"]


CONFIG = TrainingConfig(epochs=4, batch=4, learning_rate=0.1, ema=0.6)


class Points:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, place):
        epoch, index = place
        return {"x": torch.tensor([float(index)]), "epoch": torch.tensor(epoch)}


def growing():
    with seeded(0):
        net = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 1))

    def loss(net, batch, generator):
        noise = torch.randn(len(batch["x"]), 1, generator=generator)
        return -(net(batch["x"] / 10) + 0.01 * noise).mean()

    def validate(net, batch, generator):
        return {"value": net(batch["x"] / 10)[:, 0]}

    return Recipe("line", net, CONFIG, loss, validate, monitor="value")


def slowed(function, seconds):
    def run(*given):
        time.sleep(seconds)
        return function(*given)

    return run


def test_timing_has_steps_waits_and_hours(monkeypatch):
    config, recipe = TrainingConfig(epochs=10, batch=2, accumulate=3), growing()
    recipe = replace(recipe, loss=slowed(recipe.loss, 0.02), validate=slowed(recipe.validate, 0.05))
    monkeypatch.setattr(Points, "__getitem__", slowed(Points.__getitem__, 0.01))
    record = _fit(recipe, Points(60), Points(10), config, None, machine=CPU, steps=4)
    assert (record["steps"], record["steps_per_epoch"], record["validation_steps"]) == (4, 10, 5)
    assert record["step_s"] > 3 * (0.02 + 2 * 0.01)
    assert record["validation_step_s"] > 0.05
    assert 0 < record["wait_share"] < 1
    least = 10 * (10 * record["step_s"] + 5 * record["validation_step_s"])
    assert least - 1e-9 <= 3600 * record["projected_hours"] < least + record["first_step_s"] + 1e-9
    assert record["peak_host_bytes"] > 1e7


def test_summary_of_all_cases_selects_the_best_epoch(tmp_path):
    largest = replace(growing(), monitor="top", mode="max",
                      summary=lambda values: {"top": float(values["value"].max())})  # fmt: skip
    _fit(largest, Points(10), Points(5), CONFIG, tmp_path, machine=CPU)
    assert read_toml(tmp_path / "best.toml")["reached"]["epoch"] == 3


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_gradients_are_clipped(tmp_path, monkeypatch, precision, fused):
    """A GPU has the fused optimiser, which Lightning does not clip for in mixed precision."""
    adam, norms = torch.optim.Adam, []

    def watched(*weights, **named):
        optimiser = adam(*weights, **(named | {"fused": fused}))
        optimiser.register_step_post_hook(lambda *_: norms.append(gradient_norm(optimiser)))
        return optimiser

    def gradient_norm(optimiser):
        weights = [p for group in optimiser.param_groups for p in group["params"]]
        return torch.cat([p.grad.flatten() for p in weights]).norm().item()

    monkeypatch.setattr(torch.optim, "Adam", watched)
    config = TrainingConfig(epochs=2, batch=4, clip_norm=1e-3, precision=precision)
    _fit(growing(), Points(10), Points(5), config, tmp_path, machine=CPU)
    assert norms == pytest.approx(6 * [1e-3], rel=1e-2)


@pytest.mark.parametrize("schedule", ["constant", "step", "cosine"])
def test_schedules_end_at_their_rates(tmp_path, schedule):
    config = TrainingConfig(
        epochs=4, batch=4, learning_rate=0.1, schedule=schedule, lr_decay=0.5, lr_decay_epochs=2
    )
    _fit(growing(), Points(8), Points(4), config, tmp_path, machine=CPU)
    rates = [row["learning_rate"] for row in _read_log(tmp_path / "metrics.csv")]
    first = {"constant": 0.1, "step": 0.1, "cosine": 0.05 + 0.05 * (1 + 2**0.5 / 2) / 2}
    last = {"constant": 0.1, "step": 0.025, "cosine": 0.05}
    assert rates[0] == pytest.approx(first[schedule])
    assert rates[-1] == pytest.approx(last[schedule])


def test_out_of_memory_is_a_machine_error(tmp_path):
    def out_of_memory(net, batch, generator):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nSee more")

    recipe = replace(growing(), loss=out_of_memory)
    with pytest.raises(MachineError, match=r"20\.00 GiB.*training\.batch"):
        _fit(recipe, Points(10), Points(5), CONFIG, tmp_path, machine=CPU)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("devices", [1, 2])
def test_missing_device_is_refused(tmp_path, devices):
    machine = TrainerOptions("gpu", devices, progress=False)
    with refused("dependency.missing", f"{devices} × gpu"):
        _fit(growing(), Points(10), Points(5), CONFIG, tmp_path / "run", machine=machine)
    assert not (tmp_path / "run").exists()


def falling(log=None):
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
    _fit(falling(log), Points(12), Points(12), CONFIG, tmp_path, machine=CPU)
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
    state = _load_state(tmp_path / "resume.safetensors")["current_model_state"]
    assert state["network.weight"].item() == pytest.approx(weights[-1], rel=1e-4)


def test_warmup_raises_the_rate(tmp_path):
    log = []
    config = replace(CONFIG, ema=0.0, warmup_steps=4)
    _fit(falling(log), Points(12), Points(12), config, tmp_path, machine=CPU)
    weights = torch.tensor([value for value, _ in seen(log, "step")])
    # Adam's step is as large as the rate while the gradient stays what it is.
    assert torch.allclose(-weights.diff()[:6], 0.1 * torch.tensor([0.25, 0.5, 0.75, 1, 1, 1]))
