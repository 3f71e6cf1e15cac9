"""Conformal calibration with scores, quantiles and guarantees; evaluation of intervals."""

from __future__ import annotations

from taskuq.conformal._bound import Bound, load_bound
from taskuq.conformal._calibrate import calibrate
from taskuq.conformal._diagnose import Comparison, Diagnosis, compare, diagnose
from taskuq.conformal._evaluate import PAPER_SIZE_BINS, EvaluationGrid, evaluate, evaluate_table
from taskuq.conformal._exact import Evaluation, EvaluationRecord, evaluate_exact
from taskuq.conformal._guarantee import Guarantee
from taskuq.conformal._joint import JointBound, calibrate_joint, load_joint_bound
from taskuq.conformal._online import OnlineBound, calibrate_online, load_online_bound
from taskuq.conformal._quantiles import (
    CoverageLaw,
    calibration_size,
    conformal_quantile,
    coverage_rank,
)
from taskuq.conformal.scores._learned import LearnedScore
from taskuq.conformal.scores._mlwr import MLWR
from taskuq.conformal.scores._paper import AR, CQR, LWR

__all__ = [
    "AR",
    "CQR",
    "LWR",
    "MLWR",
    "PAPER_SIZE_BINS",
    "Bound",
    "Comparison",
    "CoverageLaw",
    "Diagnosis",
    "Evaluation",
    "EvaluationGrid",
    "EvaluationRecord",
    "Guarantee",
    "JointBound",
    "LearnedScore",
    "OnlineBound",
    "calibrate",
    "calibrate_joint",
    "calibrate_online",
    "calibration_size",
    "compare",
    "conformal_quantile",
    "coverage_rank",
    "diagnose",
    "evaluate",
    "evaluate_exact",
    "evaluate_table",
    "load_bound",
    "load_joint_bound",
    "load_online_bound",
]
