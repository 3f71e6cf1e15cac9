"""Small networks with random weights: a fresh flow is a rotation, which would hide faults."""

import pytest
import torch

from taskuq.measure._fourier import _central_window, fft2c
from taskuq.recover._varnet import VarNet, VarNetConfig
from taskuq.recover.flow._model import ConditionalFlow, FlowConfig
from taskuq.training._determinism import seeded


def randomised(module, seed=0, scale=0.3):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            fan_in = parameter[0].numel() if parameter.ndim > 1 else 1
            parameter.add_(scale * noise / fan_in**0.5)
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.add_(0.1)
            if name.endswith("running_var"):
                buffer.mul_(1.5)
    return module


@pytest.fixture
def randomise():
    return randomised


@pytest.fixture
def small_flow():
    small = {"unet_width": 4, "unet_pools": 2, "condition_channels": 6, "steps_per_layer": 3}
    config = FlowConfig(coils=2, layers=2, max_value=1e12, **small)
    return randomised(ConditionalFlow(config)).eval()


@pytest.fixture
def draw():
    generator = torch.Generator().manual_seed(1)

    def normal(*shape, dtype=torch.float64):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    return normal


@pytest.fixture
def net():
    small = {"width": 4, "pools": 2, "sensitivity_width": 4, "sensitivity_pools": 2}
    return randomised(VarNet(VarNetConfig(cascades=3, **small))).eval()


@pytest.fixture
def scan(draw):
    """Three cases, the last of them fully measured; sides that must be padded, one of them odd."""
    images = torch.complex(draw(3, 4, 21, 26), draw(3, 4, 21, 26)).to(torch.complex64)
    mask = _central_window(torch.tensor([4, 7, 26]), 26)
    mask[:, ::5] = True
    return torch.where(mask[:, None, None], fft2c(images), 0), mask


@pytest.fixture
def varnet():
    """A network of one cascade as it is made: nearly the zero-filled image."""
    with seeded(1):
        return VarNet(VarNetConfig(cascades=1, width=4, pools=2, sensitivity_pools=2)).eval()
