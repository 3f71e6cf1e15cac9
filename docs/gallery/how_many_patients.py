"""Calibration units for a tolerance of coverage

The figure shows how many exchangeable calibration units keep the coverage given *one* calibration set within
a tolerance of its target, for 95 % of calibration sets. The guarantee, an average over calibration sets,
holds for any number of units.
"""

import taskuq as tq

tq.plot.calibration_sizes(alpha=0.1, delta=0.05).figure.savefig("how_many_patients.svg")
