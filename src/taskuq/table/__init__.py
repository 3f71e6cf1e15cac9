"""TaskOutputs, its files, and example tables."""

from taskuq.table._examples import SyntheticTable, stored_table, synthetic_outputs
from taskuq.table._parquet import TableWriter
from taskuq.table._table import TaskOutputs, as_table, is_stored, sum_groups
from taskuq.table._terminology import Terminology

__all__ = [
    "SyntheticTable",
    "TableWriter",
    "TaskOutputs",
    "Terminology",
    "as_table",
    "is_stored",
    "stored_table",
    "sum_groups",
    "synthetic_outputs",
]
