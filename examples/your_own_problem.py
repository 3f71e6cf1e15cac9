# %% [markdown]
# # Solve your own problem
#
# A camera takes blurred, noisy frames of a scene with one bright blob. How large is the blob, and how many frames do
# you need to measure it? This tutorial needs only NumPy.
#
# Provide images and three functions: `measure` (h) returns the measurement of a round, `recover` (g) draws images that
# agree with the measurement, and `task` (f) computes a number from an image. If a measurement has an attribute
# `preview`, the report's explorer shows that image.

# %%
from types import SimpleNamespace

import numpy as np

import taskuq as tq

SIZE, FULL, NOISE = 32, 64, 0.6  # pixels of a side, frames of a full exposure, noise of a frame
fy, fx = np.fft.fftfreq(SIZE)[:, None], np.fft.fftfreq(SIZE)
BLUR = np.exp(-40 * (fx**2 + fy**2))  # transfer function of the lens
POWER = 60 / (1 + (30 * np.hypot(fx, fy)) ** 4)  # assumed power spectrum of scenes


def scene(rng):  # x: a bright ellipse
    y, x = np.mgrid[:SIZE, :SIZE] / SIZE - 0.5
    a, b, turn = *rng.uniform(0.1, 0.3, 2), rng.uniform(0, np.pi)
    u, v = np.cos(turn) * x + np.sin(turn) * y, np.cos(turn) * y - np.sin(turn) * x
    return 1 / (1 + np.exp(30 * (np.hypot(u / a, v / b) - 1) * min(a, b)))


def measure(image, acceleration):  # y = h(x): the mean of the first frames
    rng = np.random.default_rng(np.frombuffer(image.tobytes(), np.uint32))
    noise = NOISE * rng.standard_normal((round(FULL / acceleration), SIZE, SIZE))
    seen = np.fft.ifft2(BLUR * np.fft.fft2(image)).real + noise.mean(axis=0)
    return SimpleNamespace(preview=seen, frames=len(noise))


def recover(measurement, *, samples, seed):  # x̂ = g(y, v): as if scenes were Gaussian fields
    gain = POWER * BLUR / (POWER * BLUR**2 + NOISE**2 / measurement.frames)
    white = np.random.default_rng(seed).standard_normal((samples, SIZE, SIZE))
    spread = np.sqrt(POWER * (1 - gain * BLUR)) * np.fft.fft2(white)
    return np.fft.ifft2(gain * np.fft.fft2(measurement.preview) + spread).real


def task(images):  # z = f(x): the bright fraction of the image
    return (images > 0.5).mean(axis=(1, 2))


scenes = [scene(np.random.default_rng(k)) for k in range(300)]
frames = {"1 frame": 1, "2 frames": 2, "4 frames": 4, "8 frames": 8}
names = {"case": "scene", "estimate": "blurred", "measurement": "frame", "reference": "sharp"}
about = {"task_names": ["area"], "task_range": (0, 1), "terminology": names, "progress": False}
rounds = {"costs": frames, "full_cost": FULL, "samples": 16, "seed": 0}
pipeline = tq.Pipeline(measure, recover, task)
table = pipeline.run(scenes, **rounds, **about, store="blobs", keep_images=12)
tq.make_report(table, "report", alpha=0.1, max_width=0.04, splits=50, title="Area of a blob")

# %% [markdown]
# Open `report/report.html`. It shows the guarantee, the widths after 1, 2, 4 and 8 frames, the number of frames that
# each policy needs, and an explorer of 12 scenes. While the camera is running, call the policy after each round, here
# after the first frame of a new scene:

# %%
policy = tq.load_policy("report/policy.json")
new = recover(measure(scene(np.random.default_rng(1000)), FULL), samples=16, seed=0)
print(policy.decide(round=0, outputs=task(new)[None]).reason)

# %% [markdown]
# - **Each round contains the previous round.** `measure` derives the seed of its noise from the image, so that every call
#   returns the same frames.
# - **Accelerations are cost ratios.** With `costs` and `full_cost` you give costs in frames, views or seconds. A scan
#   that does not stop early ends with the full measurement, which you define and which yields the target itself.
# - **The samples need not be accurate.** Here they come from a Gaussian field, although a blob is not one. The intervals
#   are still valid; better samples make them shorter.
# - **Scenes must be exchangeable.** If several scenes come from one film, pass the film as `group=`; the guarantee is
#   then for a new film.
# - **Anything can be an image**: signals, volumes, tensors.

# %%
results = [tq.evaluate_exact(table, acceleration=name, alpha=0.1) for name in frames]
tq.plot.widths(results)
