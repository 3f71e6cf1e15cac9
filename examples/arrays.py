# %% [markdown]
# # Arrays in five minutes
#
# You have already computed the task on reconstructed images (outputs) and on true images (targets). You need only NumPy.

# %%
import numpy as np

import taskuq as tq

rng = np.random.default_rng(0)
targets = rng.random(500)  # z = f(true image), (case,)
outputs = targets[:, None] + 0.1 * rng.standard_normal((500, 32))  # f on samples, (case, sample)

bound = tq.calibrate(outputs[:400], targets[:400], alpha=0.05)
print(bound)  # quantile and guarantee

# %% [markdown]
# A bound returns one interval per new case. It unpacks, converts to an array and a data frame, and saves as JSON.
# For point estimates, pass outputs of shape `(case,)` or `(case, 1)`. Torch tensors, frames of pandas and polars
# (matched by their index or a column `case`), arrays of xarray, CSV, Parquet and `.npz` files work too.

# %%
interval = bound.predict(outputs[400:])
lower, upper = interval
print(interval[:3], np.asarray(interval).shape)
bound.save("bound.json")

# %% [markdown]
# **Several cases per patient.** Pass the patient of each case, and the guarantee is for new patients:

# %%
patient = np.repeat(np.arange(100), 5)
print(tq.calibrate(outputs, targets, alpha=0.1, group=patient))

# %% [markdown]
# **Performance on your data.** Mean and standard deviation of coverage and width over *all* splits into calibration
# and test cases, in closed form; then rank histograms, CRPS and the ratio of spread to error of the samples:

# %%
print(tq.evaluate_exact(outputs, targets, alpha=0.05, score="mlwr"))
print(tq.diagnose(outputs, targets))

# %% [markdown]
# Every figure of a report is a function that draws results on your axes and returns them:

# %%
tq.plot.intervals(interval[:40], targets[400:440])
