import sys
from pathlib import Path

# The toy imaging system is imported by tests and by the processes they kill.
sys.path.insert(0, str(Path(__file__).parent))
