# %% [markdown]
# # Stop a scan
#
# Calibrate a policy once, on a table of earlier patients. After each round of a scan, the policy decides whether to
# stop. The bundled table contains lesion probabilities for 2160 slices of 270 synthetic patients at R = 16, 8, 4 and 2.
# In this example, one patient is left out of the calibration and scanned.

# %%
import numpy as np

import taskuq as tq

table = tq.TaskOutputs.load("atlas-sampler")
new = table.select(group=table.group[0])
earlier = table.select(cases=table.group != table.group[0])
policy = tq.plan(earlier, alpha=0.1, max_width=0.25, policy="anytime")
print(policy)

# %% [markdown]
# `tq.acquire` runs the loop on any object with a method `measure(round)`. Here the scanner replays the outputs of a
# stored slice, so recovery and task only pass them on. With `state=`, a scan can resume after a power cut, and an audit
# log records every decision. A fault never stops a scan early.


# %%
class Replay:
    def __init__(self, case):
        self.case = case

    def measure(self, round):
        return new.outputs[round, self.case] if round < new.rounds else new.targets[[self.case]]


def scan(case):
    return tq.acquire(
        policy,
        Replay(case),
        recover=lambda rounds, *, samples, seed: rounds[-1],
        task=lambda outputs: outputs,
        samples=table.samples,
        seed=0,
    )


scans = [scan(case) for case in range(new.cases)]
print([one.acceleration for one in scans])
print(scans[-1])

# %% [markdown]
# Before you use a policy, simulate it on your table: how much faster are scans, and how often does the reported interval
# contain the target? An anytime policy covers the target in all rounds jointly. A fixed-width policy covers it when the
# scan stops, and stops earlier.

# %%
for found in tq.simulate(
    table, ["fixed-width", "anytime"], alpha=0.1, max_width=0.25, splits=20, seed=0
):
    print(f"{found.policy}: mean R {found.mean_acceleration:.2f}, coverage {found.coverage:.3f}")

# %% [markdown]
# A monitor tests whether new patients are exchangeable with the calibration patients, and withdraws the guarantee after
# an alarm. The figure shows one of the scans that stopped early, with its samples, intervals and truth:

# %%
monitor = tq.Monitor(policy)
monitor.update(np.swapaxes(new.outputs, 0, 1))
early = [k for k, one in enumerate(scans) if one.acceleration > 1]
case = max(early, key=lambda k: len(scans[k].rounds))
tq.plot.scan(scans[case], new.targets[case])
