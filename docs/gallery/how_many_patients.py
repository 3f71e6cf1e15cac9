"""How many patients?

How many exchangeable calibration units keep the coverage of *one* calibration set near its target.
The promise on average over calibration sets holds for any number; this is what one set may be off by.
"""

from taskuq.report.figures import save_figure
from taskuq.report.figures._imaging import calibration_sizes, planner_figure

save_figure(planner_figure(calibration_sizes(alpha=0.1, delta=0.05)), "how_many_patients.svg")
