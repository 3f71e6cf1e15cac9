"""Coverage against its exact law

The figure compares the empirical coverage in 2000 random splits by case with its exact law. This law holds
for any data, so the figure checks the code, not the assumption of exchangeability.
"""

import taskuq as tq

table = tq.TaskOutputs.load("atlas-sampler")
found = tq.evaluate(table.outputs[1], table.targets, alpha=0.1, score="lwr", splits=2000, seed=0)
tq.plot.coverage_law(found).figure.savefig("coverage_law.svg")
