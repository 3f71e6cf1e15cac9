"""TaskOutputs, the one table where imaging and statistics meet, and its files."""

from taskuq.outputs.given import as_table, is_stored
from taskuq.outputs.table import TaskOutputs

__all__ = ["TaskOutputs", "as_table", "is_stored"]
