"""Recovery networks by name, with presets, and from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from taskuq.errors import InputError
from taskuq.recover.flow import ConditionalFlow, FlowConfig
from taskuq.recover.varnet import VarNet, VarNetConfig
from taskuq.settings import from_table
from taskuq.weights.files import fill, read_card, read_tensors

Name = Literal["flow", "varnet"]
Network = ConditionalFlow | VarNet

PRESETS: dict[str, dict[str, Any]] = {
    "flow": {
        "paper": FlowConfig(),
        # 128×128, 8 coils: 3.6 million parameters, 7.5 MB in float16.
        "demo": FlowConfig(
            unet_width=16,
            condition_channels=16,
            steps=4,
            normalise=True,
            noise=0.02,
            null_noise=0.02,
        ),
        # The same size around the estimates of a variational network: 2.5 million parameters.
        "around": FlowConfig(
            coils=1,
            inputs=6,
            unet_width=32,
            unet_pools=3,
            condition_channels=24,
            direct=True,
            layers=3,
            steps=4,
            null_noise=0.003,
            normalise=True,
        ),
        # For teaching and tests: 0.7 million parameters.
        "tiny": FlowConfig(
            coils=1, unet_width=16, unet_pools=3, condition_channels=16, steps=4, normalise=True
        ),
    },
    "varnet": {
        "paper": VarNetConfig(),
        "demo": VarNetConfig(
            cascades=6, width=16, pools=3, sensitivity_width=6, sensitivity_pools=3
        ),
        "tiny": VarNetConfig(
            cascades=3, width=6, pools=2, sensitivity_width=4, sensitivity_pools=2
        ),
    },
}


def build(name: Name, preset: str = "paper") -> Network:
    """Make a recovery network with random weights.

    Arguments:
        name: ``"flow"`` (posterior samples) or ``"varnet"`` (a point estimate).
        preset: ``"paper"``, ``"demo"`` (128×128, 8 coils) or ``"tiny"``; of the flow also
            ``"around"``, for :class:`taskuq.recover.around.AroundEstimate`.

    Returns:
        A torch module.

    Example:
        >>> net = build("varnet", preset="tiny")
        >>> sum(p.numel() for p in net.parameters())
        56747
    """
    if name not in PRESETS or preset not in PRESETS[name]:
        raise InputError(
            f"there is no {name} {preset}; choose flow or varnet, and paper, demo or tiny (of the "
            "flow also around)"
        )
    return make(name, PRESETS[name][preset])


def make(name: str, config: Any) -> Network:
    """Make a recovery network of a given configuration.

    Arguments:
        name: ``"flow"`` or ``"varnet"``.
        config: Its dataclass.

    Returns:
        A torch module.

    Example:
        >>> make("varnet", VarNetConfig(cascades=1, width=2)).config.cascades
        1
    """
    return ConditionalFlow(config) if name == "flow" else VarNet(config)


def load(path: Path | str) -> Network:
    """Read a trained network: safetensors, with the TOML of its configuration beside it.

    Arguments:
        path: The weights, ending in .safetensors.

    Returns:
        The network, on the CPU, ready to be used.

    Example:
        >>> import tempfile
        >>> from taskuq.weights.files import save_weights
        >>> net = build("varnet", preset="tiny")
        >>> path = save_weights(net, Path(tempfile.mkdtemp()) / "best.safetensors",
        ...                     kind="varnet", config=net.config)
        >>> load(path).config == net.config
        True
    """
    card = read_card(path, tuple(PRESETS))
    kind = str(card["kind"])
    config: Any = FlowConfig if kind == "flow" else VarNetConfig
    tensors = read_tensors(path)
    # Random numbers for weights that are overwritten at once would take seconds.
    with torch.device("meta"):
        net = make(kind, from_table(config, card["network"], "network"))
    net = net.to_empty(device="cpu")
    fill(net, tensors, path)
    return net.eval()


def load_public_varnet(path: Path | str) -> VarNet:
    """Read the public fastMRI weights of the variational network (a state dict in .pt).

    The file is read without unpickling objects: a hostile one is refused.

    Arguments:
        path: The .pt file.

    Returns:
        The network of the paper's size.

    Example:
        >>> load_public_varnet("absent.pt")
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: cannot read absent.pt ...
    """
    import pickle

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"cannot read {path} as a plain state dict ({reason}); give one") from None
    state = state.get("state_dict", state) if isinstance(state, dict) else {}
    state = {k.removeprefix("varnet."): v for k, v in state.items()}
    net = VarNet()
    try:
        found = net.load_state_dict(state, strict=False)
    except RuntimeError:
        raise InputError(f"{path} holds weights of another shape; give the leaderboard's") from None
    if found.missing_keys:
        raise InputError(
            f"{path} lacks {len(found.missing_keys)} weights, first {found.missing_keys[0]}; give "
            "weights of the end-to-end variational network"
        )
    return net.eval()


def count_parameters(network: nn.Module) -> int:
    """How many numbers a network learns or keeps fixed as parameters.

    Arguments:
        network: The network.

    Returns:
        The count.

    Example:
        >>> from torch import nn
        >>> count_parameters(nn.Linear(3, 1))
        4
    """
    return sum(parameter.numel() for parameter in network.parameters())
