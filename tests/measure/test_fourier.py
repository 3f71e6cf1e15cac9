"""The Fourier pair is unitary and equals independent references."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raising import refused
from taskuq.measure._coils import to_channels, to_complex
from taskuq.measure._fourier import (
    broadcast_mask,
    fft2c,
    ifft2c,
    project_measured,
    project_null_space,
)


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
def test_transform_is_its_sum(size, seed):
    x = complex_images(seed, *size)
    row, column = (_centred_dft(n) for n in size)
    assert torch.allclose(fft2c(x), row @ x @ column.T)


def _centred_dft(n):
    position = torch.arange(n, dtype=torch.float64) - n // 2
    return torch.exp(-2j * torch.pi * position[:, None] * position / n) / np.sqrt(n)


@settings(max_examples=30, deadline=None)
@given(coils=st.integers(1, 5), seed=st.integers(0, 2**31))
def test_layouts_are_inverse(coils, seed):
    x = complex_images(seed, 2, coils, 3, 4)
    channels = to_channels(x)
    assert torch.equal(to_complex(channels), x)
    assert torch.equal(channels[:, 0::2], x.real)
    assert torch.equal(channels[:, 1::2], x.imag)


def test_wrong_layouts_are_refused():
    with refused("dtype.invalid"):
        to_channels(torch.ones(2, 4, 4))
    with refused("shape.axes"):
        to_complex(torch.ones(3, 4, 4))


@st.composite
def images_and_mask(draw):
    height, width = draw(st.integers(1, 8)), draw(st.integers(1, 12))
    mask = draw(st.lists(st.booleans(), min_size=width, max_size=width))
    x, y = complex_images(draw(st.integers(0, 9999)), 2, 2, height, width)
    return x, y, np.array(mask)


@settings(max_examples=60, deadline=None)
@given(images_and_mask())
def test_masking_is_an_orthogonal_projection_and_the_null_space_the_rest(drawn):
    x, y, mask = drawn
    Ax, Ay = project_measured(x, mask), project_measured(y, mask)
    assert torch.allclose(project_measured(Ax, mask), Ax)
    assert torch.allclose(torch.vdot(Ax.ravel(), y.ravel()), torch.vdot(x.ravel(), Ay.ravel()))
    assert torch.allclose(project_measured(2 * x - 3j * y, mask), 2 * Ax - 3j * Ay)
    unseen = project_null_space(x, mask)
    assert torch.allclose(Ax + unseen, x)
    assert abs(torch.vdot(Ax.ravel(), unseen.ravel())) < 1e-9
    assert torch.allclose(project_measured(unseen, mask), torch.zeros_like(x), atol=1e-12)


def test_each_case_of_a_batch_can_have_its_own_mask():
    x = complex_images(0, 3, 2, 4, 6)
    masks = np.array([[1, 0, 0, 1, 0, 0], [0, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]], dtype=bool)
    together = project_measured(x, masks)
    for found, image, mask in zip(together, x, masks, strict=True):
        assert torch.allclose(found, project_measured(image, mask))
        columns = fft2c(found).abs().sum((0, 1))
        assert columns.gt(1e-9).tolist() == mask.tolist()


@pytest.mark.parametrize("shape", [(), (7,), (2, 6), (3, 2, 5, 6, 6)])
def test_wrong_mask_is_refused(shape):
    with refused("shape.mismatch"):
        broadcast_mask(np.ones(shape, dtype=bool), like=torch.ones(3, 2, 5, 6))
