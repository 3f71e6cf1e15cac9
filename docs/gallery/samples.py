"""Widths against the number of samples

Mean width against the number of posterior samples: `lwr` needs many, since it relies on their spread;
`mlwr` shrinks the spread towards a typical value and needs about four.
"""

from taskuq.conformal import EvaluationGrid, evaluate_table
from taskuq.report.figures import figures_from_record, save_figure
from taskuq.table import TaskOutputs

question = EvaluationGrid(
    scores=("lwr", "cqr", "mlwr"), alpha=0.1, accelerations=(8,), samples=(4, 8, 16, 32), splits=None,
    unit="case",
)  # fmt: skip
record = evaluate_table(TaskOutputs.load("atlas-sampler"), question)
figures = {figure.name: figure for _, figure in figures_from_record(record.to_dict())}
save_figure(figures["width-against-samples"], "samples.svg")
