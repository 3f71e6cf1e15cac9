"""One scan, stopping

The interval of one case after each round of a scan, the outputs on 32 posterior samples it comes from,
and the round at which the policy stops. With probability at least 0.9 the intervals of all rounds
contain the target, which is shown here and unknown to the policy.
"""

import numpy as np
from matplotlib.figure import Figure

import taskuq as tq

table = tq.TaskOutputs.load("atlas-sampler")
patients = np.unique(table.group)
calibration = table.select(cases=np.isin(table.group, patients[1:]))
policy = tq.plan(calibration, alpha=0.1, max_width=0.25, unit="group", policy="anytime")


def scan(case):
    """What the policy says about a case, round by round, until it stops."""
    said = []
    for k in range(table.rounds):
        said.append(policy.decide(round=k, outputs=table.outputs[: k + 1, case]))
        if said[-1].stop:
            break
    return said


# First case of the left-out patient that stops after the first round and before the end.
scans = {case: scan(case) for case in np.flatnonzero(table.group == patients[0])}
case, decisions = next((c, said) for c, said in scans.items() if said[-1].stop and len(said) > 2)

canvas = Figure(figsize=(6, 3.4), layout="constrained")
axes = canvas.add_subplot()
for k, decision in enumerate(decisions):
    outputs = table.outputs[k, case]
    axes.plot(np.full(len(outputs), k) - 0.12, outputs, "o", color="#0072B2", alpha=0.35, ms=4)
    low, high = np.ravel(decision.interval.lower)[0], np.ravel(decision.interval.upper)[0]
    colour = "#D55E00" if decision.stop else "#888888"
    axes.plot([k + 0.08] * 2, [low, high], color=colour, lw=6, solid_capstyle="butt")
    axes.annotate("stop" if decision.stop else "go on", (k + 0.16, (low + high) / 2), va="center")
axes.axhline(table.targets[case], color="black", lw=1, ls="--")
axes.annotate("truth", (-0.45, table.targets[case]), va="bottom")
axes.set_xticks(
    range(len(decisions)), [f"R = {R:g}" for R in table.accelerations[: len(decisions)]]
)
axes.set(xlim=(-0.5, len(decisions) - 0.4), ylim=(-0.02, 1.02), ylabel="task output")
canvas.savefig("one_scan.svg")
