"""The variational network: parameters, batches, sensitivities, SSIM."""

import pytest
import torch

from raising import refused
from taskuq.measure._fourier import _central_window, central_lines
from taskuq.recover._varnet import UNet, VarNet


def test_published_parameter_count_and_names():
    with torch.device("meta"):
        state = VarNet().state_dict()
    assert sum(w.numel() for w in state.values()) == 29_936_966
    # Names of the public fastMRI weights, one of each kind.
    for name, shape in {
        "sens_net.norm_unet.unet.down_sample_layers.0.layers.0.weight": (8, 2, 3, 3),
        "sens_net.norm_unet.unet.conv.layers.4.weight": (128, 128, 3, 3),
        "cascades.11.dc_weight": (1,),
        "cascades.0.model.unet.up_transpose_conv.0.layers.0.weight": (288, 144, 2, 2),
        "cascades.0.model.unet.up_conv.2.layers.4.weight": (36, 36, 3, 3),
        "cascades.0.model.unet.up_conv.3.0.layers.0.weight": (18, 36, 3, 3),
        "cascades.0.model.unet.up_conv.3.1.bias": (2,),
    }.items():
        assert tuple(state[name].shape) == shape


def test_batch_equals_single_cases(net, scan):
    kspace, mask = scan
    lines = central_lines(mask)
    with torch.no_grad():
        together = net(kspace, mask, lines)
        alone = torch.cat([net(kspace[i, None], mask[i, None], lines[i, None]) for i in range(3)])
    assert (together - alone).abs().max() < 1e-4 * alone.abs().max()


def test_sensitivities_depend_on_central_lines_only(net, scan):
    kspace, _ = scan
    count = torch.tensor([4, 4, 4])
    outside = ~_central_window(count, 26)[:, None, None]
    changed = kspace + torch.where(outside, 1.0, 0.0)
    with torch.no_grad():
        assert torch.equal(net.sens_net(changed, count), net.sens_net(kspace, count))


@pytest.mark.parametrize("width", [10, 11])
def test_central_lines_is_the_largest_measured_window(width):
    bits = torch.arange(2**width)[:, None] >> torch.arange(width) & 1
    masks = bits.bool()  # those without their centre have no central lines
    counts = torch.arange(1, width + 1)
    windows = _central_window(counts, width)
    fits = (masks[:, None] | ~windows).all(-1)
    assert torch.equal(central_lines(masks), torch.where(fits, counts, 0).amax(1))


def test_sensitivities_without_central_lines_use_all_lines(net, scan):
    kspace, _ = scan
    with torch.no_grad():
        none, every = (net.sens_net(kspace, torch.full((3,), n)) for n in (0, 26))
    assert torch.equal(none, every)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda k, m, n: (k[0], m, n), "shape.axes"),
        (lambda k, m, n: (k, m[:2], n), "shape.mismatch"),
        (lambda k, m, n: (k, m, n[:1]), "shape.mismatch"),
    ],
)
def test_bad_input_is_refused(net, scan, change, code):
    kspace, mask = scan
    with refused(code):
        net(*change(kspace, mask, central_lines(mask)))


def test_unet_keeps_odd_sizes_and_refuses_tiny_ones():
    unet = UNet(2, 3, width=4, pools=3)
    assert unet(torch.zeros(1, 2, 37, 50)).shape == (1, 3, 37, 50)
    with refused("shape.mismatch"):
        unet(torch.zeros(1, 2, 8, 8))
