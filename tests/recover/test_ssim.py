"""Structural similarity against an independent implementation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from taskuq.recover._varnet_training import _ssim


def test_parity_with_scikit_image_and_a_range_of_its_own_for_each_case():
    metrics = pytest.importorskip("skimage.metrics")
    rng = np.random.default_rng(0)
    x = rng.random((3, 40, 36))
    y = x + 0.1 * rng.standard_normal(x.shape)
    ranges = np.array([0.5, 1.0, 2.0])
    found = _ssim(torch.as_tensor(y), torch.as_tensor(x), torch.as_tensor(ranges))
    expected = []
    for a, b, r in zip(y, x, ranges, strict=True):
        # Its mean leaves out a border of 3 pixels, where its windows would be padded.
        expected.append(metrics.structural_similarity(a, b, win_size=7, data_range=r))
    assert found.numpy() == pytest.approx(expected, abs=1e-9)
