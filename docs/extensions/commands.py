"""Reference of commands, from the command line: a page for each command and a list of them."""

import importlib
import re
from pathlib import Path

from extensions.reference import write_changed


def commands() -> dict[str, str]:
    """Return each command with the first line of its help."""
    known = importlib.import_module("taskuq.cli.app").COMMANDS
    return {name: texts["help"] for name, texts in known.items()}


def page(name: str) -> str:
    """Return the page of a command: usage, help, example, arguments and options."""
    from cyclopts.docs.rst import generate_rst_docs

    app = importlib.import_module("taskuq.cli.app").app
    path = name.replace(" ", ".")
    text = generate_rst_docs(app, commands_filter=[path], flatten_commands=True, heading_level=2)
    own = re.split(rf"^taskuq {name}\n-+\n", text, flags=re.MULTILINE)[1]
    own = re.sub(r"^Example: (.*)$", r"Example::\n\n    \1", own, flags=re.MULTILINE)
    return f"taskuq {name}\n{'=' * (len(name) + 7)}\n{own}"


def file_name(name: str) -> str:
    return f"{name.replace(' ', '-')}.rst"


def write_pages(app):
    made = Path(app.srcdir) / "_made"
    write_changed(made / "commands", {file_name(name): page(name) for name in commands()})
    rows = [
        f"| [`taskuq {name}`](/_made/commands/{file_name(name)}) | {text} |"
        for name, text in commands().items()
    ]
    table = "\n".join(["| command | what it does |", "|---|---|", *rows, ""])
    write_changed(made / "lists", {"commands.txt": table})


def setup(app):
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
