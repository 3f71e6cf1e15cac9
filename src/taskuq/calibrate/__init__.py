"""Outputs and targets in, a bound out: ranks, scores, guarantees. NumPy only."""

import sys

from taskuq.calibrate.bound import Bound, load_bound
from taskuq.calibrate.guarantee import Guarantee
from taskuq.calibrate.law import CoverageLaw, calibration_size
from taskuq.calibrate.learned import Learned
from taskuq.calibrate.mlwr import MLWR
from taskuq.calibrate.rank import conformal_quantile, coverage_rank
from taskuq.calibrate.scores import AR, CQR, LWR
from taskuq.calibrate.single import calibrate
from taskuq.verb import Verb

__all__ = [
    "AR",
    "CQR",
    "LWR",
    "MLWR",
    "Bound",
    "CoverageLaw",
    "Guarantee",
    "Learned",
    "calibrate",
    "calibration_size",
    "conformal_quantile",
    "coverage_rank",
    "load_bound",
]

sys.modules[__name__].__class__ = Verb
