import sys
from pathlib import Path

# The script that meets full disks is imported by tests and runs as a process of its own.
sys.path.insert(0, str(Path(__file__).parent))
