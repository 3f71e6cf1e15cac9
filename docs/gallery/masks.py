"""Nested masks

The lines of k-space that each round of a scan measures. A round keeps what the rounds before it
measured, so that going on costs only the difference.
"""

from taskuq.measure import MaskConfig
from taskuq.report.figures import save_figure
from taskuq.report.figures._imaging import masks_figure

config = MaskConfig()
save_figure(masks_figure(config.masks(64), config.accelerations), "masks.svg")
