"""Run benchmarks: ``python -m benchmarks`` for the quick ones, or by name.

python -m benchmarks
python -m benchmarks peers recover_gpu
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).parent


def known() -> list[str]:
    """Return the names of all benchmarks."""
    return sorted(path.stem for path in HERE.glob("[a-z]*.py"))


def quick() -> list[str]:
    """Return the benchmarks that run by default: those that need no GPU."""
    return [name for name in known() if not name.endswith("_gpu")]


def main(names: list[str]) -> int:
    """Run benchmarks by name; return 2 for an unknown name."""
    chosen = names or quick()
    unknown = [name for name in chosen if name not in known()]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; choose from {', '.join(known())}", file=sys.stderr)
        return 2
    for name in chosen:
        print(f"== {name}", flush=True)
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
