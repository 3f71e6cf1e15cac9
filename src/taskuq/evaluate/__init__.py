"""Exact and Monte-Carlo judgement of bounds over random splits."""

import sys

from taskuq.evaluate.closed_form import evaluate_exact
from taskuq.evaluate.montecarlo import evaluate
from taskuq.evaluate.result import Evaluation, EvaluationRecord
from taskuq.evaluate.strata import PAPER_SIZE_BINS
from taskuq.verb import Verb

__all__ = ["PAPER_SIZE_BINS", "Evaluation", "EvaluationRecord", "evaluate", "evaluate_exact"]

sys.modules[__name__].__class__ = Verb
