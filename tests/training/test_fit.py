"""A training that is stopped and started again ends with the same bits as one that is not."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from bits import same_bits
from raising import refused
from taskuq._config import read_toml
from taskuq.cli.app import main
from taskuq.errors import InputError, MachineError
from taskuq.recover._methods import RECOVERIES, open_recovery
from taskuq.training import _module as timing_module
from taskuq.training._checkpoints import SafetensorsIO, _load_state, _read_log
from taskuq.training._config import Recipe, TrainingConfig
from taskuq.training._determinism import EpochSampler, seeded
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
SCRIPT = """
import sys
from pathlib import Path
from taskuq.cli.run import train_command
if __name__ == "__main__":
    train = train_command("{kind}")
    train(Path(sys.argv[1]), output=Path(sys.argv[2]), devices=int(sys.argv[3]),
          accelerator="cpu", progress=False, **{options})
"""


def same_weights(first: Path, second: Path) -> bool:
    a, b = read_tensors(first), read_tensors(second)
    return a.keys() == b.keys() and all(same_bits(a[name], b[name]) for name in a)


def command(tmp_path, kind, config, folder, devices=1, **options):
    script = tmp_path / f"train_{kind}.py"
    script.write_text(SCRIPT.format(kind=kind, options=options))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, str(script), config, str(folder), str(devices)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


@pytest.mark.parametrize("network", ["flow", "varnet", "varnet-any"])
def test_a_restart_is_bit_exact(tmp_path, configure, network, monkeypatch):
    config, kind = configure(network, epochs=4), network.partition("-")[0]
    train_config(kind, config, tmp_path / "whole", machine=CPU)
    stop_after(monkeypatch, epochs=2)
    with pytest.raises(StopError):
        train_config(kind, config, tmp_path / "parts", machine=CPU)
    assert _load_state(tmp_path / "parts" / "resume.safetensors")["epoch"] == 1
    monkeypatch.undo()
    train_config(kind, config, tmp_path / "parts", machine=CPU)
    for name in ("best.safetensors", "last.safetensors"):
        assert same_weights(tmp_path / "whole" / name, tmp_path / "parts" / name)
    curves = [_read_log(tmp_path / run / "metrics.csv") for run in ("whole", "parts")]
    for whole, parts in zip(*curves, strict=True):
        assert {**whole, "seconds": 0} == {**parts, "seconds": 0}
    shown = scalars(tmp_path / "parts" / "tensorboard")
    assert [shown["validation_loss", k] for k in range(4)] == pytest.approx(
        [row["validation_loss"] for row in curves[1]]
    )


@pytest.mark.parametrize("epoch", [1, 3])  # while the U-Net is trained before, and after that
def test_a_restart_of_a_training_in_two_parts_is_bit_exact(tmp_path, configure, monkeypatch, epoch):
    config = configure("flow-mean", epochs=4)
    train_config("flow", config, tmp_path / "whole", machine=CPU)
    stop_after(monkeypatch, epochs=epoch)
    with pytest.raises(StopError):
        train_config("flow", config, tmp_path / "parts", machine=CPU)
    has_begun = (tmp_path / "parts" / "resume.safetensors").exists()
    assert has_begun == (epoch == 3)
    monkeypatch.undo()
    train_config("flow", config, tmp_path / "parts", machine=CPU)
    for name in ("pretrain/best.safetensors", "best.safetensors", "last.safetensors"):
        assert same_weights(tmp_path / "whole" / name, tmp_path / "parts" / name)
    assert len(_read_log(tmp_path / "parts" / "pretrain" / "metrics.csv")) == 2


# While a fold's network is trained, and while the sampler is.
@pytest.mark.parametrize("epoch", [1, 2])
def test_a_restart_of_a_training_in_stages_is_bit_exact(tmp_path, configure, monkeypatch, epoch):
    config = configure("sampler", epochs=3, cases=12)
    train_config("sampler", config, tmp_path / "whole", machine=CPU)
    stop_after(monkeypatch, epochs=epoch)
    with pytest.raises(StopError):
        train_config("sampler", config, tmp_path / "parts", machine=CPU)
    has_begun = (tmp_path / "parts" / "resume.safetensors").exists()
    assert has_begun == (epoch == 2)
    monkeypatch.undo()
    train_config("sampler", config, tmp_path / "parts", machine=CPU)
    for name in ("estimate/best", "fold-1-of-2/best", "fold-2-of-2/best", "best", "last"):
        one, two = (tmp_path / run / f"{name}.safetensors" for run in ("whole", "parts"))
        assert same_weights(one, two)
    assert not same_weights(
        *(tmp_path / "whole" / f"fold-{k}-of-2/best.safetensors" for k in (1, 2))
    )
    assert len(_read_log(tmp_path / "parts" / "fold-2-of-2" / "metrics.csv")) == 2


def test_a_sampler_around_a_network_that_is_there_trains_no_other(tmp_path, configure):
    best = train_config(
        "sampler", configure("sampler-any", epochs=1), tmp_path / "run", machine=CPU
    )
    assert [path.name for path in best.parent.rglob("best.safetensors")] == ["best.safetensors"]


def test_a_sampler_goes_on_from_another_with_its_networks_and_trains_none(tmp_path, configure):
    config = Path(configure("sampler", epochs=1, cases=12))
    first = train_config("sampler", config, tmp_path / "first", machine=CPU)
    again = tmp_path / "again.toml"
    taken = f'[estimate]\nfolder = "{first.parent}"'
    again.write_text(f'start = "{first}"\n' + config.read_text().replace("[estimate]", taken))
    best = train_config("sampler", again, tmp_path / "second", machine=CPU)
    assert [path.parent for path in best.parent.rglob("best.safetensors")] == [best.parent]
    assert not same_weights(first, best)
    ours, theirs = (open_recovery(path).estimator.net.state_dict() for path in (best, first))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    for old, new in (("folds = 2", "folds = 3"), ("validation = 0.25", "validation = 0.4")):
        again.write_text(again.read_text().replace(old, new))
        with pytest.raises(InputError, match=r"holds another training.* there, .* here"):
            train_config("sampler", again, tmp_path / "third", machine=CPU)


def test_networks_of_a_training_that_never_came_to_its_sampler_are_not_taken(tmp_path, configure):
    config = Path(configure("sampler", epochs=1, cases=12))
    taken = f'[estimate]\nfolder = "{tmp_path / "absent"}"'
    config.write_text(config.read_text().replace("[estimate]", taken))
    with refused("file.missing"):
        train_config("sampler", config, tmp_path / "run", machine=CPU)


def test_a_sampler_can_be_as_loud_as_its_validation_patients_ask_for(tmp_path, configure):
    best = train_config("sampler", configure("sampler", epochs=1, cases=12), tmp_path, machine=CPU)
    loudness = read_toml(best.with_suffix(".toml"))["loudness"]
    assert len(loudness) == 7
    assert open_recovery(best, widened=True).noise_scale == loudness
    assert open_recovery(best).noise_scale is None


def test_a_dry_run_of_a_training_in_stages_foresees_all_of_them(configure):
    record = estimate_training("sampler", configure("sampler", cases=12), machine=CPU, steps=1)
    kinds, hours = [], []
    while record is not None:
        kinds.append(record["kind"])
        hours.append(record["projected_hours"])
        record = record["before"]
    assert kinds == ["sampler", "varnet", "varnet", "varnet"]
    assert sorted(hours, reverse=True) == hours


def test_the_part_trained_before_is_left_alone_and_the_best_weights_are_widened(
    tmp_path, configure
):
    best = train_config("flow", configure("flow-mean", epochs=2), tmp_path / "run", machine=CPU)
    before, after = (
        read_tensors(tmp_path / "run" / name) for name in ("pretrain/best.safetensors", best.name)
    )
    assert all(same_bits(before[name], after[f"unet.{name}"]) for name in before)
    assert not torch.equal(after["widening"], torch.ones_like(after["widening"]))
    last = read_tensors(tmp_path / "run" / "last.safetensors")
    assert torch.equal(last["widening"], torch.ones_like(last["widening"]))
    again = train_config("flow", configure("flow-mean", epochs=2), tmp_path / "run", machine=CPU)
    assert all(same_bits(after[name], tensor) for name, tensor in read_tensors(again).items())


def test_without_a_mean_the_part_trained_before_goes_on_learning(tmp_path, configure):
    best = train_config("flow", configure("flow-before", epochs=2), tmp_path / "run", machine=CPU)
    before, after = (
        read_tensors(tmp_path / "run" / name) for name in ("pretrain/best.safetensors", best.name)
    )
    kept = [name for name in before if same_bits(before[name], after[f"unet.{name}"])]
    # What the U-Net says is needed before alone; its features go on.
    assert kept == [name for name in before if name.startswith("up_conv.1.1.")] != []
    assert "widening" not in after
    losses = [row["training_loss"] for row in _read_log(tmp_path / "run/pretrain/metrics.csv")]
    assert losses[1] < losses[0]


def scalars(folder):
    """What TensorBoard would show: later files replace what earlier ones say of an epoch."""
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


def stop_after(monkeypatch, epochs):
    """Break off in the middle of an epoch, as a fault would."""
    from taskuq.training._module import TrainingModule

    whole = TrainingModule.training_step

    def broken(self, batch, index):
        if self.current_epoch == epochs and index == 1:
            raise StopError
        return whole(self, batch, index)

    monkeypatch.setattr(TrainingModule, "training_step", broken)


class StopError(Exception):
    pass


@pytest.fixture
def one_thread():
    """Sums are the same bits only on as many threads as the killed process has."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_killed_for_good_and_started_again(tmp_path, configure, one_thread):
    config = configure("varnet", epochs=12, cases=32)
    train_config("varnet", config, tmp_path / "whole", machine=CPU)
    killed = command(tmp_path, "varnet", config, tmp_path / "killed")
    state, deadline = tmp_path / "killed" / "resume.safetensors", time.monotonic() + 120
    while not state.exists() and killed.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert _load_state(state)["epoch"] < 11, "killed too late to show anything"
    train_config("varnet", config, tmp_path / "killed", machine=CPU)
    assert same_weights(*(tmp_path / run / "last.safetensors" for run in ("whole", "killed")))


