"""One GPU for several processes: CUDA's MPS, where it starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
# Seconds that it may take to quit.
QUITTING = 10.0
# A daemon may start and not be able to serve; jobs must not be the first to notice.
PROBE = "import torch; torch.ones(1, device='cuda').sum().item()"


@contextmanager
def shared_gpu(work: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Let processes that are started inside compute on the GPU at the same time.

    Arguments:
        work: Where the daemon keeps its pipes and logs.
        tell: Called with a sentence on whether it runs.
    """
    if shutil.which(CONTROL) is None:
        tell("processes take turns on the GPU: there is no MPS")
        yield
        return
    folders = {f"CUDA_MPS_{name}_DIRECTORY": work / "mps" / name for name in ("PIPE", "LOG")}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    os.environ.update({name: str(folder) for name, folder in folders.items()})
    is_there = _ends_well([CONTROL, "-d"]) and _ends_well([sys.executable, "-c", PROBE])
    if not is_there:
        for name in folders:
            del os.environ[name]
    tell("processes share the GPU by MPS" if is_there else "processes take turns on the GPU")
    try:
        yield
    finally:
        if is_there:
            # One that does not quit ends with the machine.
            with suppress(subprocess.TimeoutExpired):
                subprocess.run([CONTROL], input=b"quit\n", capture_output=True, timeout=QUITTING)
            for name in folders:
                del os.environ[name]


def _ends_well(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=40, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False
