"""Put a rehearsal into its page, and its record beside the page.

    python -m scripts.rehearsed RUN_DIR --into docs/fastmri.md

``RUN_DIR`` is what ``taskuq rehearse`` was given as ``-o``. Tables and plans replace what stands
between ``<!-- rehearsal -->`` and ``<!-- end of rehearsal -->``; the record goes to the folder
``rehearsal`` beside the page, from which ``taskuq rehearse configs/fastmri-knee -o docs/rehearsal
--plan`` prints them again.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from scripts.paper import put

from taskuq.files import read_json
from taskuq.runs.rehearsal.run import RECORD, SCHEMA
from taskuq.runs.rehearsal.tables import rehearsal_markdown


def main(given: list[str]) -> int:
    """Put the tables of a rehearsal into a document."""
    if len(given) != 3 or given[1] != "--into":
        print("python -m scripts.rehearsed RUN_DIR --into docs/fastmri.md")
        return 2
    source, page = Path(given[0]) / RECORD, Path(given[2])
    text = rehearsal_markdown(read_json(source, SCHEMA))
    kept = page.parent / "rehearsal" / RECORD
    kept.parent.mkdir(exist_ok=True)
    if kept.resolve() != source.resolve():
        shutil.copy(source, kept)
    put(text, page, "rehearsal")
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
