"""Combining coils: two ways to compute one number, and the gradient at 0."""

from __future__ import annotations

import pytest
import torch

from taskuq.measure._coils import rss


@pytest.mark.parametrize("axis", [-3, 1, 0])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_the_quick_way_equals_the_norm(axis, dtype):
    images = torch.randn(2, 3, 4, 5, 6, dtype=dtype, generator=torch.Generator().manual_seed(0))
    norm = torch.linalg.vector_norm(images, dim=axis)
    assert rss(images, axis).dtype == norm.dtype
    assert torch.allclose(rss(images, axis), norm, rtol=1e-6)


def test_the_gradient_is_finite_where_an_image_is_black():
    images = torch.zeros(2, 3, 3, dtype=torch.complex64, requires_grad=True)
    rss(images).sum().backward()
    assert torch.isfinite(torch.view_as_real(images.grad)).all()
