"""Running scans: acquisition by rounds, stored state, audit log and monitor."""

from taskuq.scan._acquire import acquire
from taskuq.scan._monitor import Monitor
from taskuq.scan._state import GroupScan, RoundRecord, Scan, load_scan

__all__ = ["GroupScan", "Monitor", "RoundRecord", "Scan", "acquire", "load_scan"]
