# %% [markdown]
# # Calibrate three tasks from a data frame
#
# If your task outputs come from another program, put them in a data frame. Every function that takes a table also takes
# a pandas or polars frame or an Arrow table. In this synthetic example, three numbers were computed from every
# reconstructed slice: the probability of a nodule, its area in mm², and the mean density of the lung in Hounsfield
# units. Each row belongs to one slice, round and task, and contains eight samples.

# %%
import numpy as np
import pandas as pd

import taskuq as tq

rng = np.random.default_rng(0)
patients, slices = 80, 4
case = [f"patient {p} slice {s}" for p in range(patients) for s in range(slices)]
patient = np.repeat(np.arange(patients), slices)
habit = rng.standard_normal((3, patients))[:, patient]  # slices of a patient are similar
own = habit + 0.5 * rng.standard_normal(habit.shape)
truth = {
    "nodule": 1 / (1 + np.exp(-2 * own[0])),
    "area": np.exp(4 + 0.5 * own[1]),
    "density": -800 + 40 * own[2],
}
error = {"nodule": 0.1, "area": 10.0, "density": 15.0}
lowest, highest = {"nodule": 0, "area": 0}, {"nodule": 1}
frames = []
for views, noise in ((12, 1.0), (24, 0.6), (48, 0.3)):
    for task, target in truth.items():
        hard = error[task] * noise * rng.gamma(4, 0.25, (len(case), 1))  # some slices are harder
        samples = target[:, None] + hard * (
            rng.standard_normal((len(case), 1)) + rng.standard_normal((len(case), 8))
        )
        samples = samples.clip(lowest.get(task), highest.get(task))
        frame = pd.DataFrame(samples, columns=[f"output_{j}" for j in range(8)])
        ids = {"case": case, "group": patient, "round": f"{views} views", "task": task}
        frames.append(frame.assign(**ids, acceleration=192 / views, target=target))
rows = pd.concat(frames)
print(rows.head(2).round(3).T)

# %% [markdown]
# `bound` covers the area alone; the intervals of `joint` cover all three targets jointly. The column `group` contains
# the patient, so both guarantees are for a new patient.

# %%
table = tq.TaskOutputs.load(rows, task_range={"nodule": (0, 1), "area": (0, np.inf)})
print(table)
bound = tq.calibrate(table, acceleration="24 views", task="area", alpha=0.1)
joint = tq.calibrate_joint(table, acceleration="24 views", alpha=0.1)
print(joint)

# %% [markdown]
# Each task has its own width limit. A scan stops when all intervals are narrow enough:

# %%
widths = {"nodule": 0.4, "area": 40, "density": 60}
policy = tq.plan(table, alpha=0.1, max_width=widths)
first = table.select(group=7).outputs[:1, 0] + 1e-3  # first round of a slice, (round, sample, task)
print(policy.decide(round=0, outputs=first).reason)
simulated = tq.simulate(
    table, ["fixed-width", "anytime"], alpha=0.1, max_width=widths, splits=20, seed=0
)

# %% [markdown]
# | column | content |
# |---|---|
# | `case` | identifier: a number or a string |
# | `target` | output of the task on the true image; omit it if unknown, as for new cases |
# | `output_0`, `output_1`, … | outputs, one column for each sample (`output` for a point estimate); or one row for each sample, with columns `sample` and `output` |
# | `acceleration`, `round` | full cost divided by the round's cost, and the name of the round; omit both if there is only one round |
# | `task` | name of the task; omit it if there is only one task |
# | `group`, `site`, `label` | patient, hospital and class; optional |
#
# A case that lacks a round or a task is omitted and listed in `table.missing_cases`. Two rows for the same case,
# round and task raise an error. The command line reads the same columns: `rows.to_parquet("outputs.parquet")`, then
# `taskuq report outputs.parquet --alpha 0.1 --max-width nodule=0.4,area=40,density=60 -o report`.

# %%
tq.plot.stops(simulated)
