"""The Fourier pair is unitary and equals independent references."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taskuq.measure._coils import to_channels, to_complex
from taskuq.measure._fourier import fft2c, ifft2c


def complex_images(seed, *shape):
    real, imaginary = np.random.default_rng(seed).normal(size=(2, *shape))
    return torch.as_tensor(real + 1j * imaginary)


sizes = st.tuples(st.integers(1, 12), st.integers(1, 12))


@settings(max_examples=60, deadline=None)
@given(size=sizes, seed=st.integers(0, 2**31))
def test_the_inverse_is_the_adjoint(size, seed):
    x, k = complex_images(seed, *size), complex_images(seed + 1, *size)
    assert torch.allclose(ifft2c(fft2c(x)), x)
    assert torch.allclose(
        torch.vdot(fft2c(x).ravel(), k.ravel()), torch.vdot(x.ravel(), ifft2c(k).ravel())
    )


@settings(max_examples=30, deadline=None)
@given(size=sizes, seed=st.integers(0, 2**31))
def test_the_transform_is_the_written_out_sum(size, seed):
    x = complex_images(seed, *size)
    row, column = (_centred_dft(n) for n in size)
    assert torch.allclose(fft2c(x), row @ x @ column.T)


def _centred_dft(n):
    position = torch.arange(n, dtype=torch.float64) - n // 2
    return torch.exp(-2j * torch.pi * position[:, None] * position / n) / np.sqrt(n)


@settings(max_examples=30, deadline=None)
@given(coils=st.integers(1, 5), seed=st.integers(0, 2**31))
def test_layouts_are_each_others_inverse(coils, seed):
    x = complex_images(seed, 2, coils, 3, 4)
    channels = to_channels(x)
    assert torch.equal(to_complex(channels), x)
    assert torch.equal(channels[:, 0::2], x.real)
    assert torch.equal(channels[:, 1::2], x.imag)


def test_layouts_refuse_what_they_cannot_read():
    with pytest.raises(ValueError, match="give complex coil images"):
        to_channels(torch.ones(2, 4, 4))
    with pytest.raises(ValueError, match="give real channels"):
        to_complex(torch.ones(3, 4, 4))
