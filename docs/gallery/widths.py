"""Widths against acceleration

The figure shows the mean interval width of five scores in each round of a scan. Its mean and standard
deviation over all splits of the table's cases are computed in closed form.
"""

import taskuq as tq

table = tq.TaskOutputs.load("atlas-sampler")
found = [
    tq.evaluate_exact(table, acceleration=R, alpha=0.1, score=score)
    for score in ("ar", "lwr", "cqr", "mlwr", "learned")
    for R in table.accelerations
]
tq.plot.widths(found).figure.savefig("widths.svg")
