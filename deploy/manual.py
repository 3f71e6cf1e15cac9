"""Print a text file to PDF: python deploy/manual.py docs/how-to/service.md manual.pdf."""

import sys
import textwrap
from pathlib import Path

from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure

source, target = map(Path, sys.argv[1:])
wrapped = [textwrap.wrap(line, 110) or [""] for line in source.read_text("utf-8").splitlines()]
lines = [part for line in wrapped for part in line]
with PdfPages(target) as pdf:
    for start in range(0, len(lines), 80):
        page = Figure(figsize=(8.27, 11.69))
        text = "\n".join(lines[start : start + 80])
        style = {"family": "monospace", "size": 7, "va": "top", "parse_math": False}
        page.text(0.08, 0.95, text, **style)
        pdf.savefig(page)
