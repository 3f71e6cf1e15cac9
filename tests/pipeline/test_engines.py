"""The same table comes out of every engine, also when workers are killed."""

import contextlib
import os
import signal
import threading
import time
from typing import ClassVar

import numpy as np
import pytest
import toy

import taskuq as tq
from raising import refused
from taskuq.cli.app import main
from taskuq.pipeline._engines import ENGINES, RayOptions, SlurmOptions

RUN = {"accelerations": toy.ACCELERATIONS, "samples": 4, "seed": 3, "progress": False}
SLOW = tq.Pipeline(toy.measure, toy.slow_recover, toy.task)

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def expected():
    return tq.Pipeline(toy.measure, toy.recover, toy.task).run(toy.images(30), **RUN)


def same(a, b):
    return np.array_equal(a.outputs, b.outputs) and np.array_equal(a.targets, b.targets)


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray")
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": toy.PATH}},
    )  # fmt: skip
    yield ray
    ray.shutdown()


def test_killed_ray_workers_are_replaced(cluster, expected, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()

    driver, killed = os.getpid(), []

    def recover(measurement, *, samples, seed):
        if os.getpid() != driver:
            (marks / str(os.getpid())).touch()
        return toy.slow_recover(measurement, samples=samples, seed=seed)

    def kill_two():
        for _ in range(2):
            while not list(marks.iterdir()):
                time.sleep(0.05)
            mark = next(marks.iterdir())
            mark.unlink()
            # A worker that is gone already needs no killing; the first one is at work for certain.
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(mark.name), signal.SIGKILL)
                killed.append(mark.name)

    assassin = threading.Thread(target=kill_two)
    assassin.start()
    table = tq.Pipeline(toy.measure, recover, toy.task).run(
        toy.images(30), store=tmp_path / "t", engine=RayOptions(chunk=2, workers=2), **RUN
    )
    assassin.join()
    assert killed
    assert same(table, expected)


def test_a_request_beyond_the_cluster_is_refused_and_does_not_hang(cluster, tmp_path):
    with refused("value.invalid", "2 CPUs"):
        SLOW.run(toy.images(3), store=tmp_path / "t", engine=RayOptions(cpus=64), **RUN)


def test_more_workers_than_fit_are_refused_before_anything_is_computed(cluster, tmp_path):
    def never(measurement, *, samples, seed):
        raise AssertionError("something was computed")

    pipeline = tq.Pipeline(toy.measure, never, toy.task)
    with refused("value.invalid", "1 to 2 workers"):
        pipeline.run(toy.images(3), store=tmp_path / "t", engine=RayOptions(workers=3), **RUN)


CONFIG = """
subset = "all"
[data]
kind = "atlas"
patients = 2
slices = 3
size = 64
coils = 2
[measure]
accelerations = [8, 4]
"""


def test_the_command_line_gives_the_same_table_with_every_engine(cluster, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(CONFIG)
    flags = {
        "local": (),
        "ray": ("--engine", "ray", "--workers", "2"),
        "slurm": ("--engine", "slurm", "--address", "local", "--slurm", "timeout_min=5"),
    }
    for name, engine in flags.items():
        main(["run", str(config), "-o", str(tmp_path / name), "--batch", "2", *engine])
    local, *others = (tq.TaskOutputs.load(tmp_path / name) for name in flags)

    assert local.cases == 6
    assert all(same(other, local) for other in others)
    assert {path.name for path in tmp_path.iterdir()} == {*flags, "run.toml", "slurm-jobs"}


def with_threads(threads, engine=None):
    return tq.Pipeline(toy.measure, toy.sum_of_many, toy.task).run(
        toy.images(6), engine=engine, threads=threads, **RUN
    )


@pytest.mark.parametrize(
    ("where", "engine"),
    [
        ("cluster", RayOptions(workers=1)),
        ("slurm", SlurmOptions(jobs=1, parameters={"gpus_per_node": 0, "timeout_min": 5})),
    ],
    ids=["ray", "slurm"],
)
def test_threads_are_pinned_so_that_sums_have_the_same_bits_everywhere(request, where, engine):
    request.getfixturevalue(where)

    # One is what workers have where nobody asks; sums come out otherwise with it.
    assert not same(with_threads(1), with_threads(2))
    assert same(with_threads(2, engine), with_threads(2))


class Backwards:
    """An engine of one's own: this process, the last case first."""

    done: ClassVar[list] = []

    @classmethod
    def from_options(cls, options):
        return cls()

    def ready(self, scratch):
        return contextlib.nullcontext()

    def run(self, work, todo, progress):
        self.done.extend(todo[::-1])
        work.run(todo[::-1], progress)


def test_an_engine_of_your_own_takes_one_registration(tmp_path, monkeypatch):
    monkeypatch.setattr(ENGINES, "_known", dict(ENGINES._known))
    ENGINES.register("backwards", Backwards)
    config = tmp_path / "run.toml"
    config.write_text(CONFIG)
    for name in ("local", "backwards"):
        main(["run", str(config), "-o", str(tmp_path / name), "--batch", "2", "--engine", name])

    assert same(*(tq.TaskOutputs.load(tmp_path / name) for name in ("local", "backwards")))
    assert Backwards.done == [5, 4, 3, 2]  # the first batch shows what the task gives
    with pytest.raises(tq.InputError, match="choose one of local, ray, slurm, backwards"):
        ENGINES["forwards"]