def test_devices_share_the_configured_batch(tmp_path, configure):
    config = configure("varnet", epochs=2, batch=8)
    both = command(tmp_path, "varnet", config, tmp_path / "two", devices=2)
    out, err = both.communicate(timeout=200)
    assert both.returncode == 0, err
    assert out.splitlines()[-1] == str(tmp_path / "two" / "best.safetensors")
    train_config("varnet", config, tmp_path / "one", machine=CPU)
    for name in ("epoch", "global_step"):  # 12 cases: two steps in an epoch
        states = [_load_state(tmp_path / run / "resume.safetensors") for run in ("one", "two")]
        assert states[0][name] == states[1][name]
    curves = [_read_log(tmp_path / run / "metrics.csv") for run in ("one", "two")]
    losses = [[row["validation_loss"] for row in curve] for curve in curves]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    assert abs(losses[0][0] - losses[0][1]) > 1e-3, "the steps must matter"


def test_devices_share_a_dry_run_of_a_training_in_stages(tmp_path, configure):
    """Each process has a folder of its own for what is trained first, and one of them writes."""
    config = configure("sampler", cases=12, batch=4)
    both = command(tmp_path, "sampler", config, tmp_path / "two", devices=2, dry_run=True, steps=1)
    out, err = both.communicate(timeout=200)
    assert both.returncode == 0, err
    assert out.count("on 2 × cpu") == 4  # three networks that estimate, and the sampler
    assert not (tmp_path / "two").exists()


