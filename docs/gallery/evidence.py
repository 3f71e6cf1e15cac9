"""Evidence against exchangeability

A monitor tests whether new units are exchangeable with the calibration units. Here the scanner drifts after
60 cases. The evidence then grows, and the monitor raises an alarm when the evidence reaches the threshold.
"""

import taskuq as tq
from taskuq.table import SyntheticTable, synthetic_outputs

table = synthetic_outputs(SyntheticTable(), seed=0)
cases = tq.TaskOutputs(table.outputs, table.targets, table.accelerations, task_range=(0, 1))
policy = tq.plan(cases, alpha=0.1, max_width=0.2)
monitor = tq.Monitor(policy, delta=0.05)
new = synthetic_outputs(SyntheticTable(), seed=1)
for k in range(150):
    outputs = new.outputs[:, k]
    drifted = 0.3 + 0.5 * outputs  # all outputs move to the middle
    monitor.update(outputs if k < 60 else drifted, unit=f"scan {k}")
tq.plot.evidence(monitor).figure.savefig("evidence.svg")
