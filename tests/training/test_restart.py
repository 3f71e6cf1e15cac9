"""A training that is stopped and started again ends with the same bits as one that is not."""

from __future__ import annotations

import os
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from bits import same_bits
from raising import refused
from taskuq._config import read_toml
from taskuq.errors import InputError
from taskuq.recover._methods import open_recovery
from taskuq.training._checkpoints import _load_state, _read_log
from taskuq.training._fit import TrainerOptions, estimate_training, train_config
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
    ours, theirs = (open_recovery(path).estimating.net.state_dict() for path in (best, first))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    for old, new in (("folds = 2", "folds = 3"), ("validation = 0.25", "validation = 0.4")):
        again.write_text(again.read_text().replace(old, new))
        with pytest.raises(InputError, match=r"holds another training .* there, .* here"):
            train_config("sampler", again, tmp_path / "third", machine=CPU)


def test_networks_of_a_training_that_never_came_to_its_sampler_are_not_taken(tmp_path, configure):
    config = Path(configure("sampler", epochs=1, cases=12))
    taken = f'[estimate]\nfolder = "{tmp_path / "absent"}"'
    config.write_text(config.read_text().replace("[estimate]", taken))
    with pytest.raises(InputError, match="no training has come as far as its sampler"):
        train_config("sampler", config, tmp_path / "run", machine=CPU)


def test_a_sampler_can_be_as_loud_as_its_validation_patients_ask_for(tmp_path, configure):
    best = train_config("sampler", configure("sampler", epochs=1, cases=12), tmp_path, machine=CPU)
    loudness = read_toml(best.with_suffix(".toml"))["loudness"]
    assert len(loudness) == 7
    assert open_recovery(best, widened=True).loudness == loudness
    assert open_recovery(best).loudness is None


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


ENDLESS = 1_000_000


@pytest.fixture
def sigint():
    """Programs started here can be interrupted, also where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("keep_every", [1, ENDLESS])
def test_an_interrupted_training_names_its_state(tmp_path, configure, keep_every, sigint):
    folder = tmp_path / "run"
    config = configure("varnet", epochs=ENDLESS, keep_every=keep_every)
    process = subprocess.Popen(
        [sys.executable, "-m", "taskuq", "train", "varnet", config, "-o", str(folder),
         "--accelerator", "cpu"],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        awaited = folder / ("resume.safetensors" if keep_every == 1 else "metrics.csv")
        while not awaited.exists():
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    last = stderr.strip().splitlines()[-1]
    assert str(folder) in last
    found = re.search(r"state after (\d+) epochs", last)
    if keep_every > 1:
        assert found is None, last
        assert "training.keep_every" in last
        return
    assert found is not None, last
    # The line of an epoch is written before its state.
    assert 0 <= len(_read_log(folder / "metrics.csv")) - int(found[1]) <= 1


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
    assert "the rate rises for 1000 steps (training.warmup)" in capsys.readouterr().err
    (row,) = _read_log(tmp_path / "run" / "metrics.csv")
    assert 0 < row["learning_rate"] <= 0.01 * row["step"] / 1000 < 1e-4  # what the steps had
