"""Reports of runs and tables, with figures and an explorer."""

from __future__ import annotations

from taskuq.report._explorer import save_explorer
from taskuq.report._records import experiment_record, policy_name, read_folder
from taskuq.report._report import make_report, write_report
from taskuq.report._scan import one_scan

__all__ = [
    "experiment_record",
    "make_report",
    "one_scan",
    "policy_name",
    "read_folder",
    "save_explorer",
    "write_report",
]
