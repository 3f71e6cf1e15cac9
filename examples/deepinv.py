# %% [markdown]
# # Use a deepinv model
#
# [deepinv](https://deepinv.github.io) provides imaging systems (`physics`), denoisers, reconstructors and samplers. You
# can use any of its physics as the measurement and any of its models as the recovery. Install the `mri` and `deepinv`
# extras.
#
# Each scene contains one bright blob; only a random subset of the pixels is measured. deepinv's diffusion sampler DDRM
# fills in the other pixels, using a total-variation denoiser, which needs no training. The task is the area of the
# blob.

# %%
import deepinv
import matplotlib.pyplot as plt
import numpy as np
import torch

import taskuq as tq
from taskuq.deepinv import DeepinvMeasure, DeepinvRecover, calibrate

SIZE = 32
y, x = torch.meshgrid(*[torch.linspace(-0.5, 0.5, SIZE)] * 2, indexing="ij")


def scene(seed):
    low, high = (0.12, 0.12, -0.1, -0.1), (0.32, 0.32, 0.1, 0.1)
    a, b, dx, dy = np.random.default_rng(seed).uniform(low, high)
    return (((x - dx) / a) ** 2 + ((y - dy) / b) ** 2 < 1).float()


def area(images):
    return (images > 0.5).float().mean(dim=(1, 2))


order = torch.rand(1, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
noise = deepinv.physics.GaussianNoise(0.1, rng=torch.Generator())
shape = (1, SIZE, SIZE)
physics = {
    R: deepinv.physics.Inpainting(shape, mask=(order < 1 / R).float(), noise_model=noise)
    for R in (4, 2, 4 / 3)
}
denoiser = deepinv.models.TVDenoiser(n_it_max=20)
sampler = deepinv.sampling.DDRM(denoiser, sigmas=np.linspace(1, 0, 10), verbose=False)
scenes = [scene(k) for k in range(60)]

# %% [markdown]
# One call turns model, physics, images and task into a calibrated bound:

# %%
print(calibrate(sampler, physics[4], scenes, area, alpha=0.2, samples=8, together=8))

# %% [markdown]
# With several rounds, use a pipeline. Each round must contain the measurements of the previous round. Therefore the
# masks are thresholds of the same random array, and `DeepinvMeasure` derives the noise from `seed` and the image. For
# every case, round and sample, `DeepinvRecover` seeds the global generators that deepinv uses, and restores their state
# afterwards.

# %%
pipeline = tq.Pipeline(DeepinvMeasure(physics, seed=0), DeepinvRecover(sampler, together=8), area)
rounds = {"a quarter": 4, "a half": 2, "three quarters": 4 / 3}
table = pipeline.run(scenes, accelerations=rounds, samples=8, seed=0, progress=False)

# %% [markdown]
# | in deepinv | in taskuq |
# |---|---|
# | a `physics` for each round | `DeepinvMeasure({R: physics, ...}, seed=...)`; omit `seed` if there is no noise |
# | a sampler: DDRM, DiffPIR, posterior diffusion | `DeepinvRecover(model)`; `together=8` draws eight samples in one call |
# | a Markov chain: ULA, SKRock, `sampling_builder` | `DeepinvRecover(model, kind="chain")` |
# | a reconstructor: `physics.A_dagger`, a U-Net, an unrolled network | `DeepinvRecover(model, kind="point")`; use the score `ar` |
# | `model(y, physics)` | `DeepinvModel(recover)`, which wraps a taskuq network for MRI physics with column masks |

# %%
results = [tq.evaluate_exact(table, acceleration=name, alpha=0.2) for name in rounds]
tq.plot.widths(results, ax=plt.subplots(layout="constrained")[1])
