"""Coverage against its exact law

Over random splits of a table the empirical coverage follows a known law, whatever the data: the
picture checks the code, not the assumption. By patients there is no such law.
"""

import taskuq as tq
from taskuq.report.figures import save_figure
from taskuq.report.figures._evaluation import coverage_histogram
from taskuq.table import stored_table

table = stored_table("atlas-sampler")
result = tq.evaluate(
    table,
    acceleration=8,
    alpha=0.1,
    score="lwr",
    splits=2000,
    unit="case",
    seed=0,
)
save_figure(coverage_histogram(result.to_dict()), "coverage_law.svg")