def test_another_configuration_is_refused_in_its_folder(tmp_path, configure):
    train_config("varnet", configure("varnet", epochs=1), tmp_path / "run", machine=CPU)
    with refused("resume.mismatch", "training.epochs: 1 there, 2 here"):
        train_config("varnet", configure("varnet", epochs=2), tmp_path / "run", machine=CPU)
    train_config("varnet", configure("varnet", epochs=2), tmp_path / "run", machine=CPU, fresh=True)
    assert _load_state(tmp_path / "run" / "resume.safetensors")["epoch"] == 1


def test_best_weights_are_those_of_the_least_validation_loss(tmp_path, configure):
    from taskuq._config import read_toml

    best = train_config("varnet", configure("varnet", epochs=4), tmp_path / "run", machine=CPU)
    losses = [row["validation_loss"] for row in _read_log(tmp_path / "run" / "metrics.csv")]
    reached = read_toml(best.with_suffix(".toml"))["reached"]
    assert len(losses) == 4
    assert reached["loss"] == pytest.approx(min(losses), abs=1e-6)
    assert losses[reached["epoch"]] == min(losses)


@pytest.mark.parametrize("kind", ["varnet", "sampler"])
def test_a_training_that_has_ended_is_not_done_again_where_its_state_stayed_behind(
    tmp_path, configure, kind
):
    config = configure(kind, epochs=1, cases=12)
    best = train_config(kind, config, tmp_path / "run", machine=CPU)
    for state in (tmp_path / "run").rglob("resume.safetensors"):
        state.unlink()
    before = best.stat().st_mtime_ns
    assert train_config(kind, config, tmp_path / "run", machine=CPU) == best
    assert best.stat().st_mtime_ns == before
    assert not list((tmp_path / "run").rglob("resume.safetensors"))


