"""Configurations at toy size: the machinery without a GPU, in minutes of two cores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskuq.data.made_fastmri import Layout

SIZE = 64
LAYOUT = Layout(height=80, width=72, coils=9, recon=SIZE)
# What commands are told in addition, since their own words say nothing of sizes.
WORDS = {
    "data check": f"--size {SIZE} --minimum-width {SIZE}",
    "data prepare": f"--size {SIZE} --minimum-width {SIZE}",
}

_TRAINING = {"batch": 4, "workers": 0, "precision": "32-true", "compile": False}
_BACKBONE = {"kind": "small", "width": 4, "blocks": [1, 1]}
_VARNET = {"cascades": 1, "width": 1, "pools": 1, "sensitivity_width": 1, "sensitivity_pools": 1}
# Sizes, and what a machine without a GPU cannot do; None takes a setting out. The published masks
# are for 320 columns, ImageNet's weights for a ResNet-50, VGG-16 has one size.
CHANGES: dict[str, dict[str, Any]] = {
    "varnet": {"network": _VARNET, "training": _TRAINING},
    "flow": {
        "network": {"unet_width": 2, "unet_pools": 1, "condition_channels": 4, "steps": 1},
        "training": _TRAINING,
    },
    "simclr": {
        "network": {"hidden": 8, "embedding": 4, "backbone": _BACKBONE},
        "training": _TRAINING,
        "start": {"imagenet": None},
    },
    "classifier": {
        "network": {"hidden": [8], "backbone": _BACKBONE},
        "training": _TRAINING,
        "attack": {"steps": 5},
    },
    "run-flow": {"samples": 2},
    "run-varnet": {},
    "quality": {"samples": 2, "features": None},
}
_EVERYWHERE = {"data": {"size": SIZE, "minimum_width": SIZE}, "measure": {"published": False}}


def made_small(name: str, shipped: Mapping[str, Any]) -> dict[str, Any]:
    """A shipped configuration at toy size; everything else is as it was.

    Arguments:
        name: The name of its file, without the ending.
        shipped: What the file says.

    Example:
        >>> made_small("quality", {"samples": 32, "features": "vgg.safetensors", "seed": 0})
        {'samples': 2, 'seed': 0}
    """
    return _changed(_changed(shipped, _EVERYWHERE), CHANGES.get(name, {}))


def _changed(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    changed = dict(table)
    for key, value in changes.items():
        if isinstance(value, dict):
            if key in table:
                changed[key] = _changed(table[key], value)
        elif value is None:
            changed.pop(key, None)
        else:
            changed[key] = value
    return changed
