"""Lines that arrived are joined to the measurement that any other scanner's are, to the bit."""

import numpy as np
import pytest
import torch

from taskuq.measure.masks import nested_masks
from taskuq.measure.mri import added_columns, joined
from taskuq.runs.mrd.arriving import ArrivingSlice

RATES = (8.0, 4.0, 2.0)


@pytest.mark.parametrize("width", [32, 45])
@pytest.mark.parametrize("height", [1, 20, 33])
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_a_measurement_is_that_of_joined_pieces_to_the_bit(height, width, rounds):
    columns = added_columns(nested_masks(width, RATES, rng=np.random.default_rng(0)))
    slice_ = ArrivingSlice(columns, (3, height, width), RATES, "MR")
    noise = np.random.default_rng(1).standard_normal((2, 3, height, width))
    for column in range(width):
        assert slice_.add(column, noise[0, ..., column] + 1j * noise[1, ..., column]) is None
    pieces = [slice_.measure(k) for k in range(rounds)]
    found, wanted = slice_.combine(pieces), joined(pieces, slice_.shape, RATES)

    assert torch.equal(found.zero_filled, wanted.zero_filled)
    assert torch.equal(found.mask, wanted.mask)
    assert found.acceleration == wanted.acceleration
    assert found.zero_filled.is_contiguous()
