"""Engines: the same table from each, also if workers, nodes, jobs or drivers die."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest
import toy
from toy import RUN, same

import taskuq as tq
from raising import refused
from taskuq.cli.app import main
from taskuq.errors import MachineError
from taskuq.pipeline import _engines as engines
from taskuq.pipeline._engines import ENGINES, EngineOptions, RayOptions, SlurmOptions
from taskuq.pipeline._pipeline import status

CASES = 12

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def expected():
    return tq.Pipeline(toy.measure, toy.recover, toy.task).run(toy.images(CASES), **RUN)


# A dead node, which refuses connections, is noticed in two seconds instead of half a minute; a
# slow one has as long to answer as ever.
SOON = {
    "health_check_initial_delay_ms": 0, "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
}  # fmt: skip


@pytest.fixture
def cluster_node(monkeypatch):
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", toy.PATH)
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": SOON}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    yield cluster, nodes
    ray.shutdown()
    cluster.shutdown()


def kill_raylet(node):
    (process,) = node.all_processes["raylet"]
    os.kill(process.process.pid, signal.SIGKILL)


# Before the fixture cluster, which connects this process to another cluster.
def test_killed_ray_node_changes_nothing(cluster_node, expected, tmp_path):
    found, nodes = cluster_node
    at_work, driver = tmp_path / "at-work", os.getpid()
    at_work.mkdir()
    victim = nodes[0].node_id

    def recover(measurement, *, samples, seed):
        if os.getpid() != driver:
            import ray

            node = ray.get_runtime_context().get_node_id()
            (at_work / node).touch()
            if node == victim:
                time.sleep(600)  # it is in the middle of a case when its node dies
        return toy.recover(measurement, samples=samples, seed=seed)

    def kill():
        while not (at_work / victim).exists():
            time.sleep(0.05)
        kill_raylet(nodes[0])

    assassin = threading.Thread(target=kill)
    assassin.start()
    engine = RayOptions(address=found.address, workers=2, chunk=2, patience=300)
    table = tq.Pipeline(toy.measure, recover, toy.task).run(
        toy.images(CASES), store=tmp_path / "t", engine=engine, **RUN
    )
    assassin.join()
    assert {path.name for path in at_work.iterdir()} == {node.node_id for node in nodes}
    assert same(table, expected)


def never(measurement, *, samples, seed):
    raise AssertionError("something was computed")


def run_is_refused(code, *names, **settings):
    with refused(code, *names):
        tq.Pipeline(toy.measure, never, toy.task).run(toy.images(3), **{**RUN, **settings})


def test_unreachable_ray_address_is_refused():
    pytest.importorskip("ray")
    run_is_refused("dependency.missing", "127.0.0.1:9", engine=RayOptions(address="127.0.0.1:9"))


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray")
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": toy.PATH}},
    )  # fmt: skip
    yield ray
    ray.shutdown()


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


def test_engines_give_the_same_table(cluster, tmp_path):
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


def test_too_many_workers_are_refused_at_once(cluster, tmp_path):
    engine = RayOptions(workers=3)
    run_is_refused("value.invalid", "1 to 2 workers", store=tmp_path / "t", engine=engine)


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
def test_threads_are_pinned_on_every_engine(request, where, engine):
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


def test_registered_engine_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr(ENGINES, "_known", dict(ENGINES._known))
    ENGINES.register("backwards", Backwards)
    config = tmp_path / "run.toml"
    config.write_text(CONFIG)
    for name in ("local", "backwards"):
        main(["run", str(config), "-o", str(tmp_path / name), "--batch", "2", "--engine", name])
    assert same(*(tq.TaskOutputs.load(tmp_path / name) for name in ("local", "backwards")))
    assert Backwards.done == [5, 4, 3, 2]  # the first batch shows what the task gives
    with refused("choice.unknown", "local, ray, slurm, backwards"):
        ENGINES["forwards"]


HERE = os.getpid()


def run(store, recover=toy.recover, **parameters):
    engine = SlurmOptions(jobs=2, parameters=parameters)
    return tq.Pipeline(toy.measure, recover, toy.task).run(
        toy.images(CASES), store=store, engine=engine, **{**RUN, "progress": True}
    )


def stuck_in_jobs(marks, here=HERE):
    """A recovery that finishes two cases of a job and stays in the third."""
    calls = []

    def recover(measurement, *, samples, seed):
        if os.getpid() != here:
            calls.append(seed)
        if len(calls) > 2 * len(toy.ACCELERATIONS):
            (marks / str(os.getpid())).touch()
            time.sleep(600)
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


def test_slurm_job_has_a_gpu_and_four_hours(slurm, expected, tmp_path, capsys):
    assert same(run(tmp_path / "t"), expected)
    assert "gpus_per_node=1, timeout_min=240" in capsys.readouterr().err
    known = asked("scontrol", "show", "jobs")
    assert "TimeLimit=04:00:00" in known
    assert "gpu:1" in known


def test_slurm_time_limit_keeps_finished_cases(slurm, expected, tmp_path):
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
    assert same(run(tmp_path / "t"), expected)


def test_cancelled_job_is_noticed(slurm, expected, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(engines, "GRACE", 1.0)
    marks = tmp_path / "marks"
    with (
        pytest.raises(MachineError, match=r"2 of 2 jobs failed, the first \d+_\d: cancelled, "),
        once_stuck(marks, "scancel"),
    ):
        run(tmp_path / "t", stuck_in_jobs(marks))
    assert "CANCELLED AT" in capsys.readouterr().err
    assert same(run(tmp_path / "t"), expected)


def test_error_in_a_job_is_raised(slurm, tmp_path):
    def unwilling(measurement, *, samples, seed, here=HERE):
        if os.getpid() != here:
            raise ValueError("this network wants 32 channels")
        return toy.recover(measurement, samples=samples, seed=seed)

    pipeline = tq.Pipeline(toy.measure, unwilling, toy.task)
    with refused("component.invalid", "wants 32 channels", "at R = 8"):
        pipeline.run(toy.images(60), store=tmp_path / "t", engine=SlurmOptions(), **RUN)


def test_slurm_without_gpu_needs_device(monkeypatch):
    monkeypatch.setattr("taskuq.pipeline._engines.pick_device", lambda device: "cpu")
    with refused("dependency.missing", "--device cpu"):
        SlurmOptions.from_options(EngineOptions())
    assert SlurmOptions.from_options(EngineOptions(device="cpu")).requested["gpus_per_node"] == 0
    given = SlurmOptions.from_options(EngineOptions(slurm=("gpus_per_node=0",)))
    assert given.requested["timeout_min"] == 240
    assert "gpus_per_node" not in SlurmOptions(parameters={"slurm_gres": "gpu:2"}).requested


def start(what, store):
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("killed.py")), what, str(store)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": toy.PATH},
    )  # fmt: skip


def kill_and_finish(what, store):
    """Kill a run once it has written some cases, and let it end the second time."""
    with start(what, store) as process:
        until = time.monotonic() + 300
        while len(list(store.glob("part-*.parquet"))) < 4 and process.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.05)
        process.kill()
    said, wrong = start(what, store).communicate(timeout=300)
    assert said == "done", wrong


@pytest.mark.parametrize("engine", ["ray", "slurm"])
def test_killed_driver_is_resumed(request, engine, expected, tmp_path, monkeypatch):
    if engine == "ray":
        cluster = request.getfixturevalue("cluster")
        monkeypatch.setenv("RAY_ADDRESS", cluster.get_runtime_context().gcs_address)
    else:
        request.getfixturevalue("slurm")
    kill_and_finish(engine, tmp_path / "t")
    assert same(tq.TaskOutputs.load(tmp_path / "t"), expected)


def test_missing_slurm_is_refused(monkeypatch, tmp_path):
    pytest.importorskip("submitit")
    # Where SLURM is installed, nobody finds it.
    monkeypatch.setenv("PATH", str(tmp_path))
    run_is_refused("dependency.missing", engine=SlurmOptions(cluster="slurm"))
    run_is_refused("value.invalid", engine=SlurmOptions(jobs=0, cluster="local"))


@pytest.mark.parametrize("package", ["ray", "submitit"])
def test_missing_package_is_named(monkeypatch, package):
    # None in sys.modules is how Python remembers that there is no such module.
    monkeypatch.setitem(sys.modules, package, None)
    engine = RayOptions() if package == "ray" else SlurmOptions()
    run_is_refused("dependency.missing", "pip install", engine=engine)


@pytest.mark.parametrize("accelerations", [(2.0, 8.0), (8.0, 1.0), (8.0, 8.0)])
def test_rounds_in_wrong_order_are_refused(accelerations):
    run_is_refused("rounds.invalid", accelerations=accelerations)


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (("local", None, 4), "option.unused"),
        (("local", "host:1"), "option.unused"),
        (("local", None, None, ("timeout_min=3",)), "option.unused"),
        (("ray", None, None, ("timeout_min=3",)), "option.unused"),
        (("slurm", None, None, ("timeout_min",)), "value.invalid"),
    ],
)
def test_unused_engine_flags_are_refused(flags, code):
    name, *said = flags
    with refused(code):
        ENGINES[name].from_options(EngineOptions(*said))
