"""Task networks by name, with presets, and from files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from taskuq.errors import InputError
from taskuq.settings import from_table
from taskuq.task.backbone import BackboneConfig
from taskuq.task.classifier import Classifier, ClassifierConfig
from taskuq.weights.files import fill, read_card, read_tensors

PRESETS = {
    "paper": ClassifierConfig(),
    # 128×128: 0.7 million parameters.
    "demo": ClassifierConfig(BackboneConfig("small", width=16), hidden=(64,)),
    # For teaching and tests.
    "tiny": ClassifierConfig(BackboneConfig("small", width=8, blocks=(1, 1, 1)), hidden=(16,)),
}


def build(name: Literal["classifier"], preset: str = "paper") -> Classifier:
    """Make a task network with random weights.

    Arguments:
        name: ``"classifier"``.
        preset: ``"paper"`` (ResNet-50, 320×320), ``"demo"`` (128×128) or ``"tiny"``.

    Returns:
        A torch module.

    Example:
        >>> net = build("classifier", preset="tiny")
        >>> sum(p.numel() for p in net.parameters())
        20665
    """
    if name != "classifier" or preset not in PRESETS:
        raise InputError(
            f"there is no {name} {preset}; choose classifier, and {', '.join(PRESETS)}"
        )
    return Classifier(PRESETS[preset])


def load(path: Path | str) -> Classifier:
    """Read a trained task network: safetensors, with the TOML of its configuration beside it.

    Arguments:
        path: The weights, ending in .safetensors.

    Returns:
        The network, on the CPU, ready to be used.

    Example:
        >>> import tempfile
        >>> from taskuq.weights.files import save_weights
        >>> net = build("classifier", preset="tiny")
        >>> path = save_weights(net, Path(tempfile.mkdtemp()) / "best.safetensors",
        ...                     kind="classifier", config=net.config)
        >>> load(path).config == net.config
        True
    """
    card = read_card(path, ("classifier",))
    config: ClassifierConfig = from_table(ClassifierConfig, card["network"], "network")
    # Weights drawn here are overwritten at once: leave the caller's random numbers alone.
    with torch.random.fork_rng(devices=[]):
        network = Classifier(config)
    fill(network, read_tensors(path), path)
    return network.eval()
