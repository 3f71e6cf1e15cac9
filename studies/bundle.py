"""Copy a trained network into the package: its weights in float16 and its settings.

    python -m studies.bundle NAME FOLDER

FOLDER is the output of ``taskuq train``. The script prints the numbers of the model card, which is
written by hand (``NAME.md``): parameters, steps, and epoch and loss of the best weights.
"""

from __future__ import annotations

import sys
from pathlib import Path

from taskuq._config import read_toml
from taskuq.training._module import read_timing
from taskuq.training._networks import NETWORKS
from taskuq.training._weights import FOLDER, save_weights, shipped

# Samplers whose estimates are trained first, by the same command.
ESTIMATES = {"ct-sampler-chest": "ct-unrolled-chest"}


def bundle(name: str, folder: Path, into: Path = FOLDER) -> Path:
    """Write the best weights of a training run as a bundled network."""
    path = folder / "best.safetensors"
    card = read_toml(path.with_suffix(".toml"))
    network = NETWORKS[card["kind"]].load(path, card["network"])
    notes = {key: card[key] for key in card if key not in ("kind", "network")}
    if isinstance(notes.get("init_from"), str) and Path(notes["init_from"]).suffix:
        del notes["init_from"]  # a file that is not in the package
    if name in ESTIMATES:
        notes["estimate"] = {"weights": ESTIMATES[name]}
    done = save_weights(
        network, into / f"{name}.safetensors", kind=card["kind"], config=network.config,
        notes=notes, half=True,
    )  # fmt: skip
    timing = read_timing(folder)
    print(f"{done.name}: {done.stat().st_size / 1e6:.1f} MB")
    print(f"parameters {sum(p.numel() for p in network.parameters()):,}")
    print(f"steps {timing['steps']:,} of {timing['batch']} slices, epochs {timing['epochs']}")
    print(f"kept {card['reached']}")
    return done


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in shipped():
        sys.exit(f"python -m studies.bundle NAME FOLDER, with NAME of {', '.join(shipped())}")
    bundle(sys.argv[1], Path(sys.argv[2]))
