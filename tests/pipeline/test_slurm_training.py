"""A real SLURM trains: killed in between, the same command goes on, to the bits of a local run."""

import os
import subprocess
import threading
import time

import numpy as np
import pytest
import torch

from bits import same_bits
from taskuq.commands.app import main
from taskuq.errors import InputError, MachineError
from taskuq.pipeline import jobs
from taskuq.pipeline.slurm import finish
from taskuq.runs.launch import InJob, Slurm, _Watch
from taskuq.runs.training import train_from
from taskuq.training.fit import Machine
from taskuq.training.log import log_epoch, read_log
from taskuq.training.state import load_state
from taskuq.weights.files import read_tensors

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
CONFIG = """
[network]
cascades = 1
width = 2
pools = 1
sensitivity_width = 2
sensitivity_pools = 1
[training]
epochs = {epochs}
batch = 2
[data]
kind = "npz"
path = "{path}"
coils = 2
validation = 0.25
[measure]
accelerations = [4, 2]
published = false
"""
CPU = Machine("cpu", progress=False)


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A training of many short epochs, by processes of one thread each."""
    images = np.kron(np.random.default_rng(0).random((24, 4, 4)), np.ones((4, 4)))
    np.savez(tmp_path / "a.npz", images=images, label=np.zeros(24), group=np.arange(24))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(jobs, "GRACE", 1.0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def write(epochs):
        path = tmp_path / f"varnet-{epochs}.toml"
        path.write_text(CONFIG.format(epochs=epochs, path=tmp_path / "a.npz"))
        return path

    yield write
    torch.set_num_threads(threads)


def cancelled_after(log, epochs, signal):
    """End the job once some epochs are trained, from a thread of its own."""

    def act():
        while len(read_log(log)) < epochs:
            time.sleep(0.02)
        found = subprocess.run(["squeue", "--noheader", "--format=%A"], capture_output=True)
        subprocess.run(["scancel", *signal, *found.stdout.decode().split()])

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def test_killed_twice_in_between_a_training_ends_with_the_bits_of_a_local_one(
    slurm, config, tmp_path, capsys
):
    path, folder, told = config(30), tmp_path / "jobs", []
    where = Slurm(CPU, ["timeout_min=5"], told.append)
    # SLURM announces the end of a job's time by the first signal.
    ends = (["--signal=USR2"], "it reached its time limit; give more"), ([], "cancelled, .*")
    for epochs, (signal, words) in enumerate(ends, start=1):
        killer = cancelled_after(folder / "metrics.csv", 2 * epochs, signal)
        with pytest.raises(
            MachineError, match=rf"job \d+: {words}.*; start the same command again"
        ):
            where.train("varnet", path, folder)
        killer.join()
    assert load_state(folder / "resume.safetensors")["epoch"] < 29, "killed too late"
    assert "cpus_per_task=1, gpus_per_node=0, timeout_min=5; change that with --slurm" in told[0]
    where.train("varnet", path, folder)
    train_from("varnet", path, tmp_path / "alone", machine=CPU)
    for name in ("best.safetensors", "last.safetensors"):
        a, b = (read_tensors(tmp_path / who / name) for who in ("jobs", "alone"))
        assert all(same_bits(a[key], b[key]) for key in b)
    assert sum("of 30: training loss" in line for line in told) >= 29
    said = capsys.readouterr().err
    assert "sacct" not in said
    assert "submitit" not in said


def test_devices_are_processes_that_share_the_batch(slurm, config, tmp_path):
    path, told = config(2), []
    machine = Machine("cpu", devices=2, progress=False)
    where = Slurm(machine, ["slurm_comment=two"], told.append)
    where.train("varnet", path, tmp_path / "two", steps=3)
    train_from("varnet", path, tmp_path / "one", machine=CPU, steps=3)
    one, two = (read_log(tmp_path / who / "metrics.csv") for who in ("one", "two"))
    assert one[0]["training_loss"] == pytest.approx(two[0]["training_loss"], rel=1e-4)
    assert "tasks_per_node=2" in told[0]


def test_a_gpu_for_each_device_and_four_hours(slurm, config, tmp_path):
    told = []
    where = Slurm(
        Machine(devices=2),
        ["slurm_comment=training", "slurm_dependency=singleton"],
        told.append,
        detach=True,
    )
    assert where.train("varnet", config(1), tmp_path / "run") is None
    known = subprocess.run(["scontrol", "show", "jobs"], capture_output=True, text=True).stdout
    (job,) = [job for job in known.split("\n\n") if "Comment=training" in job]
    number = told[0].split()[1]
    subprocess.run(["scancel", number])
    assert "TimeLimit=04:00:00" in job
    assert "gpu:2" in job


@pytest.mark.parametrize("error", [InputError("too few"), MachineError("the disk is full")])
def test_what_a_person_should_read_leaves_the_job(error):
    def refuse():
        raise error

    assert InJob(refuse, 1)(0) is error
    # Else the other processes would wait for this one.
    with pytest.raises(type(error)):
        InJob(refuse, 2)(0)


def test_the_error_of_one_process_ends_the_others_and_arrives_whole(slurm, config, tmp_path):
    def do():
        if os.environ["SLURM_PROCID"] == "0":
            time.sleep(120)
        raise InputError("case 7 holds NaN; leave it out")

    where = Slurm(Machine("cpu", devices=2, progress=False), ["timeout_min=5"])
    job = where._submitted("varnet", config(1), tmp_path / "run", do)
    start = time.monotonic()
    with pytest.raises(InputError, match=r"job \d+: case 7 holds NaN; leave it out; start"):
        finish([job], lambda place: None)
    assert time.monotonic() - start < 60


def test_a_curve_that_cannot_be_read_for_a_moment_ends_no_job(tmp_path, monkeypatch):
    told, answers = [], iter([MachineError("Stale file handle"), MachineError("Stale file handle")])

    def flaky(path):
        if (error := next(answers, None)) is not None:
            raise error
        return read_log(path)

    look = _Watch(tmp_path, 3, told.append)
    log_epoch(tmp_path / "metrics.csv", {"epoch": 0, "training_loss": 2.0, "seconds": 1.0})
    monkeypatch.setattr("taskuq.runs.launch.read_log", flaky)
    for _ in range(4):
        look()
    assert told == [
        "Stale file handle; the job goes on, and is looked at again",
        "epoch 1 of 3: training loss 2, 1 s",
    ]


def test_without_slurm_a_training_says_so(config, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"jobs cannot be submitted here .* SLURM login node"):
        Slurm(CPU).train("varnet", config(1), tmp_path / "run")


def test_mistakes_show_before_anything_is_submitted(config, tmp_path):
    with pytest.raises(InputError, match="cannot be shared by 3 processes"):
        Slurm(Machine("cpu", devices=3)).train("varnet", config(1), tmp_path / "run")
    with pytest.raises(SystemExit) as ended:
        main(["train", "varnet", str(config(1)), "--slurm", "timeout_min=5"])
    assert ended.value.code == 2
