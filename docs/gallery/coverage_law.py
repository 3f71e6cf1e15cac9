"""Coverage against its exact law

Over random splits by case, the empirical coverage follows a known law for any data. The figure therefore
checks the code, not the assumption of exchangeability. Splits by patient have no such law.
"""

import taskuq as tq

table = tq.TaskOutputs.load("atlas-sampler")
found = tq.evaluate(table.outputs[1], table.targets, alpha=0.1, score="lwr", splits=2000, seed=0)
tq.plot.coverage_law(found).figure.savefig("coverage_law.svg")
