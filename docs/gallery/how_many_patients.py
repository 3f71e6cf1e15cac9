"""Calibration units for a tolerance of coverage

Number of exchangeable calibration units that keep the coverage of *one* calibration set near its
target. The guarantee, an average over calibration sets, holds for any number.
"""

import taskuq as tq
from taskuq.report.figures import figures_from_record, save_figure

sizes = [
    (e, tq.calibration_size(0.1, e, 0.05), tq.calibration_size(0.1, e, 0.05, two_sided=False))
    for e in (0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05)
]
record = {"schema": "taskuq.plan-size/1", "alpha": 0.1, "delta": 0.05, "sizes": sizes, "have": None}
[(_, figure)] = figures_from_record(record)
save_figure(figure, "how_many_patients.svg")
