"""What a command took, for whoever asks: the variable TASKUQ_USAGE names a file for it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

VARIABLE = "TASKUQ_USAGE"


def leave_usage() -> None:
    """Write the most memory that this process had, where anybody wants to know.

    Example:
        >>> import tempfile
        >>> os.environ[VARIABLE] = f"{tempfile.mkdtemp()}/usage.json"
        >>> leave_usage()
        >>> sorted(json.loads(Path(os.environ.pop(VARIABLE)).read_text()))
        ['device', 'peak_gpu_bytes', 'peak_host_bytes']
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return
    # Only where something was computed on it: asking would load it.
    torch = sys.modules.get("torch")
    on_gpu = torch is not None and torch.cuda.is_initialized()
    usage = {
        "device": torch.cuda.get_device_name() if torch is not None and on_gpu else "cpu",
        "peak_gpu_bytes": torch.cuda.max_memory_allocated() if torch is not None and on_gpu else 0,
        "peak_host_bytes": peak_host_bytes(),
    }
    Path(path).write_text(json.dumps(usage), encoding="utf-8")


def peak_host_bytes() -> int:
    """Return the most memory that this process has had so far.

    Example:
        >>> peak_host_bytes() > 1_000_000
        True
    """
    try:
        status = Path("/proc/self/status").read_text()
        (line,) = (row for row in status.splitlines() if row.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    except (OSError, ValueError):
        # Only where there is no better: a program starts with the peak of who started it on Linux.
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
