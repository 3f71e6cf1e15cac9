"""Tiny data and tiny networks: an epoch takes a blink."""

import numpy as np
import pytest
from volumes import save_npz

from taskuq.data._arrays import ArrayDataset

TOML = """
[network]
{network}

[training]
epochs = {epochs}
batch = {batch}
learning_rate = 1e-2
schedule = "cosine"
clip_norm = 1.0

[data]
kind = "npz"
path = "{path}"
coils = {coils}
validation_fraction = 0.25

[measure]
accelerations = [4, 2]
published = false
"""
FLOW = "coils = 2\nunet_width = 4\nunet_pools = 2\ncondition_channels = 4\nsteps_per_layer = 2\n"
NETWORKS = {
    "flow": f"{FLOW}normalise = true",
    "flow-mean": f"{FLOW}normalise = true\nrotate_coils = true\nmean_passes = 2\n"
    "fill = 'residual'\n"
    "[pretrain]\nepochs = 2\nbatch = 4\n[augment]\nrotation = 5",
    "varnet": "cascades = 2\nwidth = 4\npools = 2\nsensitivity_width = 4\nsensitivity_pools = 2",
    "varnet-any": "cascades = 2\nwidth = 4\npools = 2\nsensitivity_pools = 2\n"
    "[augment]\nrotation = 5\n[randomise]\ncoils = [2, 3]",
    "sampler": "width = 4\ndecoder_channels = [4, 4]\n[estimate]\nfolds = 2\n[estimate.network]\n"
    "cascades = 1\nwidth = 2\npools = 2\nsensitivity_width = 2\nsensitivity_pools = 2\n"
    "[estimate.training]\nepochs = 1\nbatch = 2\n[augment]\nrotation = 5",
}


@pytest.fixture
def configure(tmp_path):
    """Write a configuration of a small training on smooth random images."""

    def write(
        kind: str, epochs: int = 3, cases: int = 16, batch: int = 4, **training: float
    ) -> str:
        rng = np.random.default_rng(0)
        coarse = rng.random((cases, 4, 4)).astype(np.float32)
        images = np.kron(coarse, np.ones((4, 4), dtype=np.float32))
        groups = np.arange(cases) // 2
        data = ArrayDataset(images, label=np.zeros(cases, dtype=int), group=groups)
        path = save_npz(data, tmp_path / "images.npz")
        coils = 0 if "randomise" in NETWORKS[kind] else 2  # scans bring their own
        text = TOML.format(
            network=NETWORKS[kind], epochs=epochs, batch=batch, path=path, coils=coils
        )
        more = "".join(f"{name} = {value}\n" for name, value in training.items())
        text = text.replace("[training]\n", f"[training]\n{more}")
        config = tmp_path / f"{kind}-{epochs}-{batch}.toml"
        config.write_text(text)
        return str(config)

    return write
