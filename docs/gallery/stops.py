"""When scans stop

Fraction of cases that each policy stops after each round; R = 1 is a full scan. The paper's policy has no
guarantee for the interval at the stop, a fixed-width policy does, and an anytime policy guarantees the
intervals of all rounds jointly, which takes longer scans.
"""

import taskuq as tq
from taskuq.report.figures import figures_from_record, save_figure

table = tq.TaskOutputs.load("atlas-sampler")
policies = ["paper:lwr", "fixed-width", "anytime"]
results = tq.simulate(table, policies, alpha=0.1, max_width=0.2, splits=100, seed=0, unit="case")
rows = [{"samples": table.samples, **result.to_dict()} for result in results]
record = {"schema": "taskuq.simulate/1", "results": rows}
figures = {figure.name: figure for _, figure in figures_from_record(record)}
save_figure(figures["accepted-by-acceleration"], "stops.svg")
