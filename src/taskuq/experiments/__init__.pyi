from ._claims import run_all
from ._demo import run_demo
from ._run import open_run, read_run

__all__ = ["open_run", "read_run", "run_all", "run_demo"]
