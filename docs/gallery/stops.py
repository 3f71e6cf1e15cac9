"""When scans stop

Fraction of cases that each policy stops after each round; R = 1 is a full scan. The paper's policy has no
guarantee for the interval at the stop, and a fixed-width policy has one. An anytime policy guarantees the
intervals of all rounds jointly, so its scans take longer.
"""

import taskuq as tq

table = tq.TaskOutputs.load("atlas-sampler")
policies = ["paper:lwr", "fixed-width", "anytime"]
results = tq.simulate(table, policies, alpha=0.1, max_width=0.2, splits=100, seed=0)
tq.plot.stops(results).figure.savefig("stops.svg")
