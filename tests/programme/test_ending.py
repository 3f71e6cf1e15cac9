"""A job that is told to end leaves the GPU to the others as it was."""

from __future__ import annotations

import subprocess
import sys
import time

from scripts.programme.carrying import put
from scripts.programme.running import surroundings

ENDED = """import sys, time, types
from pathlib import Path

cuda = types.SimpleNamespace(
    is_initialized=lambda: True, synchronize=lambda: Path("waited.txt").touch()
)
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
Path("begun.txt").touch()
time.sleep(60)
"""


def test_who_is_told_to_end_waits_for_the_gpu_first(tmp_path):
    """A process that ends amid its work would take all others along that share the GPU by MPS."""
    put(None, tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", ENDED], cwd=tmp_path, env=surroundings(tmp_path),
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not (tmp_path / "begun.txt").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.terminate()
        assert process.wait(30) == 1
    finally:
        process.kill()
    assert (tmp_path / "waited.txt").exists()
