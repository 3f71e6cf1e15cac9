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
# A bound returns one interval for each new case. You can unpack the intervals, convert them to an array or a data frame,
# and save the bound as JSON. For point estimates, pass outputs of shape `(case,)` or `(case, 1)`. Torch tensors, pandas
# and polars frames (matched by index or a column `case`), xarray arrays, and CSV, Parquet and `.npz` files work too.

# %%
interval = bound.predict(outputs[400:])
lower, upper = interval
print(interval[:3], np.asarray(interval).shape)
bound.save("bound.json")

# %% [markdown]
# **Several cases per patient.** If you pass the patient of each case, the guarantee is for new patients:

# %%
patient = np.repeat(np.arange(100), 5)
print(tq.calibrate(outputs, targets, alpha=0.1, group=patient))

# %% [markdown]
# **Performance on your data.** This code first prints the mean and standard deviation of coverage and width over *all*
# splits into calibration and test cases, computed in closed form. It then prints, for the samples, the rank histogram,
# the CRPS and the ratio of spread to error:

# %%
print(tq.evaluate_exact(outputs, targets, alpha=0.05, score="mlwr"))
print(tq.diagnose(outputs, targets))

# %% [markdown]
# **From other libraries.** `taskuq.sklearn.SampleConformalRegressor` works in scikit-learn's `cross_val_score`, and
# `taskuq.sklearn.wrap(forest)` takes the trees of a fitted forest as samples. `tq.TaskOutputs.from_posterior` reads
# posterior samples of `sbi`. `table.to_xarray()` and `table.to_arviz()` convert tables, and `tq.TaskOutputs.load` reads
# both. `taskuq.metrics` contains torchmetrics for Lightning modules.
#
# Every figure of a report has a function that draws it on your axes and returns the axes:

# %%
tq.plot.intervals(interval[:40], targets[400:440])
