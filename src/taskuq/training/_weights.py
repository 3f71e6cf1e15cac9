"""Bundled and trained weights, and their model cards."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from taskuq._config import read_toml, to_toml_table, toml_text
from taskuq._io import atomic_write, content_fingerprint, fingerprint, reading
from taskuq.errors import InputError

FOLDER = Path(__file__).parent / "bundled"


def shipped() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.safetensors"))


def locate(weights: Path | str) -> Path:
    """Return the path of a weights file, given by its path or by the name of bundled weights."""
    path = Path(weights)
    if path.suffix:
        return path
    if path.name not in shipped() or path.name != str(weights):
        message = f"no weights {str(weights)!r}; name a file or one of {', '.join(shipped())}"
        raise InputError(message, code="choice.unknown")
    return FOLDER / f"{path.name}.safetensors"


def referenced_files(settings: Any) -> Iterator[Path]:
    for field_ in fields(settings):
        value = getattr(settings, field_.name)
        if isinstance(value, dict):
            # Tables by names of the user's choice.
            for part in value.values():
                yield from referenced_files(part)
            continue
        for named in value if isinstance(value, tuple) else (value,):
            if field_.name != "cache" and isinstance(named, Path):
                yield from _files_behind(named)


def weights_fingerprint(weights: Path | str) -> str:
    return _mark(_files_behind(Path(weights)))


def _mark(files: Iterable[Path]) -> str:
    return fingerprint([content_fingerprint(path) for path in files])[:16]


def _files_behind(named: Path) -> Iterator[Path]:
    """Yield weights and model cards of a network and its estimator; without a card, ``named``."""
    path = named if named.exists() or named.suffix else locate(named)
    card = path.with_suffix(".toml")
    if path.suffix != ".safetensors" or not card.exists():
        if path.exists():
            yield path
        return
    yield from (path, card)
    estimate = read_toml(card).get("estimate")
    if isinstance(estimate, dict):
        # A sampler's table names it, or it lies where it was trained.
        estimate = estimate.get("weights", "estimate/best.safetensors")
    if isinstance(estimate, str):
        nearby = path.parent / estimate
        other = nearby if nearby.exists() else locate(estimate)
        if other.exists() and other != path:
            yield from (other, other.with_suffix(".toml"))


def save_weights(
    network: nn.Module,
    path: Path | str,
    *,
    kind: str,
    config: Any,
    notes: Mapping[str, Any] | None = None,
    half: bool = False,
) -> Path:
    """Write a network's weights, with a model card next to them."""
    state, trained = network.state_dict(), {name for name, _ in network.named_parameters()}
    # Biases and scalars stay exact: they cost nothing.
    halved = {name for name in trained if half and state[name].ndim > 1}
    state = {name: x.half() if name in halved else x for name, x in state.items()}
    return save_tensors(state, path, kind=kind, config=config, notes=notes)


def save_tensors(
    state: Mapping[str, Tensor],
    path: Path | str,
    *,
    kind: str,
    config: Any,
    notes: Mapping[str, Any] | None = None,
) -> Path:
    from safetensors.torch import save_file

    path = Path(path)
    if path.suffix != ".safetensors":
        text = f"the weights' name is {path.name}; it must end in .safetensors"
        raise InputError(text, code="value.invalid")
    state = {name: x.detach().cpu().contiguous().clone() for name, x in state.items()}
    table = {"kind": kind, "network": to_toml_table(config), **(notes or {})}
    with atomic_write(path) as partial:
        save_file(state, partial, metadata={"kind": kind})
    with atomic_write(path.with_suffix(".toml")) as partial:
        partial.write_text(toml_text(table), encoding="utf-8")
    return path


def read_card(path: Path | str, kinds: Collection[str]) -> dict[str, Any]:
    path = Path(path)
    if path.suffix != ".safetensors":
        message = f"{path} may run code; use weights in a .safetensors file"
        raise InputError(message, code="file.format")
    if not path.exists():
        raise InputError(f"there are no weights at {path}; train them", code="file.missing")
    card = read_toml(path.with_suffix(".toml"))
    if card.get("kind") not in kinds or not isinstance(card.get("network"), dict):
        message = f"{path} is of kind {card.get('kind')!r}, not {' or '.join(kinds)}"
        raise InputError(message, code="weights.mismatch")
    return card


def load_weights(network: nn.Module, path: Path | str) -> None:
    """Load a weights file into a network; every name and shape must agree."""
    load_tensors(network, read_tensors(path), path)


def load_tensors(network: nn.Module, found: Mapping[str, Tensor], path: Path | str) -> None:
    state = network.state_dict()
    missing, extra = sorted(set(state) - set(found)), sorted(set(found) - set(state))
    wrong = [k for k in state if k in found and state[k].shape != found[k].shape]
    if missing or extra or wrong:
        name = (missing + extra + wrong)[0]
        text = f"{path} has {len(missing)} weights missing, {len(extra)} unknown and {len(wrong)} "
        raise InputError(f"{text}of another shape (first {name})", code="weights.mismatch")
    with torch.no_grad():
        for key, value in state.items():
            value.copy_(found[key])


def read_tensors(path: Path | str) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    with reading(path, "safetensors", "give a weights file of this package"):
        return dict(load_file(path))


def read_pickled(path: Path | str, give: str) -> Any:
    """Read a .pt or .pth file; refuse pickled objects other than tensors and containers."""
    with reading(path, "a plain state dict", f"give {give}"):
        return torch.load(path, map_location="cpu", weights_only=True)
