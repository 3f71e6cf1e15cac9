"""What cannot be done is said in one sentence, before anything is computed."""

import subprocess
import sys

import pytest
import toy

import raising
import taskuq as tq
from taskuq.pipeline._engines import ENGINES, EngineOptions, RayOptions, SlurmOptions

RUN = {"accelerations": toy.ACCELERATIONS, "samples": 4, "seed": 3, "progress": False}


def never(measurement, *, samples, seed):
    raise AssertionError("something was computed")


def refused(code, *names, **settings):
    with raising.refused(code, *names):
        tq.Pipeline(toy.measure, never, toy.task).run(toy.images(3), **{**RUN, **settings})


def test_an_address_where_nobody_listens_is_refused_soon():
    pytest.importorskip("ray")
    refused("dependency.missing", "127.0.0.1:9", engine=RayOptions(address="127.0.0.1:9"))


def test_slurm_without_slurm_is_refused(monkeypatch, tmp_path):
    pytest.importorskip("submitit")
    # Where SLURM is installed, nobody finds it.
    monkeypatch.setenv("PATH", str(tmp_path))
    refused("dependency.missing", engine=SlurmOptions(cluster="slurm"))
    refused("value.invalid", engine=SlurmOptions(jobs=0, cluster="local"))


@pytest.mark.parametrize("package", ["ray", "submitit"])
def test_a_package_that_is_not_installed_is_named(monkeypatch, package):
    # None in sys.modules is how Python remembers that there is no such module.
    monkeypatch.setitem(sys.modules, package, None)
    engine = RayOptions() if package == "ray" else SlurmOptions()
    refused("dependency.missing", "pip install", engine=engine)


@pytest.mark.parametrize("accelerations", [(2.0, 8.0), (8.0, 1.0), (8.0, 8.0)])
def test_rounds_in_the_wrong_order_are_refused_at_once(accelerations):
    refused("rounds.invalid", accelerations=accelerations)


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
def test_flags_that_do_not_go_together_are_refused(flags, code):
    name, *said = flags
    with raising.refused(code):
        ENGINES[name].from_options(EngineOptions(*said))


def test_a_command_refuses_with_status_2_and_one_sentence(tmp_path):
    config = tmp_path / "run.toml"
    config.write_text('subset = "all"\n[data]\nkind = "atlas"\npatients = 1\nslices = 1\n')
    command = [
        sys.executable,
        "-m",
        "taskuq.cli.app",
        "run",
        str(config),
        "-o",
        str(tmp_path / "t"),
    ]
    ended = subprocess.run([*command, "--workers", "3"], capture_output=True, text=True)

    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert not (tmp_path / "t").exists()
