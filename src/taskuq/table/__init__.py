"""TaskOutputs, the one table where imaging and statistics meet, and its files."""

from __future__ import annotations

from taskuq.table._table import TaskOutputs, as_table, is_stored
from taskuq.table._terminology import Terminology

__all__ = ["TaskOutputs", "Terminology", "as_table", "is_stored"]
