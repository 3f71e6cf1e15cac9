"""A real SLURM of one machine, without accounting: what jobs ask for, and what is said of them."""

import os
import subprocess
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
import toy

import taskuq as tq
from raising import refused
from taskuq.errors import MachineError
from taskuq.pipeline import _engines as engines
from taskuq.pipeline._engines import EngineOptions, SlurmOptions
from taskuq.pipeline._pipeline import status

RUN = {"accelerations": toy.ACCELERATIONS, "samples": 4, "seed": 3}
CASES = 12
HERE = os.getpid()

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


def expected():
    pipeline = tq.Pipeline(toy.measure, toy.recover, toy.task)
    return pipeline.run(toy.images(CASES), progress=False, **RUN)


def run(store, recover=toy.recover, **parameters):
    engine = SlurmOptions(jobs=2, parameters=parameters)
    return tq.Pipeline(toy.measure, recover, toy.task).run(
        toy.images(CASES), store=store, engine=engine, **RUN
    )


def same(a, b):
    return np.array_equal(a.outputs, b.outputs) and np.array_equal(a.targets, b.targets)


def stuck_in_jobs(marks, here=HERE):
    """A recovery that finishes two cases of a job and stays in the third."""
    calls = []

    def recover(measurement, *, samples, seed):
        if os.getpid() != here:
            calls.append(seed)
        if len(calls) > 2 * len(toy.ACCELERATIONS):
            (marks / str(os.getpid())).touch()
            time.sleep(120)
        return toy.recover(measurement, samples=samples, seed=seed)

    return recover


@contextmanager
def once_stuck(marks, *command):
    """Let a command have its way with the jobs once both of them are stuck."""

    def act():
        while len(list(marks.iterdir())) < 2:
            time.sleep(0.1)
        subprocess.run([*command, *asked("squeue", "--noheader", "--format=%A").split()])

    marks.mkdir()
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    yield
    thread.join()


def asked(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_job_has_a_gpu_and_four_hours_and_says_so(slurm, tmp_path, capsys):
    table = run(tmp_path / "t")
    said = capsys.readouterr().err
    known = asked("scontrol", "show", "jobs")

    assert same(table, expected())
    assert "2 jobs (" in said
    assert "each with gpus_per_node=1, timeout_min=240; change that" in said
    assert "TimeLimit=04:00:00" in known
    assert "gpu:1" in known
    assert "sacct" not in said
    assert "submitit" not in said


def test_a_time_limit_is_called_one_keeps_what_is_finished_and_is_gone_on_from(
    slurm, tmp_path, capsys
):
    # SLURM announces the end by this signal.
    marks = tmp_path / "marks"
    with (
        pytest.raises(MachineError, match=r"2 of 2 jobs failed, .* reached its time limit; give"),
        once_stuck(marks, "scancel", "--signal=USR2"),
    ):
        run(tmp_path / "t", stuck_in_jobs(marks), gpus_per_node=0, timeout_min=5)

    kept = status(tmp_path / "t")
    # The first case runs here, and two in each job.
    assert (kept["finished"], kept["failed"]) == (5, {})
    printed = capsys.readouterr().err
    assert "each with gpus_per_node=0, timeout_min=5" in printed
    assert "submitit" not in printed
    assert same(run(tmp_path / "t"), expected())


def test_a_cancelled_job_is_noticed_without_accounting(slurm, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(engines, "GRACE", 1.0)
    marks = tmp_path / "marks"
    with (
        pytest.raises(MachineError, match=r"2 of 2 jobs failed, the first \d+_\d: cancelled, "),
        once_stuck(marks, "scancel"),
    ):
        run(tmp_path / "t", stuck_in_jobs(marks))
    said = capsys.readouterr().err

    assert "CANCELLED AT" in said
    assert "submitit" not in said
    assert same(run(tmp_path / "t"), expected())


def test_what_a_job_dies_of_is_said_whole(slurm, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(engines, "GRACE", 1.0)

    def dying(measurement, *, samples, seed, here=HERE):
        if os.getpid() != here:
            os.write(2, b"the first line\nthe card fell off the bus\n")
            os._exit(3)
        return toy.recover(measurement, samples=samples, seed=seed)

    with pytest.raises(MachineError, match=r"jobs failed, the first .* failed"):
        run(tmp_path / "t", dying)
    assert "the first line\nthe card fell off the bus\n" in capsys.readouterr().err


def test_a_refusal_in_a_job_is_the_refusal_of_the_run(slurm, tmp_path):
    def unwilling(measurement, *, samples, seed, here=HERE):
        if os.getpid() != here:
            raise ValueError("this network wants 32 channels")
        return toy.recover(measurement, samples=samples, seed=seed)

    pipeline = tq.Pipeline(toy.measure, unwilling, toy.task)
    with refused("component.invalid", "wants 32 channels", "at R = 8"):
        pipeline.run(
            toy.images(60), store=tmp_path / "t", engine=SlurmOptions(), progress=False, **RUN
        )


def test_what_slurm_refuses_is_said_in_its_words(slurm, tmp_path):
    with refused("value.invalid", "invalid partition"):
        run(tmp_path / "t", slurm_partition="none")


def test_jobs_without_a_gpu_are_asked_for_in_so_many_words(monkeypatch):
    monkeypatch.setattr("taskuq.pipeline._engines.pick_device", lambda device: "cpu")
    with refused("dependency.missing", "--device cpu"):
        SlurmOptions.from_options(EngineOptions())
    assert SlurmOptions.from_options(EngineOptions(device="cpu")).requested["gpus_per_node"] == 0
    assert (
        SlurmOptions.from_options(EngineOptions(slurm=("gpus_per_node=0",))).requested[
            "timeout_min"
        ]
        == 240
    )
    assert "gpus_per_node" not in SlurmOptions(parameters={"slurm_gres": "gpu:2"}).requested
