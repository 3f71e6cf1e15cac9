"""Small images in which the finding is a bright spot."""

import numpy as np
import pytest


@pytest.fixture(scope="session")
def spots(tmp_path_factory):
    """An .npz of 24 patients with 4 slices each: noise, and a spot where the label is 1."""
    rng = np.random.default_rng(0)
    images = rng.random((96, 24, 24)).astype(np.float32) * 0.5
    label = rng.integers(0, 2, 96)
    area = np.where(label, rng.integers(4, 9, 96), 0)
    for image, width in zip(images, area, strict=True):
        row, column = rng.integers(4, 12, 2)
        image[row : row + width, column : column + width] += 1.0
    path = tmp_path_factory.mktemp("spots") / "spots.npz"
    np.savez(
        path, images=images, label=label, group=np.repeat(np.arange(24), 4),
        area=area.astype(float), both=np.stack([label, 1 - label], axis=1),
        first_half=np.arange(96) < 48,
    )  # fmt: skip
    return path
