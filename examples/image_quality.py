# %% [markdown]
# # Stop when the image is good enough
#
# Sometimes the image itself is the result: for example, you want to stop the scan when the PSNR is at least 38 dB. The
# true image is unknown during a scan, but posterior samples can replace it. Let $\tilde x^{(j)}$ be the samples and
# $\hat x$ their mean, which you report. Image quality $m$ is then a task like any other, except that its target $z$
# depends on the round:
#
# $$
# \hat z^{(j)} = m(\hat x, \tilde x^{(j)}), \qquad z = m(\hat x, x).
# $$
#
# In this example, patients are random fields with little or much detail, and rounds measure nested columns of k-space.
# The sampler keeps the measured columns, estimates the amount of detail from them, and draws the other columns.

# %%
import numpy as np

import taskuq as tq
from taskuq.measure import nested_masks
from taskuq.task import PSNR, ImageQuality

SIZE, RATES = 48, (8, 4, 2)
MASKS = nested_masks(SIZE, RATES, seed=0)
f = np.fft.fftshift(np.fft.fftfreq(SIZE, 1 / SIZE))
SPREAD = 40 / (1 + (np.hypot(f, f[:, None]) / 3) ** 2)  # standard deviation of k-space


def transform(images):
    return np.fft.fftshift(np.fft.fft2(images, norm="ortho"), axes=(-2, -1))


def inverse(kspace):
    return np.fft.ifft2(np.fft.ifftshift(kspace, axes=(-2, -1)), norm="ortho")


def field(rng, *shape):
    parts = rng.standard_normal((2, *shape, SIZE, SIZE))
    return SPREAD * (parts[0] + 1j * parts[1]) / 2**0.5


def measure(image, acceleration):  # y = h(x)
    mask = MASKS[RATES.index(acceleration)]
    return mask, np.where(mask, transform(image), 0)


def recover(measurement, *, samples, seed):  # magnitudes of samples, g(y, v)
    mask, kspace = measurement
    detail = np.median(abs(kspace / SPREAD)[:, mask]) / np.log(2) ** 0.5
    drawn = detail * field(np.random.default_rng(seed), samples)
    return abs(inverse(np.where(mask, kspace, drawn)))


rng = np.random.default_rng(1)
patients = np.repeat(np.arange(60), 2)
detail = rng.uniform(0.3, 1.2, 60)[patients, None, None]
images = inverse(100 * SIZE * (np.hypot(f, f[:, None]) == 0) + detail * field(rng, 120))
table = tq.Pipeline(measure, recover, PSNR()).run(
    images, accelerations=RATES, samples=16, seed=0, group=patients, progress=False
)
print(table.targets.shape, np.median(table.targets, axis=1).round(1))

# %% [markdown]
# Calibrate a policy with a level goal. With `at_least`, a scan stops when the lower bound of its PSNR exceeds the level.
# For distances such as NMSE, LPIPS and DISTS, use `at_most`. The guarantee is for new patients: a random slice of a new
# patient has the reported quality with probability at least 0.9. `paper` is the rule of the authors' second paper, which
# calibrates each round separately.

# %%
goal = {"alpha": 0.1, "at_least": 38}
policy = tq.plan(table, **goal)
results = tq.simulate(table, policies=["fixed-width", "paper:cqr"], splits=100, seed=0, **goal)
for found in results:
    R, coverage = found.mean_acceleration, found.coverage
    print(f"{found.policy}: mean R {R:.2f}, coverage {coverage:.3f}, guaranteed {found.guaranteed}")

# %% [markdown]
# Other metrics are `SSIM`, `NMSE`, `LPIPS` and `DISTS` (`[task] kind` in a configuration; the last two need
# `pip install 'taskuq[perceptual]'` and a file of VGG-16 weights), and any function of two images:

# %%
worst = ImageQuality(lambda reported, image: float(abs(reported - image).max()), "largest error")
print(worst(recover(measure(images[0], 8), samples=4, seed=0)).shape)
tq.plot.stops(results)
