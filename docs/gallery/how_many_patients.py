"""Calibration units for a tolerance of coverage

Number of exchangeable calibration units that keep the coverage of *one* calibration set near its
target. The guarantee, an average over calibration sets, holds for any number.
"""

import taskuq as tq

tq.plot.calibration_sizes(alpha=0.1, delta=0.05).figure.savefig("how_many_patients.svg")
