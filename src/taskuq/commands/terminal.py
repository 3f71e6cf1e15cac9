"""What commands show a person: tables and sentences on the terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskuq.files import json_text, write_json

if TYPE_CHECKING:
    from taskuq.outputs import TaskOutputs

# Columns beyond which a sentence is hard to read, however wide the terminal is.
WIDEST = 100


def say(sentence: str) -> None:
    """Tell the person something that is not a result, on stderr."""
    sys.stderr.write(f"{sentence}\n")


def say_paragraphs(lines: Sequence[str]) -> None:
    """Tell several sentences; on a terminal they are broken between words.

    What continues an indented line is indented further. A file gets one line for each.
    """
    if not sys.stderr.isatty():
        columns = sys.maxsize
    else:
        columns = min(shutil.get_terminal_size().columns, WIDEST)
    for line in lines:
        indent = "    " if line.startswith(" ") else ""
        say(textwrap.fill(line, columns, subsequent_indent=indent))


def say_about(table: TaskOutputs) -> None:
    """Tell what a person should know of a table whose numbers were used.

    After the work: whoever is refused hears one sentence, the refusal.
    """
    from taskuq.outputs.undeclared import undeclared_range

    if count := len(table.missing):
        cases = "1 case of the table is" if count == 1 else f"{count} cases of the table are"
        say(f"taskuq: {cases} unfinished and left out")
    if undeclared := undeclared_range(table):
        say(f"taskuq: {undeclared}")


def show(text: str) -> None:
    """Print a result on stdout."""
    sys.stdout.write(f"{text}\n")


def show_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, to_stderr: bool = False
) -> None:
    """Print a table; numbers are strings already, with the digits that matter."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for k, column in enumerate(columns):
        table.add_column(column, justify="left" if k == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    width = max(100, sum(max(len(r[k]) for r in [columns, *rows]) + 4 for k in range(len(columns))))
    console = Console(stderr=to_stderr, width=width, highlight=False)
    console.print(table)


def hand_over(record: Mapping[str, Any], path: str | None) -> None:
    """Write a record as JSON to a file, or to stdout for '-'."""
    if path == "-":
        show(json_text(record))
    elif path is not None:
        show(str(write_json(Path(path), record)))
