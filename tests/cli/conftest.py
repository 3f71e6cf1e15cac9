import sys
from pathlib import Path

# Tests import the script of full disks, and run it as a process.
sys.path.insert(0, str(Path(__file__).parent))
