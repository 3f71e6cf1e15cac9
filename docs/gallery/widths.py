"""Widths against acceleration

The more is measured, the narrower the intervals; how narrow depends on the score. Mean and standard
deviation are over all splits of the table's cases, in closed form: nothing is drawn at random.
"""

from taskuq.conformal import EvaluationGrid, evaluate_table
from taskuq.report.figures import draw, figures_of
from taskuq.table import stored_table

scores = ("ar", "lwr", "cqr", "mlwr", "learned")
record = evaluate_table(
    stored_table("atlas-sampler"),
    EvaluationGrid(scores=scores, alpha=0.1, splits=None, unit="case"),
)
figures = {figure.name: figure for _, figure in figures_of(record.to_dict())}
draw(figures["width-against-acceleration"], "widths.svg")
