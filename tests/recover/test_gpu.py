"""What only a GPU can show: the fused kernels mean what their twins in plain torch mean."""

from __future__ import annotations

import pytest
import torch

from taskuq.recover.flow import kernels, rows
from taskuq.recover.flow.rows import Attend, Fold, Subnet

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and kernels.is_available()), reason="needs a GPU with Triton"
)


@pytest.fixture
def plain(monkeypatch):
    """Run a function of ``rows`` without its kernels."""

    def run(function, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "is_available", lambda: False)
            return function(*arguments)

    return run


def random(*shape, dtype=torch.float32):
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, device="cuda").to(dtype)


def distance(found, expected):
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.mark.parametrize("pixels", [25, 400])
@pytest.mark.parametrize("channels", [64, 128])
def test_between_is_its_twin(plain, channels, pixels):
    matrix = torch.linalg.qr(random(channels, channels))[0]
    fold = Fold.of(random(channels), matrix, random(channels, 1)[:, 0])
    attend = Attend(0.1 * random(channels), random(channels).exp(), random(1)[0])
    for parts in ((fold, attend), (fold, None), (None, attend)):
        x, raw = random(3, pixels, channels), random(3, pixels, channels) if parts[0] else None
        expected, kept = plain(rows.between, x.clone(), raw, *parts, torch.float32)
        found, fused_kept = rows.between(x.clone(), raw, *parts, torch.float32)
        assert distance(found, expected) < 3e-5
        assert kept is None or distance(fused_kept, kept) < 3e-5


@pytest.mark.parametrize("channels", [48, 192, 256])
def test_leaky_is_its_twin(plain, channels):
    for add, samples in ((random(channels), 1), (random(2, 30, channels), 3)):
        y = random(6, 30, channels)
        expected = plain(rows.leaky, y.clone(), add, 0.01, samples)
        torch.testing.assert_close(rows.leaky(y.clone(), add, 0.01, samples), expected)


@pytest.mark.parametrize("shape", [(1, 25600, 96), (3, 77, 18), (2, 400, 1024)])
def test_normalise_is_its_twin(plain, shape):
    x = 2 + random(*shape)
    expected = plain(rows.normalise_leaky, x.clone(), 0.2)
    torch.testing.assert_close(rows.normalise_leaky(x.clone(), 0.2), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("half", "hidden"), [(32, 192), (64, 256)])
def test_pixelwise_is_its_twin(plain, half, hidden):
    shapes = (half, hidden), (hidden, hidden), (hidden,), (hidden, 2 * half)
    net = Subnet(*(0.1 * random(*shape) for shape in shapes))
    x, share = random(6, 77, half), random(2, 77, hidden)
    expected = plain(rows.pixelwise, x, share, net, 0.01, 3)
    rounded = Subnet(*(w.bfloat16() if w.ndim == 2 else w for w in net))
    found = rows.pixelwise(x.bfloat16(), share.bfloat16(), rounded, 0.01, 3)
    assert distance(found, expected) < 1e-2
