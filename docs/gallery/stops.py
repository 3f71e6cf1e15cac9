"""When scans stop

The bars show the fraction of cases that each policy stops after each round; R = 1 is a full scan. A
fixed-width policy has a guarantee for the reported interval, and the paper's policy has none. An anytime
policy guarantees the intervals of all rounds jointly, so its scans take longer.
"""

import taskuq as tq

table = tq.TaskOutputs.load("atlas-sampler")
policies = ["paper:lwr", "fixed-width", "anytime"]
results = tq.simulate(table, policies, alpha=0.1, max_width=0.2, splits=100, seed=0)
tq.plot.stops(results).figure.savefig("stops.svg")
