"""Registry of networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from taskuq._config import from_toml_table
from taskuq._io import reading
from taskuq._registry import Registry
from taskuq.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import nn


class _NetworkEntry(NamedTuple):
    about: str
    module: str
    method: str | None
    network: str = "NETWORK"


LISTED = {
    "recover": {
        "flow": _NetworkEntry("Train the conditional flow, a posterior sampler.",
                              "recover.flow._train", "FlowMethod"),
        "sampler": _NetworkEntry("Train the one-step sampler and its point-estimate networks.",
                                 "recover.sampler._train", "SamplerMethod"),
        "ct-unrolled": _NetworkEntry("Train the unrolled CT network, a point estimate.",
                                     "recover._tomography", "UnrolledMethod"),
        "varnet": _NetworkEntry("Train the variational network, a point estimate.",
                                "recover._varnet_training", "VarNetMethod"),
        "ct-sampler": _NetworkEntry("Train the CT sampler and its point-estimate networks.",
                                    "recover._tomography", "CTSamplerMethod", "SAMPLER_NETWORK"),
    },
    "task": {
        "simclr": _NetworkEntry("Pre-train the backbone of a task network without labels.",
                                "task._simclr", None),
        "classifier": _NetworkEntry(
            "Train the task network, with adversarial images if [attack] has a radius.",
            "task._classifier_training", "ClassifierMethod"),
    },
}  # fmt: skip


@dataclass(frozen=True)
class NetworkKind:
    """Configuration, constructor and training settings of one kind of network."""

    config: type[Any]
    build: Callable[[Any], nn.Module]
    training: type[Any]
    method: type[Any] | None = None
    presets: Mapping[str, Any] = field(default_factory=dict)
    evaluate: Callable[[Any, Path, Any], dict[str, Any]] | None = None
    table: Callable[[dict[str, Any]], list[str]] | None = None
    large: bool = False
    flexible_input: bool = False

    def load(self, path: Path, table: Mapping[str, Any]) -> nn.Module:
        import torch

        from taskuq.training._weights import load_weights

        config = from_toml_table(self.config, table, "network")
        card = path.with_suffix(".toml")
        with reading(card, "the card of a network", "use the one written with the weights"):
            if self.large:
                with torch.device("meta"):
                    net = self.build(config)
                net = net.to_empty(device="cpu")
            else:
                # Weights drawn here are overwritten at once: leave the caller's numbers alone.
                with torch.random.fork_rng(devices=[]):
                    net = self.build(config)
        load_weights(net, path)
        return net.eval()


_ENTRIES = {name: entry for entries in LISTED.values() for name, entry in entries.items()}
NETWORKS: Registry[NetworkKind] = Registry(
    "network", {name: f"taskuq.{entry.module}:{entry.network}" for name, entry in _ENTRIES.items()}
)


class MethodConfig(Protocol):
    """Settings of [recover] or [task]."""

    def open(self, device: torch.device | str) -> Any:
        """Return the callable for the pipeline, on a device."""


class MethodRegistry(Registry[type[Any]]):
    def __init__(self, what: str, table: str, listed: Mapping[str, str]) -> None:
        lines = LISTED[table].items()
        networks = {
            name: f"taskuq.{line.module}:{line.method}" for name, line in lines if line.method
        }
        super().__init__(what, {**listed, **networks})
        self.table = table

    def add(self, name: str, network: NetworkKind) -> NetworkKind:
        """Register a custom network for training and, if it has a method, for runs."""
        NETWORKS.register(name, network)
        if network.method is not None:
            self.register(name, network.method)
        return network

    def networks(self) -> list[str]:
        return [name for name in self if name in NETWORKS]

    def build(self, name: str, preset: str = "paper") -> Any:
        """Make a network with random weights."""
        if name not in self or name not in NETWORKS or preset not in NETWORKS[name].presets:
            known = (f"{kind} ({', '.join(NETWORKS[kind].presets)})" for kind in self.networks())
            message = f"there is no {name} {preset}; choose {' or '.join(known)}"
            raise InputError(message, code="choice.unknown")
        return NETWORKS[name].build(NETWORKS[name].presets[preset])

    def load(self, path: Path | str) -> Any:
        """Read a trained network on the CPU."""
        from taskuq.training._weights import read_card

        card = read_card(path, self.networks())
        return NETWORKS[card["kind"]].load(Path(path), card["network"])

    def trained(self, kind: str, weights: Path | str | None) -> tuple[Path, Any]:
        """Return the path of the weights given in a settings table, and the loaded network."""
        from taskuq.training._weights import locate, read_card

        if weights is None:
            raise InputError(f"{self.table}.weights is missing; name a file", code="config.missing")
        path = locate(weights)
        return path, NETWORKS[kind].load(path, read_card(path, (kind,))["network"])
