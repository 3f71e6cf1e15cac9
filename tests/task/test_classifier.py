"""The task network: its size, its scale, its files; tasks without a network."""

import pickle
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from raising import refused
from taskuq.protocols import Task
from taskuq.task import build
from taskuq.task._backbone import Backbone, BackboneConfig, _read_imagenet, _ResNet50
from taskuq.task._cases import unit_scale
from taskuq.task._classifier import Classifier, ClassifierConfig
from taskuq.task._methods import MeanIntensity, TorchTask


def numbered_state(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Weights in float64 that depend on names and shapes alone, of a healthy size."""
    state = {}
    for name, shape in shapes.items():
        normal = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
        if len(shape) > 1:
            value = normal * np.sqrt(2 / np.prod(shape[1:]))
        elif name.endswith("running_var"):
            value = 1 + 0.1 * np.abs(normal)
        elif name.endswith("weight"):
            value = 1 + 0.1 * normal
        else:
            value = 0.1 * normal
        dtype = torch.int64 if name.endswith("tracked") else torch.float64
        state[name] = torch.as_tensor(value).to(dtype)
    return state


def numbered_images() -> torch.Tensor:
    return torch.as_tensor(np.random.default_rng(0).random((2, 3, 64, 64)))


# torchvision 0.26.0, resnet50(weights=None) in float64, weights by numbered_state, last layer left
# out, on numbered_images: first four features of each image, sum and norm of all 2 x 2048.
TORCHVISION = [
    57.681668848285305, 25.488459569745075, 9.821905194699742, 21.0114994967032,
    63.42772877870003, 26.53474693323504, 9.397496615469011, 21.73033797931283,
]  # fmt: skip
TORCHVISION_SUM, TORCHVISION_NORM = 220088.02250059013, 4603.568662442984

images = st.integers(0, 99).map(
    lambda seed: torch.rand(2, 16, 16, generator=torch.Generator().manual_seed(seed))
)


def test_published_parameter_count():
    with torch.device("meta"):
        paper = build("classifier", preset="paper")
    assert sum(p.numel() for p in paper.parameters()) == 24_065_601


def test_torchvision_weights_give_torchvision_outputs(tmp_path):
    with torch.device("meta"):
        shapes = {name: tuple(value.shape) for name, value in _ResNet50().state_dict().items()}
    state = numbered_state(shapes | {"fc.weight": (1000, 2048), "fc.bias": (1000,)})
    assert len(state) == 320
    torch.save(state, tmp_path / "resnet50.pth")
    network = _ResNet50().double().eval()
    _read_imagenet(network, tmp_path / "resnet50.pth")
    with torch.no_grad():
        features = network(numbered_images())
    assert features[:, :4].flatten().tolist() == pytest.approx(TORCHVISION, rel=1e-9)
    assert float(features.sum()) == pytest.approx(TORCHVISION_SUM, rel=1e-9)
    assert float(features.norm()) == pytest.approx(TORCHVISION_NORM, rel=1e-9)


def test_input_has_three_equal_channels_normalised_as_imagenet():
    backbone = Backbone(BackboneConfig("resnet50"))
    seen = []
    backbone.body = nn.Sequential()
    backbone.body.register_forward_hook(lambda module, given, result: seen.append(given[0]))
    backbone(torch.full((1, 2, 2), 0.5))
    wanted = [(0.5 - 0.485) / 0.229, (0.5 - 0.456) / 0.224, (0.5 - 0.406) / 0.225]
    assert seen[0][0, :, 0, 0].tolist() == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(
    ("fault", "code"),
    [("missing", "weights.mismatch"), ("hostile", "file.format"), ("other", "file.format")],
)
def test_other_weights_are_refused(tmp_path, fault, code):
    path = tmp_path / "weights.pth"
    if fault == "hostile":
        path.write_bytes(pickle.dumps(Path(tmp_path), protocol=2))
    else:
        torch.save([1, 2] if fault == "other" else {"conv1.weight": torch.ones(64, 3, 7, 7)}, path)
    with refused(code, "weights.pth"):
        _read_imagenet(_ResNet50(), path)


@given(x=images, scale=st.floats(1e-3, 1e3), offset=st.floats(-10, 10))
def test_unit_scale_removes_scale_and_offset(x, scale, offset):
    # In float64: an offset far above the image's span costs float32 its digits.
    changed = unit_scale(x.double() * scale + offset)
    assert torch.allclose(changed, unit_scale(x.double()), atol=1e-9)
    assert float(changed.amin()) == 0
    assert float(changed.amax()) == 1


@pytest.mark.parametrize("value", [0.0, 7.0, 1e-42, -3e38])
def test_constant_image_has_finite_output_and_gradient(value):
    net, x = build("classifier", preset="tiny").eval(), torch.full((2, 16, 16), value)
    x.requires_grad_()
    outputs = net(x)
    outputs.sum().backward()
    assert torch.isfinite(outputs).all()
    assert torch.isfinite(x.grad).all()


def test_outputs_are_probabilities_of_single_images():
    net, x = build("classifier", preset="tiny").eval(), torch.rand(5, 24, 24)
    together = net(x)
    assert together.shape == (5,)
    assert ((together > 0) & (together < 1)).all()
    assert torch.allclose(together[2:3], net(x[2:3]), atol=1e-6)


def test_several_tasks_have_an_axis_and_numbers_a_unit():
    config = ClassifierConfig(
        BackboneConfig("small", width=4), tasks=("area", "count"), output="real"
    )
    net = Classifier(config).eval()
    net.shift.copy_(torch.tensor([100.0, 5.0]))
    net.spread.copy_(torch.tensor([20.0, 0.0]))
    outputs = net(torch.rand(3, 16, 16))
    assert outputs.shape == (3, 2)
    assert (outputs[:, 1] == 5).all()
    assert net.range is None
    assert build("classifier", preset="tiny").range == (0, 1)


@pytest.mark.parametrize("shape", [(16, 16), (1, 3, 16, 16), (0, 16, 16)])
def test_other_shapes_are_refused(shape):
    with refused("shape.axes"):
        build("classifier", preset="tiny")(torch.ones(shape))


def test_torch_task_keeps_the_mode_of_its_module():
    net = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(64, 3)).train()
    task, x = TorchTask(net, batch=2), np.random.default_rng(0).random((5, 8, 8))
    assert isinstance(task, Task)
    assert torch.equal(task(x), task(x))  # dropout would differ
    assert task(x).shape == (5, 3)
    assert torch.allclose(task(x)[3:], task(x[3:]), atol=1e-6)
    assert net.training


def test_torch_task_takes_functions():
    assert TorchTask(lambda x: x.amax((1, 2)))(torch.ones(3, 4, 4)).tolist() == [1, 1, 1]
    with refused("component.invalid"):
        TorchTask(lambda x: torch.ones(4))(torch.ones(3, 4, 4))


def test_mean_intensity_is_additive():
    x = torch.rand(2, 8, 8)
    upper, lower = MeanIntensity(rows=(0, 0.5))(x), MeanIntensity(rows=(0.5, 1))(x)
    assert torch.allclose((upper + lower) / 2, x.mean((1, 2)))
    assert torch.allclose(MeanIntensity((0.25, 0.5), (0, 0.25))(x), x[:, 2:4, :2].mean((1, 2)))


def test_positive_outputs():
    config = ClassifierConfig(
        BackboneConfig("small", width=4), tasks=("area",), output="positive", units=("mm²",)
    )
    net = Classifier(config).eval()
    net.shift.fill_(250.0)
    targets = torch.tensor([[0.0], [3.0], [1e4]])
    assert torch.allclose(net.outputs(net.standardised(targets)), targets, rtol=1e-4)
    assert (net.outputs(torch.randn(50, 1)) >= 0).all()
    assert net.range == (0, float("inf"))
    assert net.names == ("area (mm²)",)
    assert build("classifier", preset="tiny").names is None
