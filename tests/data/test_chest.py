"""The embedded chest phantom and its air fraction."""

import numpy as np
import pytest

from raising import refused
from taskuq.data._chest import ChestData, ChestPhantom, air_fraction
from taskuq.task._methods import AirFraction


def test_patient_does_not_depend_on_the_others():
    many, one = (
        ChestPhantom(4, seed=7, size=32, slices=2),
        ChestPhantom(1, seed=7, size=32, slices=2, first=3),
    )
    assert np.array_equal(many[6].image, one[0].image)
    assert many[6].case == one[0].case == "patient-3-slice-0"
    assert not np.array_equal(many[6].image, many[4].image)
    assert not np.array_equal(many[0].image, ChestPhantom(1, seed=8, size=32, slices=2)[0].image)


def test_chests_differ_in_air():
    chest = ChestPhantom(12, seed=0, size=64)
    images = np.stack([chest[k].image for k in range(len(chest))])
    assert images.min() == 0
    assert images.max() <= 1
    assert 0.15 < chest.air.mean() < 0.4
    assert 0.05 < chest.air.std() < 0.2
    assert 0.2 < chest.labels.mean() < 0.8


@pytest.mark.parametrize("size", [64, 128])
def test_air_is_counted_inside_the_body(size):
    axis = np.linspace(-1, 1, size)
    radius = np.hypot(axis[:, None], axis)
    body, lung = radius < 0.8, radius < 0.4
    image = np.where(lung, 0.1, np.where(body, 0.7, 0.0))
    image[-1:] = 0.9  # a table, which is thin
    assert air_fraction(image[None])[0] == pytest.approx(lung.sum() / body.sum(), rel=0.03)
    assert air_fraction(np.zeros((1, size, size)))[0] == 0


def test_targets_are_the_air_fraction():
    part = ChestData(patients=2, size=32, slices=2).open_targets()
    images = np.stack([part.cases[k].image for k in range(4)])
    assert np.allclose(part.targets[:, 0], AirFraction()(images))


def test_impossible_chests_and_images_are_refused():
    with refused("value.invalid"):
        ChestPhantom(0, seed=0)
    with refused("shape.axes"):
        air_fraction(np.ones((4, 4)))
