from ._examples import SyntheticTable, synthetic_outputs
from ._parquet import TableWriter
from ._table import TaskOutputs, sum_groups
from ._terminology import Terminology

__all__ = [
    "SyntheticTable",
    "TableWriter",
    "TaskOutputs",
    "Terminology",
    "sum_groups",
    "synthetic_outputs",
]
