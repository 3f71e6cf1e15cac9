"""Networks in half precision equal the networks; regions compile or run as they are."""

from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from taskuq.measure._fourier import central_lines
from taskuq.recover import _compiled
from taskuq.recover._compiled import compile_methods, compile_region, half_unet, half_varnet
from taskuq.recover._varnet import NormUnet, UNet
from taskuq.recover.flow._model import ConditionStage, FlowStep
from taskuq.recover.sampler._network import SamplerConfig, SamplerNet


def nearly(found, expected, tolerance):
    return bool((found - expected).abs().max() < tolerance * expected.abs().max())


def test_half_precision_does_not_overflow(net, scan):
    kspace, mask = scan
    arguments = kspace, mask, central_lines(mask)
    with torch.no_grad():
        expected = net(*arguments)
        for name, weight in net.named_parameters():
            if "layers" in name:
                weight.mul_(1e6)
        assert nearly(net(*arguments), expected, 1e-3)
        found = half_varnet(net, torch.float16)(*arguments)
    assert nearly(found, expected, 3e-2)


@pytest.mark.parametrize("side", [16, 22])  # also odd sides inside
def test_padded_channels_change_nothing(randomise, draw, side):
    unet = randomise(UNet(3, 2, width=5, pools=2)).double().eval()
    x = draw(2, 3, side, side)
    folded = half_unet(unet, torch.float64)
    assert {len(conv.weight) % 8 for conv in _normed(folded)} == {0}
    assert {len(conv.weight) % 8 for conv in _normed(unet)} != {0}  # a copy
    with torch.no_grad():
        assert nearly(folded.features(x)[:, :5], unet.features(x), 1e-11)
        assert nearly(folded(x), unet(x), 1e-11)


def _normed(unet):
    kinds = torch.nn.Conv2d, torch.nn.ConvTranspose2d
    return [m for m in unet.modules() if isinstance(m, kinds) and m is not unet.output]


@pytest.fixture
def compiler(monkeypatch):
    """A compiler that counts the graphs it is given, and runs them as they are."""
    torch._dynamo.reset()
    compile_region.cache_clear()
    counter = CompileCounter()
    compile_eagerly = partial(torch.compile, backend=counter)
    monkeypatch.setattr(_compiled, "has_triton", lambda: True)
    monkeypatch.setattr(_compiled.torch, "compile", compile_eagerly)
    yield counter
    compile_region.cache_clear()
    torch._dynamo.reset()


def test_modules_of_a_kind_share_compiled_code(compiler, net, scan, small_flow, draw):
    kspace, mask = scan
    arguments = kspace, mask, central_lines(mask)
    quick = half_varnet(net, torch.float16)
    sampler = SamplerNet(SamplerConfig(width=4, decoder_channels=(4, 8)))
    y, fraction = draw(2, 6, 12, 10, dtype=torch.float32), torch.tensor([0.1, 0.2])
    noise = draw(2, 3, sampler.noise_size(12, 10), dtype=torch.float32)
    inputs = draw(1, 4, 16, 16, dtype=torch.float32)
    shapes = small_flow.latent_shapes(16, 16)
    latents = [draw(3, *shape, dtype=torch.float32) for shape in shapes]
    with torch.no_grad():
        expected = quick(*arguments), sampler(y, fraction, noise)
        flowing = small_flow.inverse(latents, small_flow.encode(inputs))
        compile_methods(quick, NormUnet.refine)
        found = quick(*arguments)
        # Three cascades are one graph, and the sensitivities' U-Net has its own.
        assert compiler.frame_count == 2
        assert nearly(found, expected[0], 1e-3)
        compile_methods(sampler, SamplerNet.encode, SamplerNet.decode)
        assert nearly(sampler(y, fraction, noise), expected[1], 1e-5)
        assert compiler.frame_count == 4
        compile_methods(small_flow, UNet.features, ConditionStage.forward, FlowStep.inverse)
        assert nearly(small_flow.inverse(latents, small_flow.encode(inputs)), flowing, 1e-4)
        # A U-Net, two stages, and steps of two kernels and two sizes.
        assert compiler.frame_count == 4 + 1 + 2 + 4


def test_region_runs_as_it_is_without_a_compiler(monkeypatch, caplog):
    def double(x):
        return 2 * x

    def broken(function, **options):
        def fail(*arguments):
            raise RuntimeError("no C compiler")

        return fail

    for name, value in (("has_triton", lambda: False), ("compile_on_first_call", broken)):
        compile_region.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(_compiled, "has_triton", lambda: True)
            patch.setattr(_compiled, name, value)
            caplog.clear()
            region = compile_region(double)
            assert [region(3), region(4)] == [6, 8]
        assert len(caplog.records) == 1
        assert "double" in caplog.text
