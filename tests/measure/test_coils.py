"""Combining coils: two ways to compute one number, and the gradient at 0."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taskuq.measure._coils import compress_coils, compression_matrix, rss
from taskuq.measure._fourier import project_measured


@pytest.mark.parametrize("axis", [-3, 1, 0])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_rss_is_the_norm(axis, dtype):
    images = torch.randn(2, 3, 4, 5, 6, dtype=dtype, generator=torch.Generator().manual_seed(0))
    norm = torch.linalg.vector_norm(images, dim=axis)
    assert rss(images, axis).dtype == norm.dtype
    assert torch.allclose(rss(images, axis), norm, rtol=1e-6)


def test_gradient_of_rss_is_finite_at_zero():
    images = torch.zeros(2, 3, 3, dtype=torch.complex64, requires_grad=True)
    rss(images).sum().backward()
    assert torch.isfinite(torch.view_as_real(images.grad)).all()


def coil_images(seed, coils):
    """Coils of unequal strength that see correlated pictures."""
    rng = np.random.default_rng(seed)
    real, imaginary = rng.normal(size=(2, coils, 6, 7))
    mixing = rng.normal(size=(coils, coils)) * 2.0 ** -np.arange(coils)
    return torch.as_tensor(np.einsum("ab,bhw->ahw", mixing, real + 1j * imaginary))


@settings(max_examples=40, deadline=None)
@given(coils=st.integers(2, 9), seed=st.integers(0, 9999))
def test_virtual_coils_hold_the_largest_singular_values_in_any_order(coils, seed):
    x = coil_images(seed, coils)
    singular = torch.linalg.svdvals(x.flatten(1))
    for kept in range(1, coils + 1):
        virtual = compress_coils(x, compression_matrix(x, kept))
        assert torch.allclose(virtual.norm() ** 2, (singular[:kept] ** 2).sum())
    order = torch.as_tensor(np.random.default_rng(seed).permutation(coils))
    one = compress_coils(x, compression_matrix(x, 1))
    other = compress_coils(x[order], compression_matrix(x[order], 1))
    assert torch.allclose(one.abs(), other.abs(), atol=1e-6)  # but for the sign


def test_compression_depends_on_measured_lines_only():
    x, mask = coil_images(0, 5), np.array([0, 1, 1, 0, 1, 0, 1], dtype=bool)
    seen = project_measured(x, mask)
    changed = x + 3 * (x - seen)
    one, other = (compression_matrix(project_measured(a, mask), 3) for a in (x, changed))
    assert torch.allclose(one, other)
    # Masking lines and mixing coils commute.
    mixed = project_measured(compress_coils(x, one), mask)
    assert torch.allclose(mixed, compress_coils(seen, one))
    assert not torch.allclose(compression_matrix(x, 3), compression_matrix(changed, 3))
