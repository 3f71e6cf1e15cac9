"""Networks and states of trainings as they travel: in half, and without what is soon found again.

Adam's moments are half of a state, or more, and stay behind: they forget within some hundred steps
what they were, and a training that goes on without them begins as one does that has just started
from good weights. Weights travel in float16, as the package keeps them. So a training that goes on
on another machine does not end with the same bits; on the same machine it does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from taskuq.training.folder import RESUME

# Tensors of fewer numbers are kept as they are: running means of scores may be large or small.
SMALL, LARGEST = 4096, 6e4


def smaller(path: Path, work: Path, tell: Callable[[str], None]) -> Path:
    """A file as it travels; as it is where it is neither weights nor a state, or cannot be read."""
    if path.suffix != ".safetensors":
        return path
    half = work / "half" / path.relative_to(work)
    if half.exists() and half.stat().st_mtime >= path.stat().st_mtime:
        return half
    try:
        half.parent.mkdir(parents=True, exist_ok=True)
        return light(path, half) if path.name == RESUME else halved(path, half)
    except Exception as error:  # whatever is wrong with one file, the others come home
        tell(f"{path.relative_to(work)} is packed as it is: {type(error).__name__}: {error}")
        return path


def halved(path: Path, target: Path) -> Path:
    """The weights of a network in float16, as the package keeps them; any other file as it is."""
    from taskuq.settings import read_toml
    from taskuq.training.networks import NETWORKS
    from taskuq.weights.files import save_weights

    beside = path.with_suffix(".toml")
    card: dict[str, Any] = read_toml(beside) if beside.exists() else {}
    if card.get("kind") not in NETWORKS:
        return path
    net: Any = NETWORKS[card["kind"]].load(path, card["network"])
    notes = {key: card[key] for key in card if key not in ("kind", "network")}
    return save_weights(net, target, kind=card["kind"], config=net.config, notes=notes, half=True)


def light(path: Path, target: Path) -> Path:
    """The state of a training without Adam's moments, its weights in float16."""
    import torch

    from taskuq.training.state import load_state, save_state

    state = load_state(path)
    for optimiser in state["optimizer_states"]:
        optimiser["state"] = {}
    weights = state["state_dict"]
    for name, value in weights.items():
        is_large = value.dtype == torch.float32 and value.numel() >= SMALL
        if is_large and bool(value.abs().max() < LARGEST):
            weights[name] = value.half()
    return save_state(state, target)
