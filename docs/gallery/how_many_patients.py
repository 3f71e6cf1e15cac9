"""Calibration units for a tolerance of coverage

The figure shows how many exchangeable calibration units keep the coverage of *one* calibration set near
its target. The guarantee is an average over calibration sets and holds for any number of units.
"""

import taskuq as tq

tq.plot.calibration_sizes(alpha=0.1, delta=0.05).figure.savefig("how_many_patients.svg")
