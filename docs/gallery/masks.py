"""Nested masks

The figure shows the lines of k-space that each round of a scan measures. A round contains the lines of
all earlier rounds, so that continuing a scan costs only the additional lines.
"""

import taskuq as tq
from taskuq.measure import MaskConfig

config = MaskConfig()
tq.plot.masks(config.masks(64), config.accelerations).figure.savefig("masks.svg")
