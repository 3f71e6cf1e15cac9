"""When scans stop

What share of cases each rule lets go after each round; R = 1 is a full scan. The paper's rule
promises nothing for the interval at the stop, a fixed-width policy does, and an anytime policy promises the
intervals of all rounds at once, which takes longer scans.
"""

import numpy as np

from taskuq.policy import Goal, PolicySpec, simulate
from taskuq.report.figures import draw
from taskuq.report.figures._policy import accepted
from taskuq.table import stored_table

goal = Goal(max_width=0.2)
plans = [
    PolicySpec("paper", 0.1, goal, score="lwr"),
    PolicySpec("fixed-width", 0.1, goal),
    PolicySpec("anytime", 0.1, goal),
]
found = simulate(
    stored_table("atlas-sampler"), plans, trials=100, rng=np.random.default_rng(0), unit="case"
)
stops = {plan.kind: result.to_dict()["stops"] for plan, result in zip(plans, found, strict=True)}
draw(accepted(stops), "stops.svg")
