"""Widths against acceleration

More measurements give narrower intervals, by an amount that depends on the score. Mean and standard
deviation are over all splits of the table's cases, in closed form.
"""

from taskuq.conformal import EvaluationGrid, evaluate_table
from taskuq.report.figures import figures_from_record, save_figure
from taskuq.table import TaskOutputs

scores = ("ar", "lwr", "cqr", "mlwr", "learned")
record = evaluate_table(
    TaskOutputs.load("atlas-sampler"),
    EvaluationGrid(scores=scores, alpha=0.1, splits=None, unit="case"),
)
figures = {figure.name: figure for _, figure in figures_from_record(record.to_dict())}
save_figure(figures["width-against-acceleration"], "widths.svg")
