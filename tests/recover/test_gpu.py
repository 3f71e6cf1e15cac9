"""What only a GPU can show: the fused kernels mean what their twins in plain torch mean."""

from __future__ import annotations

import pytest
import torch

from taskuq.recover.flow import FlowConfig, kernels, rows
from taskuq.recover.flow.rows import Attend, Fold, Subnet
from taskuq.recover.recipes import around_recipe, varnet_recipe
from taskuq.recover.varnet import VarNetConfig

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


@pytest.mark.parametrize("kind", ["flow", "varnet"])
def test_replayed_steps_are_steps(kind):
    """The same losses and weights, a smaller last batch and a pause for evaluation included."""

    def losses(replayed):
        torch.manual_seed(0)
        if kind == "flow":
            config = FlowConfig(coils=1, inputs=6, unet_width=4, unet_pools=2,
                                condition_channels=4, layers=2, steps=2)  # fmt: skip
            recipe = around_recipe(config, replayed=replayed)
        else:
            recipe = varnet_recipe(VarNetConfig(cascades=2, width=4, pools=2), replayed=replayed)
        net, found = recipe.network.cuda().train(), []
        optimiser = torch.optim.Adam(net.parameters(), 1e-3)
        for step, cases in enumerate((4, 4, 3, 4, 4)):
            generator = torch.Generator("cuda").manual_seed(step)
            batch = _batch(kind, cases, generator)
            if step == 0 and recipe.first_batch is not None:
                recipe.first_batch(net, batch, generator)
            if step == 3:
                net.eval()
                with torch.no_grad():
                    found.append(recipe.validate(net, batch, generator)["loss"].mean())
                net.train()
            loss = recipe.loss(net, batch, generator)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            found.append(loss.detach())
        return torch.stack(found), torch.cat([p.detach().flatten() for p in net.parameters()])

    plain, quick = losses(False), losses(True)
    torch.testing.assert_close(quick[0], plain[0], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(quick[1], plain[1], rtol=1e-2, atol=1e-3)


def _batch(kind, cases, generator):
    def normal(*shape, dtype=torch.float32):
        return torch.randn(cases, *shape, generator=generator, device="cuda", dtype=dtype)

    if kind == "flow":
        return {"inputs": normal(6, 32, 32), "error": normal(2, 32, 32)}
    mask = torch.zeros(cases, 32, dtype=torch.bool, device="cuda")
    mask[:, 8:24] = True
    return {
        "image": normal(4, 32, 32, dtype=torch.complex64),
        "mask": mask,
        "low_frequencies": torch.full((cases,), 16, device="cuda"),
        "data_range": torch.full((cases,), 3.0, device="cuda"),
    }
