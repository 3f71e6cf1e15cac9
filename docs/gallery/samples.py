"""Widths against the number of samples

The figure shows the mean interval width against the number of posterior samples. The score `lwr` needs many samples,
because it relies on their spread. The score `mlwr`, which shrinks the spread towards a typical value, needs
fewer.
"""

import taskuq as tq

table = tq.TaskOutputs.load("atlas-sampler")
found = [
    tq.evaluate_exact(table.select(samples=p), acceleration=8, alpha=0.1, score=score)
    for score in ("lwr", "cqr", "mlwr")
    for p in (4, 8, 16, 32)
]
tq.plot.widths(found).figure.savefig("samples.svg")
