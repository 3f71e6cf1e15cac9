"""The simulated scanner: what it hands out piece by piece is what the operator measures at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from taskuq.errors import InputError
from taskuq.measure._masks import nested_masks
from taskuq.measure._mri import MultiCoilMRI, SimulatedMRIScanner

RATES = (8.0, 4.0, 2.0)


@pytest.fixture
def scanner() -> SimulatedMRIScanner:
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(3, 12, 32, dtype=torch.complex64, generator=generator)
    return SimulatedMRIScanner(image, nested_masks(32, RATES, rng=np.random.default_rng(0)), RATES)


def test_pieces_together_are_the_measurement(scanner):
    operator = MultiCoilMRI(scanner.masks, RATES)
    pieces = []
    for k, R in enumerate((*RATES, 1.0)):
        pieces.append(scanner.measure(k))
        joined, at_once = scanner.combine(pieces), operator(scanner.image, R)
        assert joined.acceleration == R
        assert torch.equal(joined.mask, at_once.mask)
        assert torch.allclose(joined.zero_filled, at_once.zero_filled, atol=1e-5)
    assert torch.allclose(joined.zero_filled, scanner.image, atol=1e-5)


def test_no_line_is_measured_twice_and_none_is_left(scanner):
    columns = np.concatenate([scanner.measure(k)["columns"] for k in range(4)])
    assert sorted(columns) == list(range(32))


def test_a_round_that_does_not_exist_is_refused(scanner):
    with pytest.raises(InputError, match="round 4 is asked for"):
        scanner.measure(4)
