"""The reference, from the docstrings: what is public, and a page for each room of the house.

Public is what the menu offers (``import taskuq as tq``), what a room lists in its ``__all__``, every
protocol, and whatever else a page of these docs imports. The menu has a page of its own, written by
hand in the order of use; the pages of rooms are written here before Sphinx reads.
"""

import ast
import importlib
import inspect
import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
PACKAGE = DOCS.parent / "src/taskuq"
PYTHON = re.compile(r"^( *)```python[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def menu() -> dict[str, str]:
    """Each name of the menu and the room it comes from."""
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text())
    return {
        name.name: f"taskuq.{node.module}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }


def imported(text: str) -> list[tuple[str, str]]:
    """What the Python code of a page imports from our modules: module and name."""
    found = []
    for match in PYTHON.finditer(text):
        code = "\n".join(line.removeprefix(match[1]) for line in match[2].splitlines())
        try:
            tree = ast.parse(code)
        except SyntaxError:  # a block that only shows something
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("taskuq."):
                found += [(node.module, name.name) for name in node.names]
    return found


def public() -> list[tuple[str, str]]:
    """Every public name beside the menu, with the module it is imported from; each object once."""
    rooms = sorted(f"taskuq.{path.parent.name}" for path in PACKAGE.glob("*/__init__.py"))
    listed = [
        (room, name)
        for room in rooms
        for name in getattr(importlib.import_module(room), "__all__", ())
    ]
    protocols = ast.parse((PACKAGE / "protocols.py").read_text()).body
    listed += [
        ("taskuq.protocols", node.name) for node in protocols if isinstance(node, ast.ClassDef)
    ]
    pages = [page.read_text() for page in sorted(DOCS.rglob("*.md")) if "_made" not in page.parts]
    listed += sorted({pair for text in pages for pair in imported(text)})
    taskuq = importlib.import_module("taskuq")
    seen = [getattr(taskuq, name) for name in menu()]
    found = []
    for module, name in listed:
        thing = getattr(importlib.import_module(module), name)
        if not inspect.ismodule(thing) and not any(thing is other for other in seen):
            seen.append(thing)
            found.append((module, name))
    return found


def directive(module: str, name: str) -> list[str]:
    """The lines that ask autodoc for one name."""
    thing = getattr(importlib.import_module(module), name)
    if inspect.isclass(thing):
        return [f".. autoclass:: {module}.{name}", "   :members:"]
    if inspect.isroutine(thing):
        return [f".. autofunction:: {module}.{name}"]
    return [f".. autodata:: {module}.{name}", "   :no-value:"]


def page(room: str, names: list[tuple[str, str]]) -> str:
    """The page of a room, in MyST: a section for each module that names are imported from."""
    about = inspect.getdoc(importlib.import_module(room)) or ""
    lines = [f"# `{room}`", "", about.split("\n\n")[0].replace("\n", " "), ""]
    told = [
        name for name, source in menu().items() if source == room or source.startswith(room + ".")
    ]
    if told:
        lines += [
            "On the menu: " + ", ".join(f"{{py:obj}}`taskuq.{one}`" for one in told) + ".",
            "",
        ]
    for module in dict.fromkeys(module for module, _ in names):
        if module != room:
            lines += [f"## `{module}`", ""]
        for where, name in names:
            if where == module:
                lines += ["```{eval-rst}", *directive(module, name), "```", ""]
    return "\n".join(lines)


def write_pages(app):
    rooms: dict[str, list[tuple[str, str]]] = {}
    for module, name in public():
        rooms.setdefault(".".join(module.split(".")[:2]), []).append((module, name))
    folder = Path(app.srcdir) / "_made/reference"
    folder.mkdir(parents=True, exist_ok=True)
    for room, names in rooms.items():
        path, text = folder / f"{_called(room)}.md", page(room, names)
        # A page that has not changed is left alone, so that Sphinx need not read it again.
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    # Nothing leads to the page of a room that is gone, and Sphinx would end on it.
    for path in set(folder.glob("*.md")) - {folder / f"{_called(room)}.md" for room in rooms}:
        path.unlink()


def _called(room: str) -> str:
    return room.removeprefix("taskuq.")


def setup(app):
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
