"""ResNet-50 with torchvision's parameter names, and its ImageNet weights from a local file."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from taskuq.errors import InputError
from taskuq.weights.files import fill, read_pickled, read_tensors

FEATURES = 2048


def resnet50() -> nn.Module:
    """Make a ResNet-50 without its last layer: three channels to 2048 features.

    The network comes from MONAI, or from torchvision where MONAI is missing; parameter names and
    outputs are the same.

    References:
        He et al., Deep Residual Learning for Image Recognition, CVPR 2016.

    Example:
        >>> sum(p.numel() for p in resnet50().parameters())
        23508032
    """
    try:
        from monai.networks.nets.resnet import resnet50 as monai_resnet50
    except ImportError:
        return _from_torchvision()
    # MONAI's defaults differ from torchvision's in the first stride and in a bias.
    network: nn.Module = monai_resnet50(
        spatial_dims=2,
        n_input_channels=3,
        conv1_t_stride=2,
        bias_downsample=False,
        feed_forward=False,
    )
    return network


def read_imagenet(network: nn.Module, path: Path | str) -> None:
    """Fill a ResNet-50 from a file with torchvision's names; its last layer is left out.

    Arguments:
        network: What :func:`resnet50` made.
        path: A state dict, .safetensors or .pth; read without unpickling objects.

    Example:
        >>> read_imagenet(resnet50(), "absent.pth")
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: absent.pth cannot be read as a plain state dict ...
    """
    path = Path(path)
    if path.suffix == ".safetensors":
        found = read_tensors(path)
    else:
        found = read_pickled(path, "torchvision's file")
        if not isinstance(found, dict) or not all(isinstance(v, Tensor) for v in found.values()):
            raise InputError(f"{path} holds no plain state dict; give torchvision's file")
    fill(network, {k: v for k, v in found.items() if not k.startswith("fc.")}, path)


def _from_torchvision() -> nn.Module:
    try:
        from torchvision.models import (  # type: ignore[import-not-found,unused-ignore]
            resnet50 as torchvision_resnet50,
        )
    except ImportError:
        raise InputError(
            "ResNet-50 needs MONAI or torchvision and neither is installed; "
            "pip install 'taskuq[mri]'"
        ) from None
    network: nn.Module = torchvision_resnet50(weights=None)
    network.fc = nn.Identity()
    return network
