"""Reports of runs and tables, their figures, and their explorer."""

from __future__ import annotations

from taskuq.report._explorer import save_explorer
from taskuq.report._records import experiment_record
from taskuq.report._report import make_report, write_report

__all__ = ["experiment_record", "make_report", "save_explorer", "write_report"]
