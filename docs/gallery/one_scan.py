"""One scan, stopping

The figure shows the interval of one case after each round of a scan, the outputs on the 32 posterior
samples, and the round in which the policy stops. With probability at least 0.9, the intervals of all rounds
contain the target. The figure also shows the target, which is unknown to the policy.
"""

import taskuq as tq

table = tq.TaskOutputs.load("atlas-sampler")
left_out = table.group == table.group[0]
policy = tq.plan(table.select(cases=~left_out), alpha=0.1, max_width=0.25, policy="anytime")
new = table.select(cases=left_out)
case = 1


class Replay:
    """Scanner that repeats the stored outputs of a case."""

    def measure(self, round):
        return new.outputs[round, case]


scan = tq.acquire(
    policy, Replay(), recover=lambda rounds, *, samples, seed: rounds[-1],
    task=lambda outputs: outputs, samples=table.samples, seed=0,
)  # fmt: skip
tq.plot.scan(scan, new.targets[case]).figure.savefig("one_scan.svg")
