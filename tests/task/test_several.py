"""Several tasks of one image: names, ranges and files of all of them, in one table."""

import numpy as np
import pytest
import torch

from taskuq._config import from_toml_table, to_toml_table
from taskuq.errors import InputError
from taskuq.experiments._run import RunConfig, open_run, read_run
from taskuq.task._methods import AirFraction, MeanIntensity, _MultiTask
from taskuq.training._weights import referenced_files

CONFIG = """
part = "all"
samples = 1
[data]
kind = "chest"
patients = 2
size = 32
slices = 2
[measure]
kind = "tomography"
accelerations = [8, 4]
views = 32
[recover]
kind = "back-projection"
[task]
kind = "several"
[task.of."air share"]
kind = "air-share"
[task.of.mean]
kind = "mean-intensity"
[task.of.finding]
kind = "classifier"
weights = "classifier-atlas"
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "run.toml").write_text(CONFIG)
    return read_run(tmp_path / "run.toml")


def test_a_table_has_the_numbers_names_and_ranges_of_all_tasks(config):
    run = open_run(config, "cpu")
    table = run.pipeline.run(run.images, accelerations=(8, 4), samples=1, seed=0, progress=False)
    images = np.stack([run.images[k].image for k in range(4)])

    assert table.task_names == ("air share", "mean", "finding")
    assert table.task_ranges == ((0.0, 1.0), None, (0.0, 1.0))
    assert np.allclose(table.targets[:, 0], AirFraction()(images))
    assert np.allclose(table.targets[:, 1], MeanIntensity((0.25, 0.75), (0.25, 0.75))(images))


def test_a_configuration_comes_back_and_names_all_files(config):
    assert from_toml_table(RunConfig, to_toml_table(config)) == config
    assert {path.suffix for path in referenced_files(config.task)} == {".safetensors", ".toml"}


def test_a_task_of_several_numbers_is_refused():
    tasks = _MultiTask({"one": MeanIntensity(), "two": lambda images: torch.ones(len(images), 2)})
    with pytest.raises(InputError, match="the task two gives shape"):
        tasks(torch.ones(3, 8, 8))
    with pytest.raises(InputError, match="at least one"):
        _MultiTask({})
