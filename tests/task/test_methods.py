"""Areas are counted, in one's own unit; summed over a patient's slices they are volumes."""

import math

import numpy as np
import pytest
import torch

from raising import refused
from taskuq._config import from_toml_table, to_toml_table
from taskuq.experiments._run import RunConfig, open_run, read_run
from taskuq.task._methods import TASKS, AirFraction, Area, MeanIntensity, _MultiTask
from taskuq.training._weights import referenced_files


def test_areas_are_additive():
    images = torch.rand(5, 12, 10, generator=torch.Generator().manual_seed(0))
    above, below = Area(0.4, pixel_area=2.5), Area(0.4, pixel_area=2.5, below=True)
    assert torch.allclose(above(images) + below(images), torch.full((5,), 2.5 * 120))
    parts = Area(0.4)(images[:, :6]) + Area(0.4)(images[:, 6:])
    assert torch.allclose(parts, above(images) / 2.5)
    assert torch.allclose(Area(0.4, pixel_area=0)(images) * 120 * 2.5, above(images))


def test_ranges_and_names():
    assert (Area(1.0).range, Area(1.0, pixel_area=0).range) == ((0, math.inf), (0, 1))
    assert Area(1.0, pixel_area=0).names == ("share of the image",)
    assert TASKS["area"] is Area
    for settings in ({"threshold": math.nan}, {"threshold": 1.0, "pixel_area": -1.0}):
        with refused("value.invalid"):
            Area(**settings)


CONFIG = """
subset = "all"
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
kind = "filtered-back-projection"
[task]
kind = "multi"
[task.tasks."air share"]
kind = "air-fraction"
[task.tasks.mean]
kind = "mean-intensity"
[task.tasks.finding]
kind = "classifier"
weights = "classifier-atlas"
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "run.toml").write_text(CONFIG)
    return read_run(tmp_path / "run.toml")


def test_table_of_several_tasks(config):
    run = open_run(config, "cpu")
    table = run.pipeline.run(run.images, accelerations=(8, 4), samples=1, seed=0, progress=False)
    images = np.stack([run.images[k].image for k in range(4)])
    assert table.task_names == ("air share", "mean", "finding")
    assert table.task_ranges == ((0.0, 1.0), None, (0.0, 1.0))
    assert np.allclose(table.targets[:, 0], AirFraction()(images))
    assert np.allclose(table.targets[:, 1], MeanIntensity((0.25, 0.75), (0.25, 0.75))(images))


def test_configuration_round_trip(config):
    assert from_toml_table(RunConfig, to_toml_table(config)) == config
    assert {path.suffix for path in referenced_files(config.task)} == {".safetensors", ".toml"}


def test_task_with_two_outputs_is_refused():
    tasks = _MultiTask({"one": MeanIntensity(), "two": lambda images: torch.ones(len(images), 2)})
    with refused("component.invalid"):
        tasks(torch.ones(3, 8, 8))
    with refused("config.missing"):
        _MultiTask({})
