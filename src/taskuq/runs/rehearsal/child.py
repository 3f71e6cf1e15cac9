"""One command as a user would start it: a process of its own, watched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import taskuq
from taskuq.usage import VARIABLE

# The end of a process is not waited for longer than this by whoever reads what it said.
_PATIENCE = 5.0


@dataclass(frozen=True)
class Ended:
    """A process that has ended.

    Arguments:
        status: Its exit status; negative for a signal.
        seconds: How long it ran.
        said: What it said, on both streams, with the second at which it said so.
        device: What it computed on.
        peak_gpu_bytes: The most GPU memory that its tensors had.
        peak_host_bytes: The most memory that it had; 0 for one that was killed.
    """

    status: int
    seconds: float
    said: tuple[tuple[float, str], ...]
    device: str
    peak_gpu_bytes: int
    peak_host_bytes: int

    @property
    def text(self) -> str:
        """All it said."""
        return "\n".join(line for _, line in self.said)


def run_command(words: Sequence[str], folder: Path, log: Path) -> Ended:
    """Run ``taskuq`` with some words in a folder, by this very Python and this very code.

    Arguments:
        words: The arguments.
        folder: Where it runs.
        log: Where what it says goes, with the seconds since its start.

    Example:
        >>> folder = Path(tempfile.mkdtemp())
        >>> ended = run_command(["plan-size", "--alpha", "0.05"], folder, folder / "log.txt")
        >>> ended.status, ended.peak_host_bytes > 1_000_000
        (0, True)
    """
    start = time.monotonic()
    said: list[tuple[float, str]] = []
    with tempfile.TemporaryDirectory() as scratch:
        usage = Path(scratch) / "usage.json"
        process = subprocess.Popen(
            [sys.executable, "-m", "taskuq.commands.app", *words], cwd=folder,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=_environment(usage),
        )  # fmt: skip
        assert process.stdout is not None
        reader = threading.Thread(
            target=_read, args=(process.stdout, log, said, start), daemon=True
        )
        reader.start()
        try:
            process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        seconds = time.monotonic() - start
        reader.join(_PATIENCE)
        left: dict[str, Any] = json.loads(usage.read_text()) if usage.exists() else {}
    return Ended(
        status=process.returncode,
        seconds=seconds,
        said=tuple(said),
        device=left.get("device", "cpu"),
        peak_gpu_bytes=left.get("peak_gpu_bytes", 0),
        peak_host_bytes=left.get("peak_host_bytes", 0),
    )


def _environment(usage: Path) -> dict[str, str]:
    # The folder changes, so that a relative path would lead elsewhere.
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    paths = [str(Path(taskuq.__file__).parents[1]), *(str(Path(p).resolve()) for p in given)]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYTHONUNBUFFERED": "1",
        VARIABLE: str(usage),
    }


def _read(stream: IO[bytes], log: Path, said: list[tuple[float, str]], start: float) -> None:
    """Keep every line; of one that is drawn anew over and over, its last state."""
    with log.open("w", encoding="utf-8") as file, stream:
        for raw in stream:
            line = raw.decode("utf-8", errors="replace").rstrip("\r\n").rpartition("\r")[2]
            at = time.monotonic() - start
            said.append((at, line))
            file.write(f"{at:8.2f} {line}\n")
            file.flush()
