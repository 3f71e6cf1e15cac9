"""Coverage against its exact law

Over random splits of a table the empirical coverage follows a known law for any data: the figure
checks the code, not the assumption. Splits by patient have no such law.
"""

from taskuq.conformal import EvaluationGrid, evaluate_table
from taskuq.report.figures import figures_from_record, save_figure
from taskuq.table import TaskOutputs

record = evaluate_table(
    TaskOutputs.load("atlas-sampler"),
    EvaluationGrid(scores=("lwr",), alpha=0.1, accelerations=(8,), splits=2000, unit="case"),
)
figures = {figure.name: figure for _, figure in figures_from_record(record.to_dict())}
save_figure(figures["coverage-R8-lwr"], "coverage_law.svg")
