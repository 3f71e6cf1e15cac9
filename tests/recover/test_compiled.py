"""The fused variational network equals the network."""

import pytest
import torch

from taskuq.measure._fourier import _central_window, central_lines, fft2c
from taskuq.recover._compiled import fuse_unet, fuse_varnet
from taskuq.recover._varnet import UNet, VarNet, VarNetConfig

SMALL = VarNetConfig(cascades=3, width=4, pools=2, sensitivity_width=4, sensitivity_pools=2)


@pytest.fixture
def net(randomise):
    return randomise(VarNet(SMALL)).eval()


@pytest.fixture
def scan(draw):
    """Three cases, the last of them fully measured; sides that must be padded, one of them odd."""
    images = torch.complex(draw(3, 4, 21, 26), draw(3, 4, 21, 26))
    mask = _central_window(torch.tensor([4, 7, 26]), 26)
    mask[:, ::5] = True
    return torch.where(mask[:, None, None], fft2c(images), 0), mask


def nearly(found, expected, tolerance):
    return bool((found - expected).abs().max() < tolerance * expected.abs().max())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-3)])
def test_fused_varnet_equals_the_varnet(net, scan, dtype, tolerance):
    kspace, mask = scan[0].to(dtype.to_complex()), scan[1]
    arguments = kspace, mask, central_lines(mask)
    net = net.to(dtype)
    quick = fuse_varnet(net, device="cpu", dtype=dtype)
    with torch.no_grad():
        pairs = zip(quick.maps_and_images(*arguments), net.maps_and_images(*arguments), strict=True)
        assert all(nearly(found, expected, tolerance) for found, expected in pairs)
        assert nearly(quick(*arguments), net(*arguments), tolerance)


@pytest.mark.parametrize("side", [8, 40])
def test_fused_varnet_of_small_sides_and_masks_without_a_centre(net, draw, side):
    images = torch.complex(draw(2, 4, side, 26), draw(2, 4, side, 26))
    mask = torch.arange(26).repeat(2, 1) % 5 == 0
    mask[1, 13] = True
    arguments = torch.where(mask[:, None, None], fft2c(images), 0), mask, central_lines(mask)
    net = net.double()
    quick = fuse_varnet(net, device="cpu", dtype=torch.float64)
    with torch.no_grad():
        assert nearly(quick(*arguments), net(*arguments), 1e-11)


def test_half_precision_does_not_overflow(net, scan):
    kspace, mask = scan[0].to(torch.complex64), scan[1]
    arguments = kspace, mask, central_lines(mask)
    with torch.no_grad():
        expected = net(*arguments)
        for name, weight in net.named_parameters():
            if "layers" in name:
                weight.mul_(1e6)
        assert nearly(net(*arguments), expected, 1e-3)
        found = fuse_varnet(net, device="cpu", dtype=torch.float16)(*arguments)
    assert nearly(found, expected, 3e-2)


@pytest.mark.parametrize("side", [16, 22])  # also odd sides inside
def test_padded_channels_change_nothing(randomise, draw, side):
    unet = randomise(UNet(3, 2, width=5, pools=2)).double().eval()
    x = draw(2, 3, side, side)
    folded = fuse_unet(unet, torch.device("cpu"), torch.float64, aligned=8)
    assert {len(part.weight) % 8 for pair in folded.joined for part in pair} == {0}
    with torch.no_grad():
        features, said = folded.predict(x)
        assert nearly(features, unet.features(x), 1e-11)
        assert nearly(said, unet(x), 1e-11)
