"""Calibration units needed for a given tolerance of coverage

For a given calibration set, coverage may differ from 1 - α. The figure shows how many exchangeable calibration
units keep this difference within a tolerance for 95 % of calibration sets. The guarantee, an average over
calibration sets, holds for any number of units.
"""

import taskuq as tq

tq.plot.calibration_sizes(alpha=0.1, delta=0.05).figure.savefig("how_many_patients.svg")
