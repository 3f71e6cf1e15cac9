"""Exact and Monte-Carlo judgement of bounds over random splits."""

from taskuq.evaluation.closed_form import evaluate_exact
from taskuq.evaluation.montecarlo import evaluate
from taskuq.evaluation.result import Evaluation, EvaluationRecord
from taskuq.evaluation.strata import PAPER_SIZE_BINS

__all__ = ["PAPER_SIZE_BINS", "Evaluation", "EvaluationRecord", "evaluate", "evaluate_exact"]
