"""Entry point of ``python -m taskuq``."""

from __future__ import annotations

from taskuq.cli.app import main

if __name__ == "__main__":
    main()
