"""Lines that arrived are joined to the measurement that any other scanner's are, to the bit."""

import numpy as np
import pytest
import torch

from taskuq.measure._masks import nested_masks
from taskuq.measure._mri import _combine_columns, added_columns
from taskuq.service._session import ROOM, _assign_buffers, _StreamedSlice

RATES = (8.0, 4.0, 2.0)


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("width", [32, 45])
@pytest.mark.parametrize("height", [1, 20, 33])
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_a_measurement_is_that_of_joined_pieces_to_the_bit(height, width, rounds, drawn):
    columns = added_columns(nested_masks(width, RATES, rng=np.random.default_rng(0)))
    slice_ = _StreamedSlice(columns, (3, height, width), RATES, "MR")
    assert _assign_buffers([slice_] if drawn else [], []) == [slice_] * drawn
    noise = np.random.default_rng(1).standard_normal((2, 3, height, width))
    for column in range(width):
        assert slice_.add(column, noise[0, ..., column] + 1j * noise[1, ..., column]) is None
    pieces = [slice_.measure(k) for k in range(rounds)]
    found, wanted = slice_.combine(pieces), _combine_columns(pieces, slice_.shape, RATES)

    assert torch.equal(found.zero_filled, wanted.zero_filled)
    assert torch.equal(found.mask, wanted.mask)
    assert found.acceleration == wanted.acceleration
    assert found.zero_filled.is_contiguous()


def arriving(height=20, width=32):
    columns = added_columns(nested_masks(width, RATES, rng=np.random.default_rng(0)))
    slice_ = _StreamedSlice(columns, (3, height, width), RATES, "MR")
    return _assign_buffers([slice_], [])[0]


def line_of(column, height=20):
    noise = np.random.default_rng(column).standard_normal((2, 3, height))
    return (noise[0] + 1j * noise[1]).astype(np.complex64)


def test_lines_that_come_round_by_round_twice_and_early_are_put_once():
    slice_, pieces = arriving(), []
    for k, columns in enumerate(slice_.columns):
        early = slice_.columns[k + 1][:2].tolist() if k < 3 else []
        for column in [*columns.tolist(), *columns.tolist(), *early]:
            assert slice_.add(column, line_of(column)) is None
        pieces.append(slice_.measure(k))
        assert slice_._is_drawn(pieces)
        found, wanted = slice_.combine(pieces), _combine_columns(pieces, slice_.shape, RATES)
        assert torch.equal(found.zero_filled, wanted.zero_filled)
        slice_.combine(pieces).zero_filled.zero_()  # whoever is given it may write into it


def test_pieces_of_elsewhere_are_not_taken_for_the_lines_that_came():
    slice_ = arriving()
    for column in range(32):
        slice_.add(column, line_of(column))
    other = {**slice_.measure(0), "kspace": 2 * slice_.measure(0)["kspace"]}
    found, wanted = slice_.combine([other]), _combine_columns([other], slice_.shape, RATES)
    assert torch.equal(found.zero_filled, wanted.zero_filled)


def test_canvases_take_no_more_than_their_room():
    shape = (8, 320, 320)
    each = [_StreamedSlice([np.arange(320)], shape, RATES, "MR") for _ in range(50)]
    assert sum(s.canvas is not None for s in _assign_buffers(each[:3], [])) == 3
    assert sum(s.canvas is not None for s in _assign_buffers(each[3:], each[:3])) == 2
    large = _StreamedSlice([np.arange(4096)], (128, 4096, 4096), RATES, "MR")
    assert ROOM < 8 * 128 * 4096**2
    assert _assign_buffers([large], [])[0].canvas is None