@pytest.fixture
def sigint():
    """Programs started here can be interrupted, also where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("written", [True, False])
def test_interrupted_training_names_its_state(
    tmp_path, configure, sigint, monkeypatch, capsys, written
):
    """Ctrl-C right after the state's file was written, and before there is one."""
    folder, save = tmp_path / "run", SafetensorsIO.save_checkpoint

    def interrupted(self, checkpoint, path, storage_options=None):
        if written:
            save(self, checkpoint, path)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(SafetensorsIO, "save_checkpoint", interrupted)
    config = configure("varnet", epochs=2)
    with pytest.raises(SystemExit) as stopped:
        main(["train", "varnet", config, "-o", str(folder), "--accelerator", "cpu"])
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert stopped.value.code == 130
    assert str(folder) in last
    assert ("state after 1 epochs" in last) == written
    assert ("training.keep_every" in last) != written
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_training_that_goes_on_says_so_where_it_is_looked_at(tmp_path, configure, capsys):
    config, seen = configure("varnet", epochs=1), TrainerOptions(accelerator="cpu")
    train_config("varnet", config, tmp_path / "run", machine=seen)
    assert "resuming" not in capsys.readouterr().err
    train_config("varnet", config, tmp_path / "run", machine=seen)
    assert "run is trained already; --overwrite trains it again" in capsys.readouterr().err
    (tmp_path / "run" / "finished.json").unlink()
    longer = Path(config).read_text().replace("epochs = 1\n", "epochs = 2\n")
    Path(config).write_text(longer)
    (tmp_path / "run" / "config.toml").unlink()
    train_config("varnet", config, tmp_path / "run", machine=seen)
    assert "run: resuming after 1 epochs" in capsys.readouterr().err


def test_a_warm_up_that_is_longer_than_the_training_is_told(tmp_path, configure, capsys):
    config = configure("varnet", epochs=1, warmup=1000)
    train_config("varnet", config, tmp_path / "run", machine=TrainerOptions(accelerator="cpu"))
    assert "training.warmup is 1000" in capsys.readouterr().err
    (row,) = _read_log(tmp_path / "run" / "metrics.csv")
    assert 0 < row["learning_rate"] <= 0.01 * row["step"] / 1000 < 1e-4  # what the steps had


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
    with pytest.raises(MachineError, match=r"20\.00 GiB.*training\.batch"):
        _fit(recipe, Points(10), Points(5), CONFIG, tmp_path, machine=CPU)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("devices", [1, 2])
def test_a_device_that_is_not_there_is_refused_in_a_sentence(tmp_path, devices):
    machine = TrainerOptions("gpu", devices, progress=False)
    with refused("dependency.missing", f"{devices} × gpu"):
        _fit(growing(), Points(10), Points(5), CONFIG, tmp_path / "run", machine=machine)
    assert not (tmp_path / "run").exists()
