"""Nested masks

The lines of k-space that each round of a scan measures. A round contains the lines of all
earlier rounds, so that continuing costs only the difference.
"""

from taskuq.measure import MaskConfig
from taskuq.report.figures import figures_from_record, save_figure

config = MaskConfig()
masks = {"masks": config.masks(64), "accelerations": config.accelerations}
[(_, figure)] = figures_from_record({"schema": "taskuq.masks/1", **masks})
save_figure(figure, "masks.svg")
