"""A trained network from a file, as a recovery method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from taskuq.errors import InputError
from taskuq.protocols import Recover
from taskuq.recover.around import AroundEstimate
from taskuq.recover.catalog import load
from taskuq.recover.flow.model import ConditionalFlow
from taskuq.recover.methods import FlowRecovery, VarNetRecovery
from taskuq.recover.varnet import VarNet
from taskuq.settings import read_toml
from taskuq.weights import locate


def open_recovery(
    weights: Path | str,
    *,
    estimate: Path | str | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    temperature: float | None = None,
) -> Recover:
    """Load a network and make it ready to recover.

    Arguments:
        weights: A .safetensors file, or a name of the package's own networks.
        estimate: For a flow around estimates: its variational network; by default the one that
            the flow was trained with, as the TOML beside its weights names it.
        device: Where to run.
        dtype: The precision of a flow's convolutions; bfloat16 on a GPU, float32 elsewhere.
        temperature: Of a flow's latents; 1 draws what was learned. By default what the TOML
            beside the weights says of a flow around estimates, else 1.

    Returns:
        A recovery for :class:`taskuq.Pipeline`.

    Example:
        >>> type(open_recovery("varnet-atlas")).__name__
        'VarNetRecovery'
    """
    path = locate(weights)
    network = load(path)
    if not isinstance(network, ConditionalFlow):
        return VarNetRecovery(network.to(device))
    if not network.config.inputs:
        whole = 1.0 if temperature is None else temperature
        return FlowRecovery(network, device=device, dtype=dtype, temperature=whole)
    card: dict[str, Any] = read_toml(path.with_suffix(".toml"))
    named = estimate or card.get("estimate")
    if named is None:
        raise InputError(
            f"{path.name} draws around estimates and does not say whose; name the variational "
            "network it was trained with as 'estimate'"
        )
    net = load(locate(named))
    if not isinstance(net, VarNet):
        raise InputError(f"estimate names {named}, which is no variational network; name one")
    if temperature is None:
        temperature = card.get("temperatures") or 1.0
    return AroundEstimate(network, net, device=device, temperature=temperature)
