from ._examples import SyntheticTable, synthetic_outputs
from ._parquet import TableWriter
from ._table import TaskOutputs, as_table, is_stored, sum_groups
from ._terminology import Terminology

__all__ = [
    "SyntheticTable",
    "TableWriter",
    "TaskOutputs",
    "Terminology",
    "as_table",
    "is_stored",
    "sum_groups",
    "synthetic_outputs",
]
